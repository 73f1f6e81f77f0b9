"""Checks a schema's metadata and rule set as Confluent's registry does.

The registry only stores both: clients apply the rules. Each function checks a value from a request's JSON and raises
InvalidRules with the reason; None is valid. `normal_metadata` and `normal_rule_set` return the normal form, which is
equal for values with the same meaning. The registry stores and compares this form: names in order, without empty or
unknown parts, and with the default kind and mode of a rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

LONGEST_NAME: Final = 256
"""The maximum number of characters of a rule's name."""
_MIGRATION: Final = ("UPGRADE", "DOWNGRADE", "UPDOWN")
_DOMAIN: Final = ("WRITE", "READ", "WRITEREAD")
_PHASES: Final = {
    "migrationRules": (_MIGRATION, "Migration rules can only be UPGRADE, DOWNGRADE, UPDOWN"),
    "domainRules": (_DOMAIN, "Domain rules can only be WRITE, READ, WRITEREAD"),
    "encodingRules": (_DOMAIN, "Encoding rules can only be WRITE, READ, WRITEREAD"),
}
_TEXTS: Final = ("doc", "type", "expr", "onSuccess", "onFailure")
_KIND: Final = "TRANSFORM"
_MODE: Final = "WRITEREAD"


class InvalidRules(Exception):  # noqa: N818 - what it says of them
    """The registry refuses metadata or a rule set; the message is for the client (42210)."""


def check_metadata(metadata: Any) -> None:
    """Check `{"tags": {path: [tag]}, "properties": {name: text}, "sensitive": [name]}`; each part is optional."""
    if metadata is None:
        return
    _object(metadata, "metadata")
    tags, properties = metadata.get("tags"), metadata.get("properties")
    if tags is not None:
        _object(tags, "tags")
        for each in tags.values():
            _texts(each, "tags")
    if properties is not None:
        _object(properties, "properties")
        _texts(list(properties.values()), "properties")
    if metadata.get("sensitive") is not None:
        _texts(metadata["sensitive"], "sensitive")


def check_rule_set(rule_set: Any) -> None:
    """Check the form of a rule set, and that no two of its rules have the same name.

    The form is `{"migrationRules": [rule], "domainRules": [rule], "encodingRules": [rule]}`.
    """
    if rule_set is None:
        return
    _object(rule_set, "ruleSet")
    names: set[object] = set()
    for phase, (modes, refusal) in _PHASES.items():
        rules = rule_set.get(phase)
        if rules is None:
            continue
        if not isinstance(rules, list):
            raise InvalidRules(f"{phase} is not a list")
        for rule in rules:
            _object(rule, "rule")
            _check_rule(rule, names)
            if _mode(rule) not in modes:
                raise InvalidRules(refusal)


def normal_metadata(metadata: Any) -> dict[str, Any] | None:
    """Return metadata in normal form."""
    if metadata is None:
        return None
    check_metadata(metadata)
    tags = {name: sorted(set(values)) for name, values in sorted((metadata.get("tags") or {}).items())}
    properties = dict(sorted((metadata.get("properties") or {}).items()))
    sensitive = sorted(set(metadata.get("sensitive") or ()))
    return _filled({"tags": tags, "properties": properties, "sensitive": sensitive})


def normal_rule_set(rule_set: Any) -> dict[str, Any] | None:
    """Return a rule set in normal form.

    Names and modes are not checked: a registry may already store values that it would now refuse.
    """
    if rule_set is None:
        return None
    _object(rule_set, "ruleSet")
    found: dict[str, Any] = {}
    for phase in _PHASES:
        rules = rule_set.get(phase) or []
        if not isinstance(rules, list):
            raise InvalidRules(f"{phase} is not a list")
        found[phase] = [_normal_rule(each) for each in rules]
    enabled = rule_set.get("enableAt")
    _texts([] if enabled is None else [enabled], "enableAt")
    return _filled({**found, "enableAt": enabled})


def _normal_rule(rule: Any) -> dict[str, Any]:
    _object(rule, "rule")
    texts = ("name", "kind", "mode", *_TEXTS)
    _texts([rule[key] for key in texts if rule.get(key) is not None], "rule")
    tags, params, disabled = rule.get("tags"), rule.get("params"), rule.get("disabled")
    _texts([] if tags is None else tags, "tags")
    _object({} if params is None else params, "params")
    _texts(list((params or {}).values()), "params")
    if disabled not in (None, True, False):
        raise InvalidRules("a rule's `disabled` must be true or false")
    found = {
        "name": rule.get("name"),
        "doc": rule.get("doc"),
        "kind": rule.get("kind") or _KIND,
        "mode": rule.get("mode") or _MODE,
        "type": rule.get("type"),
        "tags": sorted(set(tags or ())),
        "params": dict(sorted((params or {}).items())),
        "expr": rule.get("expr"),
        "onSuccess": rule.get("onSuccess"),
        "onFailure": rule.get("onFailure"),
    }
    return _filled(found) | {"disabled": bool(disabled)}


def _filled(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value}


def _check_rule(rule: Mapping[str, Any], names: set[object]) -> None:
    name = rule.get("name")
    if name is not None and not isinstance(name, str):
        raise InvalidRules("a rule's name is not a text")
    if name in names:
        raise InvalidRules(f"Found rule with duplicate name '{name}'")
    names.add(name)
    _check_name(name)
    if rule.get("type") is None:
        raise InvalidRules("Missing rule type")
    _texts([rule[key] for key in _TEXTS if rule.get(key) is not None], "rule")
    if rule.get("kind") not in (None, "TRANSFORM", "CONDITION"):
        raise InvalidRules("a rule's kind is TRANSFORM or CONDITION")
    if rule.get("tags") is not None:
        _texts(rule["tags"], "tags")
    if rule.get("params") is not None:
        _object(rule["params"], "params")
        _texts(list(rule["params"].values()), "params")
    if rule.get("disabled") not in (None, True, False):
        raise InvalidRules("a rule's `disabled` must be true or false")
    mode = _mode(rule)
    for action in (rule.get("onSuccess"), rule.get("onFailure")):
        if action is not None and "," in action and mode not in ("WRITEREAD", "UPDOWN"):
            raise InvalidRules("Multiple actions only valid with WRITEREAD and UPDOWN")


def _mode(rule: Mapping[str, Any]) -> str:
    mode = rule.get("mode")
    if mode is None:
        return _MODE
    if mode not in _MIGRATION + _DOMAIN:
        raise InvalidRules(f"a rule's mode is one of {', '.join(_MIGRATION + _DOMAIN)}")
    return str(mode)


def _check_name(name: str | None) -> None:
    if name is None:
        raise InvalidRules("Missing rule name")
    if not name:
        raise InvalidRules("Empty rule name")
    if len(name) > LONGEST_NAME:
        raise InvalidRules("Rule name too long")
    if not (name[0].isalpha() or name[0] == "_"):
        raise InvalidRules(f"Illegal initial character in rule name: {name}")
    if not all(each.isalnum() or each in "_-" for each in name[1:]):
        raise InvalidRules(f"Illegal character in rule name: {name}")


def _object(value: Any, what: str) -> None:
    if not isinstance(value, dict):
        raise InvalidRules(f"{what} is not an object")


def _texts(value: Any, what: str) -> None:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidRules(f"{what} has a value that is not a text")
