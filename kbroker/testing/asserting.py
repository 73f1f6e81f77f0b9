"""Assertions that fail with a short diff of expected and actual records, offsets or requests.

Owns the comparison, and the wait until the comparison succeeds. Never sends requests itself: the test passes the topic,
the group or the requests.

    - expected but missing                  + present but not expected
    . present, but no consumer reads it     ? not checked by the test
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from kbroker.testing.differences import Row, aligned, matched, shortened

if TYPE_CHECKING:  # imported only here, to keep `import kbroker` fast
    from kbroker.testing.groups import Group, TopicPartition
    from kbroker.testing.requests import About, Request, Requests
    from kbroker.testing.topics import StoredRecord, Topic

_CHECK_SECONDS = 0.01
_LISTED = 10
_LONGEST = 60
_ISOLATIONS: Final = ("read_committed", "read_uncommitted")
_NOTHING_RECORDED: Final = (
    "nothing is known of it: a cluster, and Broker(requests=False), record from the first look at .requests on, and "
    "clients came before that; begin the test with .requests.clear()"
)
Text = str | bytes | None
"""A key or a value. A `str` is compared as UTF-8."""


class Fields(TypedDict, total=False):
    """The expected fields of a record. A field that is missing here may have any value."""

    key: Text
    value: Text
    headers: Sequence[tuple[str, Text]]
    partition: int
    offset: int
    timestamp: int
    """The timestamp in ms since the epoch."""
    transaction: str | None
    """The state of the record's transaction: "open", "committed" or "aborted". None outside of a transaction."""


Expected = Text | tuple[Text, Text] | Fields
"""An expected record: its value, its key and value, or some of its fields."""


def assert_records(
    topic: Topic,
    expected: Iterable[Expected],
    *,
    partition: int | None = None,
    isolation: str = "read_committed",
    in_any_order: bool = False,
    timeout: float = 0.0,
) -> list[StoredRecord]:
    """Assert that a topic, or one partition, contains exactly these records. Return the stored records.

    Records are compared in order of offset, one partition after another, unless `in_any_order` is true. Records of open
    and aborted transactions are ignored, unless `isolation` is "read_uncommitted". With `timeout`, the assertion waits
    up to that many seconds for the records.
    """
    __tracebackhide__ = True
    if isolation not in _ISOLATIONS:
        raise ValueError(f"isolation is read_committed or read_uncommitted, not {isolation!r}")
    wanted = [_fields(each) for each in expected]
    if in_any_order:
        wanted.sort(key=len, reverse=True)  # match the most specific expectation first
    found: list[StoredRecord] = []

    def wrong() -> str | None:
        lying = topic.records(partition)
        hidden = set() if isolation == "read_uncommitted" else {"open", "aborted"}
        found[:] = [each for each in lying if each.transaction not in hidden]
        pairs = (matched if in_any_order else aligned)(wanted, found, _is)
        missing = sum(there is None for _, there in pairs)
        others = sum(want is None for want, _ in pairs)
        if not missing and not others:
            return None
        where = f"topic {topic.name}" if partition is None else f"{topic.name}-{partition}"
        head = f"{where}: {missing} of {len(wanted)} expected records missing, {others} not expected"
        return "\n".join([head, *shortened(_record_rows(wanted, found, lying, pairs))])

    _hold(wrong, timeout)
    return found


def assert_committed(
    group: Group, expected: Mapping[TopicPartition, int | None], *, timeout: float = 0.0
) -> dict[TopicPartition, int]:
    """Assert a group's committed offsets, by (topic, partition). Return all committed offsets of the group.

    An expected offset of None means that nothing is committed. Partitions that are not given may have any offset. With
    `timeout`, the assertion waits up to that many seconds for the commit.
    """
    __tracebackhide__ = True
    found: dict[TopicPartition, int] = {}

    def wrong() -> str | None:
        found.clear()
        found.update(group.offsets)
        if all(found.get(each) == offset for each, offset in expected.items()):
            return None
        members = len(group.members)
        head = f"group {group.id} ({group.state}, {members} member{'' if members == 1 else 's'}):"
        return "\n".join(
            [f"{head} other offsets are committed than expected", *shortened(_offset_rows(expected, found))]
        )

    _hold(wrong, timeout)
    return found


def assert_requested(
    requests: Requests, api: str, times: int | None = None, *, timeout: float = 0.0, **about: Unpack[About]
) -> list[Request]:
    """Assert that clients sent `times` requests of an API (by default: at least one). Return these requests.

    For `about` see `Requests.of`. With `timeout`, the assertion waits up to that many seconds for the requests. A
    cluster and a `Broker(requests=False)` start to record at the first access to `requests`. Raises ValueError for
    filters that no request can match.
    """
    __tracebackhide__ = True
    found: list[Request] = []

    def wrong() -> str | None:
        found[:] = requests.of(api, **about)
        if requests.is_late_and_empty:
            return f"{api}: {_NOTHING_RECORDED}"
        if len(found) == times or (times is None and found):
            return None
        return _requests_text(requests, found, api, about, "at least one" if times is None else str(times))

    _hold(wrong, timeout)
    return found


def assert_no_requests(requests: Requests, api: str, **about: Unpack[About]) -> None:
    """Assert that clients sent no request of an API while requests were recorded (see `assert_requested`).

    The assertion also fails if clients connected before the recording began and no request was recorded. See
    `Requests.clear`.
    """
    __tracebackhide__ = True
    if "timeout" in about:
        raise TypeError("assert_no_requests does not wait, and has no timeout")
    assert_requested(requests, api, 0, **about)


