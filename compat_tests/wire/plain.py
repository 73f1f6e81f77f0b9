"""Answers as plain data that two brokers can share: varying values are replaced by names, and varying order by sorting.

Owns the list of fields that are allowed to differ (`VOLATILE`, `SYMBOLIC`); nothing else may differ. A symbolic value
keeps its identity: the first topic id of a sequence is "topic_id#1" on both sides, the second "#2".
"""

from __future__ import annotations

import re
import time
from typing import Any

from kbroker.protocol.schema import MessageBase

VOLATILE = {
    "host": "brokers have their own addresses",
    "port": "brokers have their own addresses",
    "cluster_id": "random",
    "log_dir": "a path",
    "total_bytes": "of the disk",
    "usable_bytes": "of the disk",
    "client_host": "",
    "documentation": "sentences are each project's own",
    "last_timestamp": "the time",
    "commit_timestamp": "the time",
}
OURS = {
    "record.validation",
    "confluent.key.schema.validation",
    "confluent.value.schema.validation",
    "confluent.key.subject.name.strategy",
    "confluent.value.subject.name.strategy",
    "kbroker.schema.validation.level",
    "kbroker.schema.validation.deadletter.topic",
    "delivery.delay.ms",
    "view.source",
    "view.filter",
    "filter.index.headers",
    "share.filter",
    "schedule.enable",
    "schedule.target.topic",
    "share.release.backoff.ms",
    "share.release.backoff.max.ms",
    "share.release.backoff.multiplier",
}
"""Configs that Kafka does not have."""
SYMBOLIC = {"topic_id", "producer_id", "session_id", "member_id", "leader", "replica_directory_id"}
_TIMES = {"log_append_time_ms", "timestamp", "transaction_start_time_ms"}
_UUID_SUFFIX = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_KAFKAS_UUID = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]")
_TIME_RANGE = re.compile(r"\[\d{13}, \d{13}\]")
_NOW_MS = 600_000
_SORT_BY = (
    "name", "topic", "topic_name", "topic_id", "group_id", "key", "resource_name", "partition_index", "partition",
    "index", "member_id", "node_id", "broker_id", "api_key", "producer_id",
)  # fmt: skip


class Plain:
    """Converts the answers of one sequence to plain data; remembers the names that it assigned."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, Any], str] = {}
        self._counts: dict[str, int] = {}

    def of(self, answer: Any) -> Any:
        """Return an answer as dicts, lists, numbers and strings."""
        if isinstance(answer, MessageBase):
            return {s.name: self._field(s.name, getattr(answer, s.name)) for s in answer.SPECS}
        if isinstance(answer, list):
            items = [self.of(item) for item in answer]
            items = [item for item in items if not (isinstance(item, dict) and item.get("name") in OURS)]
            return sorted(items, key=_sort_key) if items and isinstance(items[0], dict) else items
        if isinstance(answer, (bytes, memoryview, bytearray)):
            return bytes(answer).hex()
        return int(answer) if isinstance(answer, int) and not isinstance(answer, bool) else answer

    def _field(self, name: str, value: Any) -> Any:
        if name in VOLATILE and value not in (None, "", -1):
            return f"<{name}>"
        if name in _TIMES and isinstance(value, int) and abs(value - time.time() * 1000) < _NOW_MS:
            return "<now>"
        if name in SYMBOLIC and not isinstance(value, list):
            return self._symbol(name, value)
        if isinstance(value, str):
            return _TIME_RANGE.sub("[<then>, <then>]", _UUID_SUFFIX.sub("<uuid>", value))
        return self.of(value)

    def _symbol(self, name: str, value: Any) -> Any:
        empty = value is None or value in ("", -1, 0) or (isinstance(value, bytes) and not any(value))
        if empty or (name == "leader" and not isinstance(value, str)):
            return self.of(value)
        kind = name
        if isinstance(value, str):
            if _KAFKAS_UUID.fullmatch(value):
                kind = "uuid"
            elif _UUID_SUFFIX.search(value):
                kind = _UUID_SUFFIX.sub("", value)
            else:
                return value
        if (kind, value) not in self._names:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[kind, value] = f"{kind}#{self._counts[kind]}"
        return self._names[kind, value]


def _sort_key(item: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{item[k]:>12}" if isinstance(item[k], int) else str(item[k]) for k in _SORT_BY if k in item)


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Return where two plain answers differ, as lines "path: ours != theirs"."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = []
        for key in {**ours, **theirs}:
            found += differences(ours.get(key, "<absent>"), theirs.get(key, "<absent>"), f"{path}.{key}")
        return found
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [
            line
            for i, (a, b) in enumerate(zip(ours, theirs, strict=True))
            for line in differences(a, b, f"{path}[{i}]")
        ]
    return [] if ours == theirs else [f"{path}: kbroker {ours!r}, Kafka {theirs!r}"]
