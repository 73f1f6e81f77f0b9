"""The topics of an embedded broker as Python values: reads and writes their records without a client.

Owns a test's view of a topic. Each access sends a request to the broker; nothing is cached.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Never

from kbroker.changes import TOPIC_DELETE
from kbroker.cluster_state import TopicState
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kbroker.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kbroker.protocol.records import BatchHeader, build_batch, iter_batches, read_marker, read_records
from kbroker.testing.asking import EARLIEST, Asking
from kbroker.testing.changes import Changeable
from kbroker.testing.missing import check, listing, topic_state, visible
from kbroker.testing.numbers import check_whole

_BYTES = 64 * 1024 * 1024
_PIECE = 1024 * 1024
_TIMEOUT_MS = 10_000
_OF_CREATE: Final = ("name=", "partitions=", "config=", "replication_factor=")
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"
Headers = Sequence[tuple[str, bytes | str | None]]


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as it is stored in a partition. `timestamp` is in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    producer_id: int
    """The id of the producer, or -1 if there is none."""
    transaction: str | None
    """The state of the record's transaction: "open", "committed" or "aborted". None outside of a transaction."""

    @property
    def text(self) -> str:
        """The value, decoded from UTF-8."""
        return (self.value or b"").decode()


class Topic(Changeable):
    """One topic. If it has been deleted, each access raises KeyError with the names of the existing topics."""

    def __init__(self, name: str, asking: Asking) -> None:
        super().__init__(name, asking)
        self.name = name

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"

    @property
    def _now(self) -> TopicState:
        return topic_state(self.name, self._asking.state)

    @property
    def partitions(self) -> int:
        """The number of the topic's partitions."""
        return len(self._now.partitions)

    def leader(self, partition: int = 0) -> int | None:
        """Return the id of a partition's leader, according to the controller; None if there is no leader.

        Raises ApiError for a partition that does not exist.
        """
        return self._asking.leader_of(self.name, partition)

    @property
    def configs(self) -> Mapping[str, str]:
        """The configs that are set for the topic."""
        return dict(self._now.configs)

    def records(
        self,
        partition: int | None = None,
        *,
        isolation: str = "read_uncommitted",
        start: int = 0,
        count: int | None = None,
    ) -> list[StoredRecord]:
        """Return the records of one partition, or of all partitions one after another, in order of offset.

        With "read_committed", records of open and aborted transactions are omitted, as for a consumer. Each partition
        is read from the offset `start` on. At most `count` records of each partition are read, including the omitted
        records. Records that are younger than the topic's `delivery.delay.ms` are not returned.
        """
        if isolation not in ("read_uncommitted", "read_committed"):
            raise ValueError(f"isolation is read_uncommitted or read_committed, not {isolation!r}")
        check_whole("start", start, 0)
        for name, number in (("partition", partition), ("count", count)):
            if number is not None:
                check_whole(name, number, 0)
        wanted = range(self.partitions) if partition is None else [partition]
        found = [each for index in wanted for each in self._records(index, start, count)]
        return (
            found
            if isolation == "read_uncommitted"
            else [each for each in found if each.transaction in (None, COMMITTED)]
        )

    def values(self, partition: int | None = None) -> list[bytes | None]:
        """Return the values of `records`, but only those that a consumer with read_committed receives."""
        return [each.value for each in self.records(partition, isolation="read_committed")]

    def produce(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> StoredRecord:
        """Append one record, and return it. Raises ApiError if the broker refuses the record.

        Without `partition`, the key selects the partition; without a key, it is partition 0. `timestamp` is in ms since
        the epoch. Text is written as UTF-8. Raises TypeError for a value that is not text, bytes or None.
        """
        state = self._now
        if partition is not None:
            check_whole("partition", partition, 0)
        if timestamp is not None:
            check_whole("timestamp", timestamp, -1)
        data, name = _bytes("value", value), _bytes("key", key)
        encoded = tuple((each, _bytes(f"value of header {each!r}", text)) for each, text in headers)
        index = partition if partition is not None else 0 if name is None else zlib.crc32(name) % len(state.partitions)
        stamp = timestamp if timestamp is not None else self._asking.now_ms()
        batch = build_batch([(stamp, name, data, encoded)])
        wanted = TopicProduceData(
            name=self.name, topic_id=state.topic_id, partition_data=[PartitionProduceData(index, memoryview(batch))]
        )
        request = ProduceRequest(acks=-1, timeout_ms=_TIMEOUT_MS, topic_data=[wanted])
        answer = self._asking.ask_leader(
            self.name,
            index,
            request,
            ProduceResponse,
            lambda found: found.responses[0].partition_responses[0].error_code,
        )
        (done,) = answer.responses[0].partition_responses
        check(done.error_code, self._about(index), done.error_message)
        if done.log_append_time_ms >= 0:
            stamp = done.log_append_time_ms
        return StoredRecord(self.name, index, done.base_offset, stamp, name, data, encoded, -1, None)

    def delete(self) -> None:
        """Delete the topic."""
        self.change(TOPIC_DELETE)

    def _about(self, index: int) -> str:
        there = self.partitions
        return f"partition {index} of topic {self.name}{'' if 0 <= index < there else f', which has {there}'}"

    def _records(self, index: int, start: int = 0, count: int | None = None) -> Iterator[StoredRecord]:
        """Read a partition to its high watermark, or `count` records, with the outcome of each transaction."""
        given = self._with_outcomes(index, start, count)
        return given if count is None else islice(given, count)

    def _with_outcomes(self, index: int, start: int, count: int | None) -> Iterator[StoredRecord]:
        batches = list(self._batches(index, start) if count is None else self._some_batches(index, start, count))
        outcomes = _outcomes(batches)
        source = self._now.source
        if source is not None and any(header.is_transactional for header, _ in batches):
            outcomes = self._outcomes_in_source(batches, Topic(source, self._asking), index)
        for number, (header, data) in enumerate(batches):
            if header.is_control:
                continue
            outcome = outcomes[number] if header.is_transactional else None
            for each in read_records(data, max_bytes=_BYTES):
                if each.offset >= start:
                    yield StoredRecord(
                        self.name,
                        index,
                        each.offset,
                        each.timestamp,
                        each.key,
                        each.value,
                        tuple(each.headers),
                        header.producer_id,
                        outcome,
                    )

    def _outcomes_in_source(
        self, batches: Sequence[tuple[BatchHeader, memoryview]], source: Topic, index: int
    ) -> dict[int, str]:
        """Return the outcomes of a view's batches. The view itself does not show how its last transactions ended."""
        there = list(source._batches(index, 0))
        by_offset = {there[number][0].base_offset: outcome for number, outcome in _outcomes(there).items()}
        return {
            number: by_offset.get(header.base_offset, OPEN)
            for number, (header, _) in enumerate(batches)
            if header.is_transactional
        }

    def _some_batches(self, index: int, start: int, count: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Read batches that contain `count` records, then only the control batches that end their transactions."""
        there, ended, under_way = 0, False, set[int]()
        for header, data in self._batches(index, start, _PIECE):
            if ended and not header.is_control:
                continue
            yield header, memoryview(bytes(data))  # a copy, so that the large piece can be freed
            if header.is_control:
                under_way.discard(header.producer_id)
            elif header.is_transactional:
                under_way.add(header.producer_id)
            there += header.record_count if header.base_offset >= start and not header.is_control else 0
            ended = ended or there >= count
            if ended and not under_way:
                return

    def _batches(self, index: int, start: int, piece: int = _BYTES) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Read batches, `piece` bytes at a time."""
        (earliest,) = self._asking.offsets_at([(self.name, index)], EARLIEST, self._about(index)).values()
        offset = max(start, earliest)
        while True:
            wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=piece)
            request = FetchRequest(
                max_bytes=piece, topics=[FetchTopic(topic_id=self._now.topic_id, partitions=[wanted])]
            )
            answer = self._asking.ask_leader(
                self.name, index, request, FetchResponse, lambda found: found.responses[0].partitions[0].error_code
            )
            (found,) = answer.responses[0].partitions
            if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and start > earliest:
                return  # the offset is beyond the end of the partition
            check(found.error_code, self._about(index))
            data = memoryview(found.records.view() if hasattr(found.records, "view") else found.records or b"")
            for position, header in iter_batches(data):
                yield header, data[position : position + header.size]
                offset = header.last_offset + 1
            if offset >= found.high_watermark:
                return


def _outcomes(batches: Sequence[tuple[BatchHeader, memoryview]]) -> dict[int, str]:
    """Return the outcome of each transactional batch, by its number."""
    found: dict[int, str] = {}
    under_way: dict[int, list[int]] = {}
    for number, (header, data) in enumerate(batches):
        if header.is_control:
            marker = read_marker(data)
            for each in under_way.pop(header.producer_id, []) if marker is not None else []:
                found[each] = COMMITTED if marker is not None and marker.commit else ABORTED
        elif header.is_transactional:
            found[number] = OPEN
            under_way.setdefault(header.producer_id, []).append(number)
    return found


class Topics(Mapping[str, Topic]):
    """The topics by name, without internal topics. An unknown name raises KeyError with the existing names."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    def __getitem__(self, name: str) -> Topic:
        topic_state(name, self._asking.state)
        return Topic(name, self._asking)

    def __repr__(self) -> str:
        return listing("Topics", self)

    def __iter__(self) -> Iterator[str]:
        return iter(visible(self._asking.state))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def create(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
        *,
        replication_factor: int | None = None,
        **wrong: Never,
    ) -> Topic:
        """Create a topic with Kafka's topic configs. Raises ApiError if this fails, for instance if the topic exists.

        Without `replication_factor`, the topic has one replica; in a cluster, `default.replication.factor` applies.
        """
        if wrong:
            raise TypeError(f"a topic is created with {', '.join(_OF_CREATE)}, not with {', '.join(wrong)}")
        if not isinstance(name, str):
            raise TypeError(f"the name of a topic must be a str, not {name!r}")
        check_whole("partitions", partitions)
        given = [CreatableTopicConfig(key, str(value)) for key, value in (config or {}).items()]
        copies = self._asking.replication_factor if replication_factor is None else replication_factor
        check_whole("replication_factor", copies)
        wanted = CreatableTopic(name, num_partitions=partitions, replication_factor=copies, configs=given)
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=_TIMEOUT_MS)
        (done,) = self._asking.ask_controller(
            request, CreateTopicsResponse, lambda found: found.topics[0].error_code
        ).topics
        check(done.error_code, f"topic {name}", done.error_message)
        self._asking.wait_for_partitions([name], partitions)
        return self[name]


def _bytes(what: str, value: object) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"the {what} of a record is str, bytes or None, not {type(value).__name__}: {value!r}")
