"""Topics over HTTP: reads and writes their records without a client.

Owns the limit on the records in one answer; testing/topics.py reads the records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from kbroker.control.as_json import record_json
from kbroker.control.operations import Control, Operation
from kbroker.control.values import Refused, Values
from kbroker.fields import Field
from kbroker.testing.topics import ABORTED, OPEN, StoredRecord, Topic

_LIMIT, _MOST, _AT_ONCE = 500, 10_000, 250
MOST_BYTES: Final = 8 * 1024 * 1024
"""The maximum number of bytes of keys, values and headers in one answer."""
_INT32, _INT64 = 2**31 - 1, 2**63 - 1


def _topic(control: Control, name: str) -> Topic:
    return control.subject.topics[name]


def _as_json(topic: Topic) -> dict[str, Any]:
    return {"name": topic.name, "partitions": topic.partitions, "configs": dict(topic.configs)}


def _list(control: Control, _: Values) -> dict[str, Any]:
    return {"topics": [_as_json(each) for each in control.subject.topics.values()]}


def _create(control: Control, values: Values) -> dict[str, Any]:
    made = control.subject.topics.create(values["name"], values.get("partitions", 1), values.get("configs"))
    return _as_json(made)


def _records(control: Control, values: Values) -> dict[str, Any]:
    topic, limit = _topic(control, values["topic"]), values.get("limit", _LIMIT)
    partition, start = values.get("partition"), values.get("start", 0)
    if partition is not None and partition >= topic.partitions:
        raise Refused(404, f"{topic.name} has {topic.partitions} partitions, but no partition {partition}")
    found: list[StoredRecord] = []
    size = 0
    for index in range(topic.partitions) if partition is None else (partition,):
        for each in _read(topic, index, start):
            size += _size(each)
            if len(found) == limit or (found and size > MOST_BYTES):
                return _records_json(found, values, more=each)
            found.append(each)
    return _records_json(found, values, more=None)


def _read(topic: Topic, index: int, start: int) -> Iterator[StoredRecord]:
    """Read a partition a few records at a time, because the memory budget may allow no more."""
    while True:
        some = topic.records(index, start=start, count=_AT_ONCE)
        yield from some
        if len(some) < _AT_ONCE:
            return
        start = some[-1].offset + 1


def _records_json(found: list[StoredRecord], values: Values, more: StoredRecord | None) -> dict[str, Any]:
    wanted = found
    if values.get("isolation") == "read_committed":
        wanted = [each for each in found if each.transaction not in (OPEN, ABORTED)]
    return {
        "records": [record_json(each) for each in wanted],
        "next": None if more is None else {"partition": more.partition, "start": more.offset},
    }


def _size(record: StoredRecord) -> int:
    headers = sum(len(key) + len(value or b"") for key, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _produce(control: Control, values: Values) -> dict[str, Any]:
    topic = _topic(control, values["topic"])
    names = ("key", "partition", "headers", "timestamp")
    return record_json(topic.produce(values["value"], **{name: values[name] for name in names if name in values}))


OPERATIONS: Final = (
    Operation("GET", "/topics", "listTopics", "The topics, without the broker's own.", "Topics", work=_list),
    Operation(
        "POST", "/topics", "createTopic", "Create a topic.", "Topic", status=201, work=_create,
        body=(
            Field("name", "string", "The name of the topic.", required=True),
            Field("partitions", "integer", "The number of partitions; the default is one.", least=1, most=10_000),
            Field("configs", "strings", 'Configs of the topic, such as {"cleanup.policy": "compact"}.'),
        ),
    ),
    Operation(
        "GET", "/topics/{topic}", "getTopic", "One topic.", "Topic",
        work=lambda control, values: _as_json(_topic(control, values["topic"])),
    ),
    Operation(
        "GET", "/topics/{topic}/records", "readRecords",
        "The records of one partition, or of all partitions one after the other, in order of offset. If there are "
        "more records, `next` is the partition and the offset of the next one.",
        "Records", work=_records,
        query=(
            Field("partition", "integer", "One partition; the default is all partitions.", least=0, most=_INT32),
            Field("start", "integer", "The offset at which to begin in each partition.", least=0, most=_INT64),
            Field("limit", "integer", f"The maximum number of records; the default is {_LIMIT}.", least=1, most=_MOST),
            Field(
                "isolation", "string", "With read_committed, open and aborted transactions are left out.",
                choices=("read_uncommitted", "read_committed"),
            ),
        ),
    ),
    Operation(
        "POST", "/topics/{topic}/records", "produceRecord", "Append a record; the answer is the stored record.",
        "Record", status=201, work=_produce,
        body=(
            Field("value", "data", "The value: a string is text in UTF-8.", required=True),
            Field("key", "data", "The key. Without `partition`, it determines the partition."),
            Field("partition", "integer", "The partition.", least=0, most=_INT32),
            Field("headers", "headers", "The headers; their values have the form of `value`."),
            Field("timestamp", "integer", "In ms since 1970; the default is the broker's time.", least=-1, most=_INT64),
        ),
    ),
)  # fmt: skip
