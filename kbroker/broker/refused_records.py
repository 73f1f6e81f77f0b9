"""Writes records that failed their schema check into the dead letter topic of their own topic.

Owns the form of such a dead letter: the record with its key, value, timestamp and headers. Additional headers contain
the topic, the partition and the reason of the failure. They have the same names as in the dead letters of share groups
(dead_letters.py). There is no header for an offset, because the record was never in its topic. The dead letter's
partition is the source partition's number modulo the number of partitions; another broker of the cluster may lead it.
Owns the retries while that partition moves. record_checks/ decides which records fail.

Dead letters are written before the other records of their batch. If a client then retries the batch, its dead letters
are written twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from kbroker.broker.dead_letters import PASSING
from kbroker.broker.own_produce import OwnProduce
from kbroker.broker.places import Places
from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.log.append_info import BatchRefused
from kbroker.long_work import awaited, in_slices, turn
from kbroker.protocol.errors import ErrorCode, Malformed
from kbroker.protocol.large_batch import LargeRecord, build_in_turns
from kbroker.protocol.records import Record, stream_records
from kbroker.record_checks.checks import ENABLE

log = logging.getLogger(__name__)

_BATCH_BYTES: Final = 512 << 10
"""The maximum size in bytes of a batch of dead letters. Only a batch with a single dead letter may be larger."""
_ROOM: Final = 1024
"""The maximum number of bytes of a dead letter's own headers and numbers, without the names that they contain."""
_PATIENCE_S: Final = 5.0
"""The time in seconds for which writes of dead letters are retried while their partition has no leader or moves."""
_FIRST_PAUSE_S: Final = 0.05
_AT_ONCE, _AT_ONCE_EACH = 16, 4
"""The maximum number of batches of dead letters in memory: in total, and for one leader."""


class RefusedRecords:
    """Implements `DeadLetters` for a broker's record checks."""

    def __init__(self, metadata: ClusterMetadata, own: OwnProduce) -> None:
        self._metadata = metadata
        self._own = own
        self._places = Places(_AT_ONCE, _AT_ONCE_EACH)
        self._tasks: set[asyncio.Task[ErrorCode]] = set()

    async def write(self, topic: str, to: str, index: int, batch: memoryview, errors: Mapping[int, str]) -> str | None:
        """Write the records with errors, by index, into the topic `to`. Return the reason if this failed."""
        found = self._metadata.state.topics.get(to)
        if found is None or not found.partitions:
            return "the topic does not exist"
        if any(found.configs.get(name, "").strip().lower() == "true" for name in ENABLE):
            return "the topic checks its own records"  # two topics could send each other a record forever
        target = index % len(found.partitions)
        waiting: list[LargeRecord] = []
        size = 0
        try:
            number = -1
            # The check has read these records before, within its limits.
            for record in stream_records(batch, max_bytes=2**31):
                await turn
                if record is None:
                    continue
                number += 1
                why = errors.get(number)
                if why is None:
                    continue
                letter = _letter(record, topic, index, why)
                own_size = _size(letter)
                if waiting and size + own_size > _BATCH_BYTES:
                    code = await self._send(to, target, waiting)
                    if code is not ErrorCode.NONE:
                        return _failed(code)
                    waiting, size = [], 0
                waiting.append(letter)
                size += own_size
        except Malformed as error:
            return str(error)
        code = await self._send(to, target, waiting) if waiting else ErrorCode.NONE
        return None if code is ErrorCode.NONE else _failed(code)

    async def _send(self, to: str, target: int, letters: list[LargeRecord]) -> ErrorCode:
        """Write one batch of dead letters. Return the outcome when all in-sync replicas have the batch.

        The write runs in a task, because the waiting caller may be cancelled at any time, for instance when its
        connection is closed. A write that has begun is not cancelled, and counts as a batch in memory until it has
        ended.
        """
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()
        task = loop.create_task(self._written(to, target, letters, begun), name=f"letters to {to}-{target}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        timer = loop.call_later(_PATIENCE_S, _give_up, task, begun)
        try:
            await asyncio.wait((task,))
        finally:
            timer.cancel()
            _give_up(task, begun)
        return ErrorCode.REQUEST_TIMED_OUT if task.cancelled() else task.result()

    async def _written(self, to: str, target: int, letters: list[LargeRecord], begun: asyncio.Event) -> ErrorCode:
        async with self._places.place(self._own.leader_of(to, target)):
            begun.set()
            try:
                batch = await in_slices(build_in_turns(letters))
                del letters
                return await self._tried(to, target, batch)
            except Exception:
                log.exception("dead letters cannot be written to %s-%d", to, target)
                return ErrorCode.UNKNOWN_SERVER_ERROR

    async def _tried(self, to: str, target: int, batch: memoryview) -> ErrorCode:
        """Retry until the write succeeds or cannot succeed, or until the next try would be too late."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE_S
        pause = _FIRST_PAUSE_S
        while True:
            code = await awaited(await in_slices(self._own.produce(to, target, batch)))
            if code not in PASSING or loop.time() + pause >= until:
                return code
            await asyncio.sleep(pause)
            pause *= 2

    def close(self) -> None:
        """Stop all writes."""
        for task in self._tasks:
            task.cancel()


def _give_up(task: asyncio.Task[ErrorCode], begun: asyncio.Event) -> None:
    """Cancel the task if it still waits for its place."""
    if not begun.is_set():
        task.cancel()


def _failed(code: ErrorCode) -> str:
    """Return the reason for which dead letters were not written. Raises BatchRefused if a later try may succeed."""
    if code in PASSING:
        text = f"Records with errors cannot be written to their topic now: {code.name}; a later try may succeed."
        raise BatchRefused(ErrorCode.REQUEST_TIMED_OUT, text)
    return code.name


def _letter(record: Record, topic: str, index: int, why: str) -> LargeRecord:
    headers = (
        *record.headers,
        ("__dlq.errors.topic", topic.encode()),
        ("__dlq.errors.partition", b"%d" % index),
        ("__dlq.errors.message", why.encode()),
    )
    return record.timestamp, record.key, record.value, headers


def _size(letter: LargeRecord) -> int:
    """Return the approximate size of a dead letter in bytes. The result is never smaller than the actual size."""
    _, key, value, headers = letter
    size = _ROOM + len(key or b"") + len(value or b"")
    return size + sum(16 + 4 * len(name) + len(content or b"") for name, content in headers)
