"""Writes the dead letters of share groups into their dead letter topics (KIP-1191; ShareGroupDLQStateManager of Kafka).

Owns the checks of the topic, its creation, the form of a dead letter, the division into batches that the topic accepts,
the retries, and the counts. share_partition/ decides which records become dead letters, and changes their state.

A dead letter is a record with six headers that describe the source record. With
errors.deadletterqueue.copy.record.enable it also has the key and the value of the source record, but never its headers.
The dead letter's partition is the source partition's number modulo the number of partitions. Dead letters that cannot
be written after some tries are dropped and logged.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from kbroker.broker.own_produce import OwnProduce
from kbroker.broker.places import Places
from kbroker.clock import Clock
from kbroker.cluster_state import TopicState
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.log.log_slice import LogSlice
from kbroker.log.record_copy import Copies, Copy, Field, copied
from kbroker.long_work import awaited, turn
from kbroker.partition import Partition
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.large_batch import LargeRecord, build_in_turns
from kbroker.protocol.records import HEADER_SIZE, Headers
from kbroker.share_partition.dead_letters import Letter

log = logging.getLogger(__name__)

TOPIC_NAME: Final = "errors.deadletterqueue.topic.name"
"""The group config with the name of the group's dead letter topic."""
COPIES: Final = "errors.deadletterqueue.copy.record.enable"
ENABLE: Final = "errors.deadletterqueue.group.enable"
"""The topic config that allows dead letters in the topic."""
_PREFIX: Final = "errors.deadletterqueue.topic.name.prefix"
_AUTO_CREATE: Final = "errors.deadletterqueue.auto.create.topics.enable"
_NEW_TOPIC: Final = {ENABLE: "true", "message.timestamp.type": "CreateTime"}
_TRIES: Final = 5
_PAUSE_MS, _MOST_PAUSE_MS, _JITTER = 1000, 30_000, 0.2
_AT_ONCE, _AT_ONCE_EACH = 16, 4
"""The maximum number of batches of dead letters in memory: in total, and for one leader."""
_BATCH_BYTES: Final = 1 << 20
"""The maximum size of a batch in bytes.

Only a batch with a single, larger dead letter may exceed this size, up to the topic's limit.
"""
_NUMBERS: Final = 5
"""The maximum number of bytes of a record's attributes, timestamp delta and offset delta in a batch."""
PASSING: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Errors after which the same request may succeed later."""
_OF_THE_BATCH: Final = frozenset(
    {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_RECORD}
)
"""Errors of one batch that do not affect other dead letters."""


class _Refused(Exception):  # noqa: N818 - an outcome
    """The dead letters cannot be written."""


class _Passing(Exception):  # noqa: N818 - an outcome
    """The dead letters cannot be written now. A later try may succeed."""


class _One(NamedTuple):
    """A dead letter about one record."""

    offset: int
    delivery_count: int
    cause: str


class Counts:
    """The counts of one group: Kafka's meters of ShareGroupMetrics."""

    __slots__ = ("failed", "records", "requests")

    def __init__(self) -> None:
        self.records = 0
        self.requests = 0
        self.failed = 0


async def _pause(ms: float) -> None:
    await asyncio.sleep(ms / 1000)


