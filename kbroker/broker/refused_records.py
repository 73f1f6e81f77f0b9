"""Writes records that failed the check of their schemas into the dead letter topic of their own topic.

Owns the form of such a letter: the record with its key, value, timestamp and headers, and headers that tell where it
was sent and why it is here, named as in the dead letters of share groups (dead_letters.py). It has no offset: it was
never in its topic. It goes to the partition with the source partition's number modulo the number of partitions. Which
records fail is decided in record_checks/.

Letters are written before the rest of their batch. A batch that is sent again after that has its letters twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.broker.own_produce import OwnProduce
from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.long_work import awaited, turn
from kbroker.protocol.errors import ErrorCode, Malformed
from kbroker.protocol.large_batch import LargeRecord, build_in_turns
from kbroker.protocol.records import Record, stream_records
from kbroker.record_checks.checks import ENABLE

_BATCH_BYTES: Final = 512 << 10
"""A batch of letters is larger only if it has a single one."""
_ROOM: Final = 1024
"""What a letter's own headers and numbers take at most, but for the names in them."""


class RefusedRecords:
    """The `DeadLetters` of a broker's checks."""

    def __init__(self, metadata: ClusterMetadata, own: OwnProduce) -> None:
        self._metadata = metadata
        self._own = own

    async def write(self, topic: str, to: str, index: int, batch: memoryview, errors: Mapping[int, str]) -> str | None:
        """Write the records with errors, by their indexes, into the topic `to`; return why that failed."""
        found = self._metadata.state.topics.get(to)
        if found is None or not found.partitions:
            return "the topic does not exist"
        if any(found.configs.get(name, "").strip().lower() == "true" for name in ENABLE):
            return "the topic checks its own records"  # two topics could send each other a record for ever
        target = index % len(found.partitions)
        waiting: list[LargeRecord] = []
        size = 0
        try:
            number = -1
            # Its records have been read before, within the limits of the check.
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
                        return code.name
                    waiting, size = [], 0
                waiting.append(letter)
                size += own_size
        except Malformed as error:
            return str(error)
        code = await self._send(to, target, waiting) if waiting else ErrorCode.NONE
        return None if code is ErrorCode.NONE else code.name

    async def _send(self, to: str, target: int, letters: list[LargeRecord]) -> ErrorCode:
        return await awaited(await self._own.produce(to, target, await build_in_turns(letters)))


def _letter(record: Record, topic: str, index: int, why: str) -> LargeRecord:
    headers = (
        *record.headers,
        ("__dlq.errors.topic", topic.encode()),
        ("__dlq.errors.partition", b"%d" % index),
        ("__dlq.errors.message", why.encode()),
    )
    return record.timestamp, record.key, record.value, headers


def _size(letter: LargeRecord) -> int:
    """Return about how many bytes a letter takes, and no less."""
    _, key, value, headers = letter
    size = _ROOM + len(key or b"") + len(value or b"")
    return size + sum(16 + 4 * len(name) + len(content or b"") for name, content in headers)
