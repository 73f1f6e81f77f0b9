"""The process that reads values: what ends it, what it remembers, and which requests wait for others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio

from kbroker.protocol.records import HEADER_SIZE, build_batch
from kbroker.record_checks.schema_lookup import SchemaText, text_of
from kbroker.record_checks.value_worker import TakesTooLong, ValueWorker, WorkerEnded
from kbroker.schema_registry.records import Content
from tests.record_checks.conftest import ORDER, avro, named, order

TOKEN = named(1, b"")
pytestmark = pytest.mark.asyncio


def schema(text: object, schema_type: str = "AVRO") -> SchemaText:
    return text_of(Content(text if isinstance(text, str) else json.dumps(text), schema_type), {})


def body(*values: bytes | None) -> bytes:
    return build_batch([(0, None, value, ()) for value in values])[HEADER_SIZE:]


@pytest_asyncio.fixture
async def worker() -> AsyncIterator[ValueWorker]:
    made = ValueWorker()
    yield made
    made.close()


async def errors_of(worker: ValueWorker, text: SchemaText, *values: bytes | None, most: int = 100) -> dict[int, str]:
    found = await worker.check(body(*values), len(values), {TOKEN: text}, of_keys=False, skipped=(), most=most)
    assert found.number >= len(found.errors)
    return dict(found.errors)


async def test_bad_values_are_told_by_their_number(worker: ValueWorker) -> None:
    text = schema(ORDER)
    assert await errors_of(worker, text, order(1), None, order(2), b"x") == {}  # schemas with references are not read
    assert set(await errors_of(worker, text, order(1), TOKEN, order(1), order(1) + b"x")) == {1, 3}
    found = await worker.check(body(*[TOKEN] * 50), 50, {TOKEN: text}, of_keys=False, skipped={0}, most=10)
    assert (len(found.errors), found.number) == (10, 49)


async def test_a_large_batch_lets_others_go_first(worker: ValueWorker) -> None:
    text = schema({"type": "array", "items": "long"})
    value = named(1, avro({"type": "array", "items": "long"}, list(range(200))))
    await errors_of(worker, text, value)
    long = asyncio.ensure_future(errors_of(worker, text, *[value] * 20_000))
    for _ in range(3):
        assert await asyncio.wait_for(errors_of(worker, text, value), 20) == {}
        assert not long.done()
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    assert await errors_of(worker, text, value) == {}


async def test_a_value_that_takes_too_long_ends_the_process_and_is_named(worker: ValueWorker) -> None:
    """Two million steps for a value with alternatives: the CPU time limit ends the process."""
    heavy = {"items": {"anyOf": [{"items": {"type": "string"}}, {"items": {"type": "number"}}] * 40}}
    text = schema(heavy, "JSON")
    value = named(1, json.dumps([[1, "a"] * 3_000] * 60).encode())
    with pytest.raises(WorkerEnded) as caught:
        await errors_of(worker, text, named(1, b"[]"), value, most=1)
    assert caught.value.record == 1
    assert await errors_of(worker, text, named(1, b"[]")) == {}


async def test_a_batch_that_takes_too_long_is_given_up(worker: ValueWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.record_checks.value_worker._BATCH_SECONDS", 0.1)
    monkeypatch.setattr("kbroker.record_checks.value_worker._SECONDS_EACH", 0.0)
    text = schema({"type": "array", "items": "long"})
    value = named(1, avro({"type": "array", "items": "long"}, list(range(200))))
    with pytest.raises(TakesTooLong):
        await errors_of(worker, text, *[value] * 20_000)
    assert await errors_of(worker, text, value) == {}


async def test_a_process_that_is_killed_is_replaced(worker: ValueWorker) -> None:
    text = schema(ORDER)
    assert await errors_of(worker, text, order(1)) == {}
    child = max(psutil.Process().children(), key=lambda each: each.create_time())
    child.kill()
    with pytest.raises(WorkerEnded) as caught:
        await errors_of(worker, text, order(1))
    assert caught.value.record == -1
    assert await errors_of(worker, text, order(1)) == {}


async def test_more_schemas_than_it_holds(worker: ValueWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.record_checks.value_worker._MOST_SCHEMAS", 3)
    texts = [schema({**ORDER, "name": f"Order{number}"}) for number in range(10)]
    for _ in range(2):
        for text in texts:
            assert await errors_of(worker, text, order(1)) == {}
    assert await worker.names(texts[3]) == ("shop.Order3",)
    assert await worker.names(schema("no schema")) == ()


async def test_a_schema_that_cannot_be_used_is_an_error_of_its_records(worker: ValueWorker) -> None:
    assert "cannot be used" in (await errors_of(worker, schema("{}"), order(1)))[0]
    assert "cannot be used" in (await errors_of(worker, schema("message", "PROTOBUF"), order(1)))[0]


async def test_it_ends_without_work(worker: ValueWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.record_checks.value_worker._IDLE_SECONDS", 0.01)
    assert await errors_of(worker, schema(ORDER), order(1)) == {}
    loop = asyncio.get_running_loop()
    until = loop.time() + 20
    while worker._process is not None and loop.time() < until:  # noqa: ASYNC110 - nothing tells of its end
        await asyncio.sleep(0.01)
    assert worker._process is None
    assert await errors_of(worker, schema(ORDER), order(1)) == {}


@pytest.mark.long
async def test_who_asks_may_leave_at_any_time(worker: ValueWorker) -> None:
    """When a connection ends, its work is closed: the process continues, and discards the batch."""
    text = schema({"type": "array", "items": "long"})
    value = named(1, avro({"type": "array", "items": "long"}, list(range(200))))
    assert await errors_of(worker, text, value) == {}
    process = worker._process
    for _ in range(20):
        asked = [errors_of(worker, text, *[value] * 3_000) for _ in range(5)]
        for each in asked:
            each.send(None)
        for number, each in enumerate(asked):
            if number == 2:
                assert await errors_of(worker, text, value) == {}
            each.close()
    assert await errors_of(worker, text, value) == {}
    await asyncio.wait(worker._tasks, timeout=20) if worker._tasks else None
    assert worker._process is process
    assert not worker._tasks
