"""A transactional producer and a consumer that send single messages, so that tests reach every version and error."""

from __future__ import annotations

import time
import uuid
from typing import Any

from compat_tests.wire.client import WireClient
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from kbroker.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kbroker.protocol.records import build_batch, iter_batches, read_marker, read_records
from kbroker.txn.shard import Identity

PATIENCE_S = 60
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
_NOT_YET = (CONCURRENT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)


def until(what: str, happened: Any) -> Any:
    """Wait until `happened()` is true; return its result."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = happened()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{what} did not happen in {PATIENCE_S} s")


class Visible:
    """The part of a partition that a consumer sees."""

    def __init__(self, values: list[bytes], high_watermark: int, stable: int, aborted: list[tuple[int, int]]) -> None:
        self.values = values
        self.high_watermark = high_watermark
        self.stable = stable
        self.aborted = aborted


class Raw:
    """One connection. `generation` 2 acts like Java's producer with transaction.version 2, 1 like an older producer."""

    def __init__(self, address: str, generation: int = 1) -> None:
        self.wire = WireClient(address)
        self.generation = generation

    def close(self) -> None:
        self.wire.close()

    def ask(self, request: Any, version: int) -> Any:
        return self.wire.ask(request, version)

    # -- a producer

    def topic(self, partitions: int = 1) -> str:
        """Create a topic with a unique name."""
        name = f"t-{uuid.uuid4().hex[:12]}"
        asked = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        (made,) = self.ask(CreateTopicsRequest(topics=[asked], timeout_ms=20_000), 5).topics
        assert made.error_code == 0
        for index in range(partitions):
            until("a leader", lambda index=index: self._fetch(name, 0, index, 1, committed=False).error_code == 0)
        return name

    def find(self, name: str) -> None:
        """Let the broker create and load the transaction coordinator's topic."""
        asked = FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
        until("a coordinator", lambda: self.ask(asked, 4).coordinators[0].error_code == 0)

    def init_once(self, name: str, version: int = 4, timeout_ms: int = 60_000, expected: Identity | None = None) -> Any:
        """Send one InitProducerId; return the producer's identity, or an error code."""
        known = {} if expected is None else {"producer_id": expected.producer_id, "producer_epoch": expected.epoch}
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms, **known)
        answer = self.ask(request, version)
        if answer.error_code:
            return ErrorCode(answer.error_code)
        return Identity(answer.producer_id, answer.producer_epoch)

    def init(self, name: str, **options: Any) -> Identity:
        """Return a producer's identity; repeat the request until the coordinator returns one."""
        self.find(name)
        return until("an epoch", lambda: self._settled(self.init_once(name, **options)))

    def _settled(self, answer: Any) -> Any:
        if answer in _NOT_YET:
            return None
        assert isinstance(answer, Identity), answer
        return answer

    def add(self, name: str, producer: Identity, topic: str, *indexes: int, version: int = 3) -> ErrorCode:
        """Add partitions to a transaction (up to version 3)."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(topic, list(indexes))],
        )
        results = self.ask(request, version).results_by_topic_v3_and_below
        (code,) = {p.partition_error_code for t in results for p in t.results_by_partition}
        return ErrorCode(code)

    def produce(
        self,
        name: str | None,
        producer: Identity,
        topic: str,
        values: list[bytes],
        *,
        sequence: int = 0,
        index: int = 0,
        version: int | None = None,
        transactional: bool = True,
    ) -> Any:
        """Produce one batch; return its base offset, or an error code."""
        now = time.time_ns() // 1_000_000
        batch = build_batch(
            [(now, None, value, ()) for value in values],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        request = ProduceRequest(
            transactional_id=name,
            acks=-1,
            timeout_ms=20_000,
            topic_data=[TopicProduceData(name=topic, partition_data=[PartitionProduceData(index, batch)])],
        )
        answer = self.ask(request, version or (12 if self.generation == 2 else 11))
        (got,) = answer.responses[0].partition_responses
        self.message = got.error_message
        return ErrorCode(got.error_code) if got.error_code else got.base_offset

    def write(self, name: str, producer: Identity, topic: str, values: list[bytes], **options: Any) -> None:
        """Produce as part of a transaction; this must succeed."""
        index = options.get("index", 0)
        if self.generation == 1:
            (added,) = until("adding", lambda: _some(self.add(name, producer, topic, index)))
            assert added is ErrorCode.NONE
        (got,) = until("producing", lambda: _some(self.produce(name, producer, topic, values, **options)))
        assert not isinstance(got, ErrorCode), got

    def topic_id(self, topic: str) -> bytes:
        """Return a topic's id."""
        return bytes(self.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12).topics[0].topic_id)

    def offsets(
        self, name: str, producer: Identity, group: str, topic: str | bytes, offset: int, **options: Any
    ) -> ErrorCode:
        """Commit an offset as part of a transaction; the topic is given by its name or its id."""
        version = options.pop("version", 5 if self.generation == 2 else 3)
        named, topic_id = ("", topic) if isinstance(topic, bytes) else (topic, bytes(16))
        request = TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=group,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    named, topic_id, partitions=[TxnOffsetCommitRequestPartition(0, offset, committed_metadata="")]
                )
            ],
            **options,
        )
        answer = self.ask(request, version)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def find_group(self, group: str) -> None:
        """Let the broker create and load the group coordinator's topic."""
        asked = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        until("a group coordinator", lambda: self.ask(asked, 4).coordinators[0].error_code == 0)
        look = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[])])
        until("the groups", lambda: self.ask(look, 8).groups[0].error_code not in _NOT_YET)

    def add_offsets(self, name: str, producer: Identity, group: str, version: int = 3) -> ErrorCode:
        """Add a group to a transaction."""
        self.find_group(group)
        request = AddOffsetsToTxnRequest(
            transactional_id=name, producer_id=producer.producer_id, producer_epoch=producer.epoch, group_id=group
        )
        return ErrorCode(self.ask(request, version).error_code)

    def end_once(self, name: str, producer: Identity, commit: bool = True, version: int | None = None) -> Any:
        """End a transaction; return the producer's identity after it, or an error code."""
        request = EndTxnRequest(
            transactional_id=name, producer_id=producer.producer_id, producer_epoch=producer.epoch, committed=commit
        )
        answer = self.ask(request, version if version is not None else 5 if self.generation == 2 else 3)
        if answer.error_code:
            return ErrorCode(answer.error_code)
        return Identity(answer.producer_id, answer.producer_epoch) if answer.producer_id >= 0 else producer

    def end(self, name: str, producer: Identity, commit: bool = True) -> Identity:
        """End a transaction and wait for its markers."""
        after = self.end_once(name, producer, commit)
        assert isinstance(after, Identity), after
        until("the markers", lambda: self.state(name).startswith("Complete"))
        return after

    def state(self, name: str) -> str:
        (described,) = self.ask(DescribeTransactionsRequest(transactional_ids=[name]), 0).transaction_states
        return described.transaction_state if not described.error_code else ErrorCode(described.error_code).name

    def mark(
        self, producer: Identity, topic: str, commit: bool, *, coordinator_epoch: int = 0, version: int = 0
    ) -> ErrorCode:
        """Send a marker with WriteTxnMarkers, as an administrator or another coordinator would."""
        marker = WritableTxnMarker(
            producer.producer_id,
            producer.epoch,
            commit,
            [WritableTxnMarkerTopic(topic, [0])],
            coordinator_epoch,
            version,
        )
        answer = self.ask(WriteTxnMarkersRequest([marker]), 2)
        return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)

    # -- a consumer

    def position(self, group: str, topic: str, *, stable: bool = False) -> Any:
        """Return a group's committed offset, or an error code."""
        asked = OffsetFetchRequestGroup(group_id=group, topics=[OffsetFetchRequestTopics(topic, partition_indexes=[0])])
        answer = self.ask(OffsetFetchRequest(groups=[asked], require_stable=stable), 8).groups[0]
        (partition,) = answer.topics[0].partitions
        return ErrorCode(partition.error_code) if partition.error_code else partition.committed_offset

    def see(
        self, topic: str, offset: int = 0, *, committed: bool = True, index: int = 0, bytes_: int = 1 << 20
    ) -> Visible:
        """Return the data that a consumer sees from `offset` on, without aborted records, which clients also drop."""
        values: list[bytes] = []
        aborted_seen: list[tuple[int, int]] = []
        while True:
            data = self._fetch(topic, offset, index, bytes_, committed=committed)
            assert data.error_code == 0, ErrorCode(data.error_code)
            listed = sorted((a.first_offset, a.producer_id) for a in data.aborted_transactions or [])
            aborted_seen += [(pid, first) for first, pid in listed]
            end = self._take(bytes(data.records or b""), offset, listed, values)
            if end == offset:
                return Visible(values, data.high_watermark, data.last_stable_offset, aborted_seen)
            offset = end

    def _fetch(self, topic: str, offset: int, index: int, bytes_: int, *, committed: bool) -> Any:
        partition = FetchPartition(index, -1, offset, partition_max_bytes=bytes_)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=bytes_,
            isolation_level=1 if committed else 0,
            topics=[FetchTopic(topic=topic, partitions=[partition])],
        )
        (data,) = self.ask(request, 11).responses[0].partitions
        return data

    def _take(self, data: bytes, offset: int, listed: list[tuple[int, int]], values: list[bytes]) -> int:
        """Add the visible values to `values`, as KafkaConsumer does; return the offset of the next fetch."""
        open_aborts: set[int] = set()
        end = offset
        for position, header in iter_batches(data):
            batch = data[position : position + header.size]
            if len(batch) < header.size:
                break
            while listed and listed[0][0] <= header.last_offset:
                open_aborts.add(listed.pop(0)[1])
            end = max(end, header.last_offset + 1)
            if header.is_control:
                marker = read_marker(batch)
                if marker is not None and not marker.commit:
                    open_aborts.discard(header.producer_id)
                continue
            if header.is_transactional and header.producer_id in open_aborts:
                continue
            values += [r.value for r in read_records(batch, max_bytes=1 << 20) if r.offset >= offset and r.value]
        return end


def _some(answer: Any) -> Any:
    """Return an answer in a tuple; None if the request has to be repeated."""
    return None if answer is CONCURRENT or answer is ErrorCode.NOT_ENOUGH_REPLICAS else (answer,)
