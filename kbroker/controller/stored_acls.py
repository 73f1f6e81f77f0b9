"""The ACLs of a single node in its metadata store.

Owns reading and writing them. Never decides about ACLs: controller.py handles changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote, unquote

from kbroker.controller.acl_nodes import ROOTS, TYPES, acl_path, decode_entries, encode_entries
from kbroker.controller.store_interface import Change, Delete, MetadataStore, Put
from kbroker.security.authorizer.acls import Acls, Entry, Pattern


def load_acls(store: MetadataStore) -> dict[Pattern, frozenset[Entry]]:
    """Return all ACLs that are stored."""
    found: dict[Pattern, frozenset[Entry]] = {}
    for pattern_type, root in ROOTS.items():
        for name, resource_type in TYPES.items():
            for segment in store.children(f"{root}/{name}"):
                node = store.get(f"{root}/{name}/{segment}")
                if node is not None:
                    found[Pattern(resource_type, unquote(segment), pattern_type)] = decode_entries(node.value)
    return found


def stored(acls: Acls, changed: Iterable[Pattern]) -> list[Change]:
    """Return the changes to write after the ACLs of some patterns have changed to these."""
    changes: list[Change] = []
    for pattern in changed:
        path = acl_path(pattern._replace(name=quote(pattern.name, safe="*")))
        entries = acls.get(pattern)
        changes.append(Put(path, encode_entries(entries)) if entries else Delete(path))
    return changes
