"""The four operations of IncrementalAlterConfigs."""

from __future__ import annotations

import pytest

from kbroker.config.model import InvalidConfig
from kbroker.config.operations import Op, apply_broker_ops, apply_ops
from kbroker.config.table import TOPIC


def test_operations() -> None:
    current = {"retention.ms": "1", "cleanup.policy": "compact"}
    ops: list[tuple[str, Op, str | None]] = [
        ("retention.ms", Op.DELETE, None),
        ("cleanup.policy", Op.APPEND, "delete,compact"),
        ("segment.ms", Op.SET, "5"),
    ]
    assert apply_ops(TOPIC, current, ops) == {"cleanup.policy": "compact,delete", "segment.ms": "5"}
    assert apply_ops(TOPIC, {}, [("cleanup.policy", Op.APPEND, "compact")]) == {"cleanup.policy": "delete,compact"}
    assert apply_ops(TOPIC, current, [("cleanup.policy", Op.SUBTRACT, "compact")])["cleanup.policy"] == ""
    assert current == {"retention.ms": "1", "cleanup.policy": "compact"}


def test_appending_to_a_key_that_is_no_list_is_refused() -> None:
    with pytest.raises(InvalidConfig) as caught:
        apply_ops(TOPIC, {}, [("retention.ms", Op.APPEND, "1")])
    assert caught.value.text == "Can't APPEND to key retention.ms because its type is not LIST."


def test_a_value_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="exceeds the maximum value size of 32767 bytes"):
        apply_ops(TOPIC, {}, [("cleanup.policy", Op.SET, "x" * 32768)])


def test_broker_operations() -> None:
    assert apply_broker_ops({}, [("log.cleanup.policy", Op.APPEND, "compact")]) == {
        "log.cleanup.policy": "delete,compact"
    }
    with pytest.raises(InvalidConfig, match="Config value append is not allowed for config key: message"):
        apply_broker_ops({}, [("message.max.bytes", Op.APPEND, "1")])
    with pytest.raises(InvalidConfig, match="Unknown config name: my"):
        apply_broker_ops({}, [("my.own", Op.SUBTRACT, "1")])
