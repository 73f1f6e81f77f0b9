"""The legal names of topics, names that collide with each other, and the internal topics (Apache Kafka: Topic).

Owns these rules and their texts. Never knows which topics exist.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from kbroker.protocol.errors import ApiError, ErrorCode

MAX_NAME_LENGTH = 249
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_fault(name: str) -> str | None:
    """Return the reason why a topic must not have a name, in Kafka's words; None if the name is legal."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    if not _LEGAL.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def partition_fault(topic: str, partition: int) -> str | None:
    """Return the reason why a partition cannot exist, or None. A long topic name is cut, and escaped for the log."""
    if topic_name_fault(topic) is not None:
        return f"no topic can be named {topic[:MAX_NAME_LENGTH]!r}"
    return f"topic {topic} can have no partition {partition}" if partition < 0 else None


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION for a name that Kafka refuses."""
    fault = topic_name_fault(name)
    if fault is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {fault}")


class CollidingNames:
    """The names of topics by their names in Kafka's metrics, in which '.' and '_' are the same.

    A lookup takes the same time for any number of topics.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._by_metric: dict[str, dict[str, None]] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        if "." in name or "_" in name:
            self._by_metric.setdefault(name.replace(".", "_"), {})[name] = None

    def discard(self, name: str) -> None:
        metric = name.replace(".", "_")
        held = self._by_metric.get(metric, {})
        held.pop(name, None)
        if not held:
            self._by_metric.pop(metric, None)

    def other(self, name: str, besides: Container[str] = ()) -> str | None:
        """Return a topic, not in `besides`, whose name differs from `name` only in '.' and '_', or None."""
        held = self._by_metric.get(name.replace(".", "_"), ())
        return next((each for each in held if each != name and each not in besides), None)
