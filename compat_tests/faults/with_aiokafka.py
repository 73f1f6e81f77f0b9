"""aiokafka, as the tests of faults use it; each call has its own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from compat_tests.faults.client import BACKOFF_MS, DELIVERY_MS, READ_MS, REQUEST_MS, SESSION_MS

_COMMON: dict[str, Any] = {
    "retry_backoff_ms": BACKOFF_MS,
    "request_timeout_ms": REQUEST_MS,
    "metadata_max_age_ms": 500,
}
_LONGEST_S: Final = 60.0
T = TypeVar("T")


class WithAiokafka:
    name = "aiokafka"

    def produce(self, bootstrap: str, topic: str, count: int, *, idempotent: bool) -> str:
        return _run(self._produce(bootstrap, topic, count, idempotent=idempotent))

    async def _produce(self, bootstrap: str, topic: str, count: int, *, idempotent: bool) -> str:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=idempotent, acks="all", **_COMMON)
        try:
            await producer.start()
            for number in range(count):
                await asyncio.wait_for(
                    producer.send_and_wait(topic, str(number).encode(), partition=0), (DELIVERY_MS + 2000) / 1000
                )
        finally:
            await _soon(producer.stop())
        return "delivered"

    def consume(self, bootstrap: str, topic: str) -> str:
        return _run(self._consume(bootstrap, topic, None))

    def consume_in_group(
        self, bootstrap: str, topic: str, group: str, pause_ms: int = 0, session_ms: int = SESSION_MS
    ) -> str:
        return _run(self._consume(bootstrap, topic, group, pause_ms, session_ms))

    async def _consume(
        self, bootstrap: str, topic: str, group: str | None, pause_ms: int = 0, session_ms: int = SESSION_MS
    ) -> str:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=200,
            heartbeat_interval_ms=200,
            session_timeout_ms=session_ms,
            **_COMMON,
        )
        if group is None:
            consumer.assign([TopicPartition(topic, 0)])
        else:
            consumer.subscribe([topic])
        try:
            await asyncio.wait_for(consumer.start(), READ_MS / 1000)
            await asyncio.wait_for(consumer.getone(), READ_MS / 1000)
            if group is None:
                return "read"
            await asyncio.sleep(pause_ms / 1000)
            await asyncio.wait_for(consumer.commit(), READ_MS / 1000)
            return "committed"
        finally:
            await _soon(consumer.stop())

    def transact(self, bootstrap: str, topic: str, name: str, pause_ms: int = 0, timeout_ms: int = DELIVERY_MS) -> str:
        return _run(self._transact(bootstrap, topic, name, pause_ms, timeout_ms))

    async def _transact(self, bootstrap: str, topic: str, name: str, pause_ms: int, timeout_ms: int) -> str:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=timeout_ms, **_COMMON
        )
        try:
            await asyncio.wait_for(producer.start(), READ_MS / 1000)
            await producer.begin_transaction()
            await producer.send(topic, b"0", partition=0)
            if pause_ms:
                await producer.flush()
                await asyncio.sleep(pause_ms / 1000)
            await asyncio.wait_for(producer.commit_transaction(), READ_MS / 1000)
        finally:
            await _soon(producer.stop())
        return "committed"


async def _soon(work: Coroutine[Any, Any, None]) -> None:
    """Wait for a client's end, which the fault may prevent; it may not even end when cancelled."""
    with suppress(TimeoutError, KafkaError):
        await _within(work, 1)


async def _within(work: Coroutine[Any, Any, T], patience_s: float) -> T:
    """Wait for `seconds`, and no longer if the client continues after a cancel, as aiokafka's sender may do.

    A client never ended after a broker had died because its disk was full: wait_for() and run() both wait for the end.
    """
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=patience_s)
    if task.done():
        return task.result()
    task.cancel()
    raise TimeoutError


async def _whole(work: Coroutine[Any, Any, str]) -> str:
    try:
        return await _within(work, _LONGEST_S)
    finally:
        left = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1)


def _run(work: Coroutine[Any, Any, str]) -> str:
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(_whole(work))
    except TimeoutError:
        return "nothing"
    except KafkaError as error:
        return type(error).__name__
    finally:
        loop.close()