class DeadLetterWriter:
    """Implements `DeadLetters` for a broker's share groups. `pause` waits for a number of ms."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        own: OwnProduce,
        clock: Clock,
        pause: Callable[[float], Awaitable[None]] = _pause,
        remote: Callable[[Partition, int, int], Awaitable[LogSlice | bytes]] | None = None,
    ) -> None:
        """`remote` reads batches of a partition in remote storage (log/record_copy.py)."""
        self._config = config
        self._metadata = metadata
        self._own = own
        self._clock = clock
        self._pause = pause
        self._remote = remote
        self._places = Places(_AT_ONCE, _AT_ONCE_EACH)
        self._counts: dict[str, Counts] = {}

    def counts(self) -> Mapping[str, Counts]:
        """Return the counts of dead letters and batches by group, for groups that still have configs."""
        known = self._metadata.state.group_configs
        for group in [each for each in self._counts if each not in known]:
            del self._counts[group]
        return self._counts

    async def write(self, group: str, partition: Partition, letters: Sequence[Letter]) -> None:
        left = sorted(
            _One(offset, letter.delivery_count, letter.cause)
            for letter in letters
            for offset in range(letter.first_offset, letter.last_offset + 1)
        )
        tries = 0
        try:
            while left:
                try:
                    del left[: await self._write_some(group, partition, left)]
                    tries = 0
                except _Passing as why:
                    tries += 1
                    if tries >= _TRIES:
                        raise _Refused(f"{why}, after {tries} tries") from why
                    await self._pause(_pause_after(tries))
        except _Refused as why:
            _log_lost(group, partition, left, str(why))
        except Exception:
            log.exception("dead letters of group %s about %s are given up", group, partition.key)

    async def _write_some(self, group: str, partition: Partition, left: Sequence[_One]) -> int:
        """Write the first batch of dead letters. Return the number of handled dead letters."""
        topic = await self._existing(self._topic_name(group))
        index = partition.index % len(topic.partitions)
        most = int(topic.configs.get("max.message.bytes") or self._config.get_int("message.max.bytes"))
        async with self._places.place(self._own.leader_of(topic.name, index)):
            batch, number = await self._batch(group, partition, left, most)
            counts = self._counts.setdefault(group, Counts())
            counts.requests += 1
            outcome = await self._own.produce(topic.name, index, batch)
            del batch
        code = await awaited(outcome)
        if code == ErrorCode.NONE:
            counts.records += number
            return number
        counts.failed += 1
        text = f"{code.name} from {topic.name}-{index}"
        if code in PASSING:
            raise _Passing(text)
        if code not in _OF_THE_BATCH:
            raise _Refused(text)
        _log_lost(group, partition, left[:number], text)
        return number

    # -- the topic

    def _topic_name(self, group: str) -> str:
        """Return the name of a group's topic. Raises _Refused if Kafka would not write to it (validateDlqTopic)."""
        state = self._metadata.state
        name = state.group_configs.get(group, {}).get(TOPIC_NAME, "").strip()
        if not name:
            raise _Refused("the group has no dead letter topic")
        if name.startswith("__"):
            raise _Refused(f"{name} is no name for a dead letter topic")
        topic = state.topics.get(name)
        if topic is not None and not _is_true(topic.configs, ENABLE):
            raise _Refused(f"the topic {name} does not have {ENABLE}=true")
        if topic is None and not self._config.get_bool(_AUTO_CREATE):
            raise _Refused(f"the topic {name} does not exist, and {_AUTO_CREATE} is false")
        prefix = self._config.get_str(_PREFIX)
        if not name.startswith(prefix):
            raise _Refused(f"the topic's name {name} does not begin with {_PREFIX}={prefix}")
        return name

    async def _existing(self, name: str) -> TopicState:
        """Return a topic, after creating it if it is missing."""
        metadata = self._metadata
        topic = metadata.state.topics.get(name)
        if topic is None:
            try:
                metadata.check_new_name(name)
                plan = metadata.plan_topic(name, -1, -1, None, _NEW_TOPIC)
                refused = await metadata.put_in_pieces([plan])
                if name in refused:
                    raise refused[name]
                if (published := metadata.published()) is not None:
                    await published
            except ApiError as err:
                text = f"the topic {name} cannot be created: {err.code.name}"
                raise (_Passing if err.code in PASSING else _Refused)(text) from err
            except OSError as err:
                raise _Passing(f"the topic {name} cannot be created: {err}") from err
            topic = metadata.state.topics.get(name)
        if topic is None or not topic.partitions:
            raise _Passing(f"the topic {name} is not known yet")
        return topic

    # -- the letters

    async def _batch(self, group: str, partition: Partition, left: Sequence[_One], most: int) -> tuple[memoryview, int]:
        """Return a batch of the first dead letters, and their number.

        The batch has at most `most` bytes. Only a single dead letter may be larger; it then has no copy of its record.
        """
        copies = Copies({}, left[-1].offset + 1)
        if _is_true(self._metadata.state.group_configs.get(group, {}), COPIES):
            remote = None if self._remote is None else partial(self._remote, partition)
            offsets = [one.offset for one in left]
            copies = await copied(partition.log, offsets, most, min(most, _BATCH_BYTES), remote)
        now_ms = self._clock.now_ms()
        records: list[LargeRecord] = []
        size = HEADER_SIZE
        for one in left:
            if one.offset >= copies.end:
                break
            headers = _headers(group, partition, one)
            record = _record(now_ms, copies.found.get(one.offset), headers)
            own_size = _size_of(record)
            if HEADER_SIZE + own_size > most:
                record = _record(now_ms, None, headers)
                own_size = _size_of(record)
            if records and size + own_size > min(most, _BATCH_BYTES):
                break
            records.append(record)
            size += own_size
            await turn
        return await build_in_turns(records), len(records)


def _record(now_ms: int, copy: Copy | None, headers: Headers) -> LargeRecord:
    key, value = copy or (None, None)
    return now_ms, key, value, headers


def _size_of(record: LargeRecord) -> int:
    """Return the maximum size in bytes of a record in a batch."""
    _, key, value, headers = record
    size = _NUMBERS + _size_of_bytes(key) + _size_of_bytes(value) + _size_of_number(len(headers))
    for name, content in headers:
        size += _size_of_bytes(name.encode()) + _size_of_bytes(content)
    return size + _size_of_number(size)


def _size_of_bytes(content: Field | bytearray | None) -> int:
    return 1 if content is None else _size_of_number(len(content)) + len(content)


def _size_of_number(value: int) -> int:
    """Return the size in bytes of an encoded number >= 0. One bit is the sign; each byte contains seven bits."""
    return (value.bit_length() + 7) // 7


def _headers(group: str, partition: Partition, one: _One) -> Headers:
    return (
        ("__dlq.errors.topic", partition.topic.encode()),
        ("__dlq.errors.partition", b"%d" % partition.index),
        ("__dlq.errors.offset", b"%d" % one.offset),
        ("__dlq.errors.group", group.encode()),
        ("__dlq.errors.delivery.count", b"%d" % one.delivery_count),
        ("__dlq.errors.message", one.cause.encode()),
    )


def _is_true(configs: Mapping[str, str], name: str) -> bool:
    return configs.get(name, "").strip().lower() == "true"


def _pause_after(tries: int) -> float:
    """Return the time in ms to wait after this number of failed tries."""
    pause_ms = min(_PAUSE_MS * 2.0**tries, _MOST_PAUSE_MS)
    return pause_ms * random.uniform(1 - _JITTER, 1 + _JITTER)


def _log_lost(group: str, partition: Partition, lost: Sequence[_One], why: str) -> None:
    if lost:
        what = f"{len(lost)} records of {partition.topic}-{partition.index} from offset {lost[0].offset} on"
        log.error("group %s gives up %s without dead letters: %s", group, what, why)