def _hold(wrong: Callable[[], str | None], timeout: float) -> None:
    """Check until there is no difference. After the timeout, raise AssertionError with the last difference."""
    __tracebackhide__ = True
    deadline = time.monotonic() + timeout
    while (difference := wrong()) is not None:
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {difference}" if timeout else difference)
        time.sleep(_CHECK_SECONDS)


def _fields(expected: Expected) -> Fields:
    if expected is None or isinstance(expected, str | bytes):
        return {"value": expected}
    if isinstance(expected, tuple):
        if len(expected) != 2:
            raise TypeError(f"a record is expected as a value, (key, value) or a dict of fields, not {expected!r}")
        return {"key": expected[0], "value": expected[1]}
    if not isinstance(expected, dict):
        raise TypeError(f"a record is expected as a value, (key, value) or a dict of fields, not {expected!r}")
    unknown = sorted(expected.keys() - Fields.__annotations__.keys())
    if unknown:
        raise TypeError(f"a record has no field {unknown[0]!r}: it has {', '.join(Fields.__annotations__)}")
    return expected


def _is(wanted: Fields, record: StoredRecord) -> bool:
    return all(_plain(value) == _plain(getattr(record, name)) for name, value in wanted.items())


def _plain(value: Any) -> Any:
    """Return a value in the form for comparison: text as bytes, headers as a list."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _record_rows(
    wanted: Sequence[Fields],
    found: Sequence[StoredRecord],
    lying: Sequence[StoredRecord],
    pairs: Iterable[tuple[int | None, int | None]],
) -> list[Row]:
    """Return the lines of a diff. A record that no consumer reads is listed at its offset."""
    shown = {name for each in wanted for name in each} - {"key", "value", "partition", "offset", "transaction"}
    places = {id(each): at for at, each in enumerate(lying)}
    seen = {id(each) for each in found}
    rows: list[tuple[int, Row]] = []
    last = -1
    for want, there in pairs:
        if there is None:
            assert want is not None
            rows.append((last, Row("-", f"{'':6} {_fields_text(wanted[want])}")))
            continue
        last = places[id(found[there])]
        rows.append((last, Row("+" if want is None else " ", _lying(found[there], shown))))
    for at, each in enumerate(lying):
        if id(each) not in seen:
            rows.append((at, Row(".", _lying(each, shown))))
    return [row for _, row in sorted(rows, key=lambda each: each[0])]


def _lying(record: StoredRecord, shown: Iterable[str]) -> str:
    where = f"{record.partition}@{record.offset}"
    fields: dict[str, Any] = {"key": record.key, "value": record.value}
    if record.key is None:
        del fields["key"]
    fields.update({name: getattr(record, name) for name in sorted(shown)})
    if record.transaction is not None:
        fields["transaction"] = record.transaction
    return f"{where:6} {_fields_text(fields)}"


def _fields_text(fields: Mapping[str, Any]) -> str:
    """Return a record's fields as text, with key and value first."""
    left = dict(fields)
    parts = [_short(left.pop(name)) for name in ("key", "value") if name in left]
    if "key" in fields and "value" not in fields:
        parts = [f"key {parts[0]}"]
    parts = [": ".join(parts)] if parts else []
    transaction = left.pop("transaction", None)
    parts += [f"{name} {_short(value)}" for name, value in left.items()]
    if transaction is not None or "transaction" in fields:
        parts.append(transaction or "no transaction")
    return ", ".join(parts)


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            value = value.decode()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(f"{name}={_short(each)}" for name, each in value) + "]"
    text = "null" if value is None else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(value)} long)"


def _offset_rows(expected: Mapping[TopicPartition, int | None], found: Mapping[TopicPartition, int]) -> list[Row]:
    rows = []
    for topic, partition in sorted({*expected, *found}):
        name, there = f"{topic}-{partition}", found.get((topic, partition))
        if (topic, partition) not in expected:
            rows.append(Row("?", f"{name}  {there}"))
        elif expected[topic, partition] == there:
            rows.append(Row(" ", f"{name}  {_offset(there)}"))
        else:
            rows += [Row("-", f"{name}  {_offset(expected[topic, partition])}"), Row("+", f"{name}  {_offset(there)}")]
    return rows


def _offset(offset: int | None) -> str:
    return "nothing" if offset is None else str(offset)


def _requests_text(requests: Requests, found: Sequence[Request], api: str, about: About, expected: str) -> str:
    """Return a text with the matching requests and the API's other requests.

    If there are no requests of this API, the text has the requests of all APIs.
    """
    filters = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in about.items())
    lines = [f"{api}{f' about {filters}' if filters else ''}: expected {expected}, there {_are(len(found))}"]
    lines += _list("+", found)
    others = [each for each in requests.of(api) if each not in found] or [
        each for each in requests if each not in found and not found
    ]
    return "\n".join(lines + _list("?", others))


def _list(mark: str, requests: Sequence[Request]) -> list[str]:
    left = len(requests) - _LISTED
    before = [f"  {mark} ... {left} before"] if left > 0 else []
    return [*before, *(f"  {mark} {each!r}" for each in requests[-_LISTED:])]


def _are(count: int) -> str:
    return f"{'is' if count == 1 else 'are'} {count or 'none'}"
