"""What may stand in metadata and rule sets."""

from typing import Any

import pytest

from kbroker.schema_registry.formats.rules import InvalidRules, check_metadata, check_rule_set

RULE = {"name": "r", "type": "CEL"}


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        {"tags": None, "properties": None, "sensitive": None},
        {"tags": {"**.ssn": ["PII"]}, "properties": {"owner": "x"}, "sensitive": ["owner"], "other": 1},
    ],
)
def test_metadata(metadata: Any) -> None:
    check_metadata(metadata)


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        "x",
        {"tags": []},
        {"tags": {"a": "b"}},
        {"tags": {"a": [1]}},
        {"properties": {"a": 1}},
        {"sensitive": {"a": 1}},
    ],
)
def test_metadata_refused(metadata: Any) -> None:
    with pytest.raises(InvalidRules):
        check_metadata(metadata)


@pytest.mark.parametrize(
    "rule_set",
    [
        None,
        {},
        {"migrationRules": None, "domainRules": [], "encodingRules": None},
        {"domainRules": [RULE]},
        {"domainRules": [{**RULE, "kind": "CONDITION", "mode": "WRITE", "onFailure": "DLQ", "disabled": True}]},
        {
            "domainRules": [
                {**RULE, "mode": "WRITEREAD", "onFailure": "NONE,ERROR", "tags": ["PII"], "params": {"a": "b"}}
            ]
        },
        {"migrationRules": [{**RULE, "mode": "UPDOWN", "onSuccess": "NONE,NONE"}]},
        {"encodingRules": [{**RULE, "name": "_a-1", "mode": "READ", "doc": None}]},
        {"domainRules": [{**RULE, "name": "r" * 256}]},
    ],
)
def test_rule_set(rule_set: Any) -> None:
    check_rule_set(rule_set)


@pytest.mark.parametrize(
    ("rule_set", "said"),
    [
        ([], "ruleSet is not an object"),
        ({"domainRules": {}}, "domainRules is not a list"),
        ({"domainRules": ["x"]}, "rule is not an object"),
        ({"domainRules": [{"type": "CEL"}]}, "Missing rule name"),
        ({"domainRules": [{"name": "", "type": "CEL"}]}, "Empty rule name"),
        ({"domainRules": [{"name": "r" * 257, "type": "CEL"}]}, "Rule name too long"),
        ({"domainRules": [{"name": "1r", "type": "CEL"}]}, "Illegal initial character in rule name: 1r"),
        ({"domainRules": [{"name": "r r", "type": "CEL"}]}, "Illegal character in rule name: r r"),
        ({"domainRules": [{"name": "r"}]}, "Missing rule type"),
        ({"domainRules": [RULE, RULE]}, "Found rule with duplicate name 'r'"),
        ({"domainRules": [RULE], "encodingRules": [RULE]}, "Found rule with duplicate name 'r'"),
        ({"domainRules": [{**RULE, "mode": "UPGRADE"}]}, "Domain rules can only be WRITE, READ, WRITEREAD"),
        ({"encodingRules": [{**RULE, "mode": "UPDOWN"}]}, "Encoding rules can only be WRITE, READ, WRITEREAD"),
        ({"migrationRules": [RULE]}, "Migration rules can only be UPGRADE, DOWNGRADE, UPDOWN"),
        ({"domainRules": [{**RULE, "mode": "x"}]}, "mode is one of"),
        ({"domainRules": [{**RULE, "kind": "x"}]}, "kind"),
        (
            {"domainRules": [{**RULE, "mode": "WRITE", "onFailure": "NONE,ERROR"}]},
            "Multiple actions only valid with WRITEREAD and UPDOWN",
        ),
        ({"domainRules": [{**RULE, "expr": 1}]}, "not a text"),
        ({"domainRules": [{**RULE, "params": {"a": 1}}]}, "not a text"),
        ({"domainRules": [{**RULE, "disabled": "no"}]}, "disabled"),
        ({"domainRules": [{"name": [], "type": "CEL"}]}, "name is not a text"),
    ],
)
def test_rule_set_refused(rule_set: Any, said: str) -> None:
    with pytest.raises(InvalidRules, match=said):
        check_rule_set(rule_set)
