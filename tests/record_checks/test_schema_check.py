"""Verdicts of a check, compared with a model of the registry: the fast path passes nothing that the slow refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.log import record_walk
from kbroker.log.append_info import AppendError, BatchRefused
from kbroker.log.append_validation import BatchRules
from kbroker.log.log_config import LogConfig
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import HEADER_SIZE, build_batch
from kbroker.record_checks import schema_check
from kbroker.record_checks.schema_check import SchemaCheck
from kbroker.record_checks.schema_lookup import SchemaText, Unavailable
from tests.record_checks.conftest import named

CONFIG = LogConfig(confluent_value_schema_validation=True)
RULES = BatchRules("orders-0", CONFIG)
GUID = bytes(range(16))
Record = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]


class Registry:
    """A registry that knows some ids of `orders-value`."""

    def __init__(self, ids: set[int]) -> None:
        self.ids = ids
        self.acknowledged: set[int] = set()
        """Ids that the registry does not know yet."""
        self.changes = 0
        self.is_there = True
        self.asked = 0
        self.looks = 0

    def revision(self) -> Hashable | None:
        return (self, self.changes) if self.is_there else None

    async def ready(self) -> None:
        if not self.is_there:
            raise Unavailable("it is away")

    async def look(self) -> None:
        self.looks += 1
        self.ids |= self.acknowledged

    async def id_of(self, guid: bytes) -> int | None:
        return 1 if guid == GUID else None

    async def has(self, schema_id: int, subject: str) -> bool:
        self.asked += 1
        return subject == "orders-value" and schema_id in self.ids

    async def schema(self, schema_id: int) -> SchemaText | None:
        raise AssertionError(schema_id)


def check_of(registry: Registry | None, config: LogConfig = CONFIG) -> SchemaCheck:
    async def ready() -> Registry:
        assert registry is not None
        await registry.ready()
        return registry

    checker: Any = SimpleNamespace(lookup=registry, ready=ready, room=asyncio.Semaphore(1), worker=None, letters=None)
    return SchemaCheck("orders", config, checker)


def judged(check: SchemaCheck, records: Sequence[Record], **more: Any) -> dict[int, str | None] | AppendError:
    """Return the errors by record, or the error of the complete batch."""
    batch = memoryview(build_batch(records, **more))

    async def judge() -> memoryview:
        return await check.judge(batch, RULES)

    try:
        assert asyncio.run(judge()) is batch
    except BatchRefused as error:
        return error
    except AppendError as error:
        return dict(error.record_errors) if error.code is ErrorCode.INVALID_RECORD else error
    return {}


def passes(check: SchemaCheck, records: Sequence[Record]) -> bool:
    return check.passes(build_batch(records)[HEADER_SIZE:], 0, len(records))


def values(*found: bytes | None) -> list[Record]:
    return [(0, None, each, ()) for each in found]


VALUE = st.none() | st.builds(named, st.integers(0, 4), st.binary(max_size=3)) | st.binary(max_size=7)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(["__value_schema_id", "__key_schema_id", "x"]),
        st.none() | st.just(b"\1" + GUID) | st.builds(named, st.integers(0, 4), st.just(b"")) | st.binary(max_size=3),
    ),
    max_size=2,
)
RECORDS = st.lists(st.tuples(st.just(0), st.none(), VALUE, HEADERS), min_size=1, max_size=20)


def is_good(record: Record, ids: set[int]) -> bool:
    _, _, value, headers = record
    if value is None:
        return True
    named_by = [content for name, content in headers if name == "__value_schema_id"]
    token = named_by[-1] if named_by and named_by[-1] is not None else value[:5]
    if named_by and named_by[-1] is not None and token[:1] == b"\1":
        return token[1:17] == GUID and 1 in ids
    return len(token) >= 5 and token[0] == 0 and int.from_bytes(token[1:5]) in ids


@given(RECORDS, st.sets(st.integers(0, 4)), st.integers(0, 4))
def test_verdicts_are_those_of_the_model(records: list[Record], ids: set[int], codec: int) -> None:
    check = check_of(Registry(ids))
    bad = {number for number, record in enumerate(records) if not is_good(record, ids)}
    assert not passes(check, records) or not bad
    found = judged(check, records, codec=codec)
    assert not isinstance(found, AppendError)
    assert found.keys() == bad
    assert not passes(check, records) or not bad


@pytest.mark.skipif(record_walk.prefixes is None, reason="kbroker was installed without a C compiler")
def test_what_passed_passes_quickly_until_the_registry_changes() -> None:
    registry = Registry({1, 2})
    check, batch = check_of(registry), values(named(1, b"a"), None, named(2, b"b"))
    assert not passes(check, batch)
    assert judged(check, batch) == {}
    assert passes(check, batch)
    asked = registry.asked
    for _ in range(100):
        assert passes(check, batch)
    assert registry.asked == asked
    assert not passes(check, values(named(3, b"")))
    registry.ids.remove(2)
    registry.changes += 1
    assert not passes(check, batch)
    assert judged(check, batch) == {2: "The schema with id 2 is not registered under the subject orders-value."}
    assert not passes(check, batch)


def test_an_unknown_schema_is_looked_up_again_before_it_is_refused() -> None:
    registry = Registry({1})
    registry.acknowledged = {2, 3}
    check = check_of(registry)
    assert judged(check, values(named(1, b""))) == {}
    assert judged(check, values(b"x", b"")).keys() == {0, 1}
    assert registry.looks == 0
    batch = values(named(2, b""), named(1, b""), named(3, b""), named(4, b""))
    assert judged(check, batch) == {3: "The schema with id 4 is not registered under the subject orders-value."}
    assert registry.looks == 1


@pytest.mark.skipif(record_walk.prefixes is None, reason="kbroker was installed without a C compiler")
def test_what_is_deleted_while_it_is_looked_up_is_not_known_to_pass() -> None:
    """Another batch may have noticed the change before this one is done."""
    registry = Registry({1, 2})
    check, batch = check_of(registry), values(named(1, b""), named(2, b""))
    has = registry.has

    async def deleted_meanwhile(schema_id: int, subject: str) -> bool:
        found = await has(schema_id, subject)
        registry.ids.discard(schema_id)
        registry.changes += 1
        assert not passes(check, batch)
        return found

    registry.has = deleted_meanwhile  # type: ignore[method-assign]
    assert judged(check, batch) == {}
    assert not passes(check, batch)


@pytest.mark.skipif(record_walk.prefixes is None, reason="kbroker was installed without a C compiler")
def test_what_is_known_to_pass_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_check, "_MOST_GOOD", 10)
    check = check_of(Registry(set(range(100))))
    for number in range(100):
        assert judged(check, values(named(number, b""))) == {}
        assert passes(check, values(named(number, b"")))
    assert len(check._sides[0].good) <= 10


def test_without_a_registry_nothing_passes() -> None:
    registry = Registry({1})
    check = check_of(registry)
    assert judged(check, values(named(1, b""))) == {}
    registry.is_there = False
    assert not passes(check, values(named(1, b"")))
    refused = judged(check, values(named(1, b"")))
    assert isinstance(refused, BatchRefused)
    assert refused.code is ErrorCode.REQUEST_TIMED_OUT
    assert not passes(check_of(None), values(named(1, b"")))


def test_of_many_errors_the_first_are_told() -> None:
    found = judged(check_of(Registry(set())), values(*[b"x"] * 5_000))
    assert not isinstance(found, AppendError)
    assert sorted(found) == list(range(1_000))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_unpacks_to_much_is_refused(codec: int) -> None:
    refused = judged(check_of(Registry({1})), values(named(1, bytes(40 << 20))), codec=codec)
    assert isinstance(refused, BatchRefused)
    assert refused.code is ErrorCode.INVALID_RECORD


@pytest.mark.skipif(record_walk.prefixes is None, reason="kbroker was installed without a C compiler")
def test_a_batch_of_many_records_is_looked_at_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_check, "_IN_ONE_CALL", 7)
    check = check_of(Registry(set(range(40))))
    many = values(*(named(number % 40, bytes(number % 5)) for number in range(100)))
    assert judged(check, many) == {}
    assert len(check._sides[0].good) == 1
    assert judged(check, [*many, *values(named(99, b""))]).keys() == {100}
    assert judged(check, [*many, *values(b"x")]).keys() == {100}
