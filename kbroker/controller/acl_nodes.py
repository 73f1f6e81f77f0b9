"""The paths and encodings of access control lists: Apache Kafka 3.9's znodes, on a single node and on ZooKeeper.

Owns the encoding and decoding of these paths and values, and the ACLs in the store of a single node. Never decides
about ACLs, and never reads or writes them on ZooKeeper.

    /kafka-acl/TYPE/NAME                        {"version": 1, "acls": [{"principal": "User:alice", "permissionType":
                                                "Allow", "operation": "Read", "host": "*"}, ...]}, for literal names
    /kafka-acl-extended/prefixed/TYPE/NAME      the same, for prefixes
    /kafka-acl-changes/acl_changes_N            TYPE:NAME, whose ACLs have changed
    /kafka-acl-extended-changes/acl_changes_N   {"version": 1, "resourceType": "TOPIC", "name": "...", "patternType":
                                                "PREFIXED"}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from kbroker.controller.store_interface import Change, Delete, MetadataStore, Put
from kbroker.security.authorizer.acls import (
    Acls,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)

LITERAL_ROOT: Final = "/kafka-acl"
PREFIXED_ROOT: Final = "/kafka-acl-extended/prefixed"
LITERAL_CHANGES: Final = "/kafka-acl-changes"
PREFIXED_CHANGES: Final = "/kafka-acl-extended-changes"
CHANGE: Final = "acl_changes_"
ROOTS: Final = {PatternType.LITERAL: LITERAL_ROOT, PatternType.PREFIXED: PREFIXED_ROOT}
CHANGES: Final = {PatternType.LITERAL: LITERAL_CHANGES, PatternType.PREFIXED: PREFIXED_CHANGES}
TYPES: Final = {each.title: each for each in ResourceType if each > ResourceType.ANY}
"""Resource types by their names in paths."""
_OPERATIONS: Final = {each.title.lower(): each for each in Operation if each > Operation.ANY}
_PERMISSIONS: Final = {each.title.lower(): each for each in (Permission.ALLOW, Permission.DENY)}


def acl_path(pattern: Pattern) -> str:
    """Return the path of a pattern's ACLs. The pattern's name must not contain "/"."""
    return f"{ROOTS[pattern.pattern_type]}/{pattern.resource_type.title}/{pattern.name}"


def encode_entries(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return the JSON object of a pattern's ACLs, in a fixed order."""
    acls = [
        {
            "principal": each.principal,
            "permissionType": each.permission.title,
            "operation": each.operation.title,
            "host": each.host,
        }
        for each in sorted(entries)
    ]
    return {"version": 1, "acls": acls}


def decode_entries(value: Mapping[str, Any]) -> frozenset[Entry]:
    """Return a pattern's ACLs. Raises KeyError, TypeError or ValueError for invalid content."""
    if value["version"] != 1:
        raise ValueError(f"version {value['version']} of ACLs is not known")
    return frozenset(_entry(each) for each in value["acls"])


def _entry(value: Mapping[str, str]) -> Entry:
    operation = _OPERATIONS[value["operation"].lower().replace("_", "")]
    permission = _PERMISSIONS[value["permissionType"].lower()]
    principal, host = value["principal"], value["host"]
    if not isinstance(principal, str) or not isinstance(host, str):
        raise TypeError("a principal and a host are strings")
    return Entry(principal, host, operation, permission)


def encode_change(pattern: Pattern) -> bytes:
    """Return the notification that a pattern's ACLs have changed."""
    if pattern.pattern_type is PatternType.LITERAL:
        return f"{pattern.resource_type.name}:{pattern.name}".encode()
    value = {
        "version": 1,
        "resourceType": pattern.resource_type.name,
        "name": pattern.name,
        "patternType": pattern.pattern_type.name,
    }
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode_change(kind: PatternType, data: bytes) -> Pattern:
    """Return the pattern whose ACLs have changed. Raises ValueError for an invalid notification."""
    try:
        if kind is PatternType.LITERAL:
            resource, colon, name = data.decode().partition(":")
            if not colon:
                raise ValueError("not TYPE:NAME")
            return Pattern(ResourceType[_upper(resource)], name)
        value = json.loads(data)
        if value["version"] != 1:
            raise ValueError(f"version {value['version']} is not known")
        pattern_type = PatternType[_upper(value["patternType"])]
        return Pattern(ResourceType[_upper(value["resourceType"])], str(value["name"]), pattern_type)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _upper(name: str) -> str:
    """Return a type's name in the upper case of its enum. Very old brokers wrote names such as TransactionalId."""
    known = TYPES.get(name)
    return known.name if known is not None else name.upper()


def load_acls(store: MetadataStore) -> dict[Pattern, frozenset[Entry]]:
    """Return all ACLs that a single node has stored."""
    found: dict[Pattern, frozenset[Entry]] = {}
    for pattern_type, root in ROOTS.items():
        for name, resource_type in TYPES.items():
            for segment in store.children(f"{root}/{name}"):
                node = store.get(f"{root}/{name}/{segment}")
                if node is not None:
                    found[Pattern(resource_type, unquote(segment), pattern_type)] = decode_entries(node.value)
    return found


def stored_acls(acls: Acls, changed: Iterable[Pattern]) -> list[Change]:
    """Return the writes with which a single node stores the new ACLs of some patterns."""
    changes: list[Change] = []
    for pattern in changed:
        path = acl_path(pattern._replace(name=quote(pattern.name, safe="*")))
        entries = acls.get(pattern)
        changes.append(Put(path, encode_entries(entries)) if entries else Delete(path))
    return changes
