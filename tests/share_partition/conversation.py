"""A member of a share group that sends its requests over the wire, to a broker whose share state is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges.produce import batch
from kbroker import Broker
from kbroker.controller.features import SHARE_VERSION
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from kbroker.protocol.messages.share_fetch import (
    AcknowledgementBatch as FetchedBatch,
)
from kbroker.protocol.messages.share_fetch import (
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ShareFetchRequest,
)
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from kbroker.protocol.records import iter_batches
from kbroker.share_partition.dead_letters import DeadLetters
from kbroker.share_partition.delivery import ShareDelivery

from .memory import MemoryPersister, Settings

GROUP = "workers"
Ack = tuple[int, int, list[int]]
T = TypeVar("T")


class Served:
    """A broker that serves share partitions."""

    def __init__(
        self, broker: Broker, persister: MemoryPersister | None = None, letters: DeadLetters | None = None
    ) -> None:
        self.broker = broker
        self.persister = persister or MemoryPersister()
        self.settings = Settings()
        node = broker.node
        letters = letters or node.dead_letters
        self.share = ShareDelivery(node.replicas.leader, self.persister, letters, self.settings, node.clock, 2_000)
        node.services.share = self.share
        self.set_feature(2)
        self.topics: dict[str, bytes] = {}

    def set_feature(self, level: int) -> None:
        """Set share.version."""

        async def change() -> None:
            controller = self.broker.node.controller
            controller.replace_features({**controller.state.features, SHARE_VERSION: level})
            if (published := controller.published()) is not None:
                await published

        self.on_loop(change)

    def topic(self, name: str, partitions: int = 1, **configs: str) -> bytes:
        with WireClient(self.broker.bootstrap_servers) as client:
            answer = client.ask(CreateTopicsRequest([CreatableTopic(name, partitions, 1)], 10_000), 7)
        assert answer.topics[0].error_code == 0
        self.topics[name] = answer.topics[0].topic_id
        return self.topics[name]

    def produce(self, topic: str, *counts: int, index: int = 0, **options: Any) -> None:
        """Append a batch for each number in `counts`, with this number of records."""
        with WireClient(self.broker.bootstrap_servers) as client:
            for count in counts:
                data = TopicProduceData(
                    name=topic, partition_data=[PartitionProduceData(index, batch(count, **options))]
                )
                answer = client.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data]), 9)
                assert answer.responses[0].partition_responses[0].error_code == 0

    def on_loop(self, work: Callable[[], Coroutine[Any, Any, T]] | Callable[[], T]) -> T:
        """Run `work` on the broker's loop, and return its result."""

        async def there() -> T:
            found = work()
            return await found if asyncio.iscoroutine(found) else found  # type: ignore[return-value]

        return asyncio.run_coroutine_threadsafe(there(), self.broker.node._loop).result(20)

    def until(self, holds: Callable[[], object]) -> None:
        """Wait until `holds()` is true on the broker's loop."""

        async def waits() -> None:
            for _ in range(4000):
                if holds():
                    return
                await asyncio.sleep(0.005)
            raise AssertionError("it never holds")

        self.on_loop(waits)

    def in_flight(self, topic: str, index: int = 0, group: str = GROUP) -> int:
        hosted = self.share.get(group, self.topics[topic], index)
        return -1 if hosted is None or hosted.state is None else hosted.state.in_flight


class Member:
    """One member, with its own connection and share session."""

    def __init__(self, served: Served, name: str = "m1", group: str = GROUP, version: int = 2) -> None:
        self.served = served
        self.name = name
        self.group = group
        self.version = version
        self.epoch = 0
        self.client = WireClient(served.broker.bootstrap_servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def fetching(
        self,
        *topics: tuple[str, int],
        acks: dict[tuple[str, int], list[Ack]] | None = None,
        forget: tuple[tuple[str, int], ...] = (),
        wait_ms: int = 0,
        records: int = 500,
        batch_size: int = 500,
        limit: bool = False,
        renew: bool = False,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        epoch: int | None = None,
    ) -> ShareFetchRequest:
        wanted: dict[bytes, dict[int, list[Ack]]] = {}
        for topic, index in topics:
            wanted.setdefault(self.served.topics[topic], {})[index] = []
        for (topic, index), batches in (acks or {}).items():
            wanted.setdefault(self.served.topics[topic], {})[index] = batches
        return ShareFetchRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch,
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_records=records,
            batch_size=batch_size,
            share_acquire_mode=int(limit),
            is_renew_ack=renew,
            topics=[
                FetchTopic(
                    topic, [FetchPartition(at, [FetchedBatch(*each) for each in batches]) for at, batches in of.items()]
                )
                for topic, of in wanted.items()
            ],
            forgotten_topics_data=[ForgottenTopic(self.served.topics[topic], [index]) for topic, index in forget],
        )

    def fetch(self, *topics: tuple[str, int], **how: Any) -> Any:
        """Send a ShareFetch and return the answer; increment the session epoch if there was no error."""
        request = self.fetching(*topics, **how)
        answer = self.client.ask(request, self.version)
        if not answer.error_code and how.get("epoch") is None:
            self.epoch += 1
        return answer

    def start(self, *topics: tuple[str, int], **how: Any) -> None:
        """Send a ShareFetch without waiting; `finish` receives the answer."""
        self.client.start(self.fetching(*topics, **how), self.version)
        self.epoch += 1

    def finish(self) -> Any:
        return self.client.finish()

    def acks_of(self, acks: dict[tuple[str, int], list[Ack]]) -> list[AcknowledgeTopic]:
        topics: dict[bytes, list[AcknowledgePartition]] = {}
        for (topic, index), batches in acks.items():
            partition = AcknowledgePartition(index, [AcknowledgementBatch(*each) for each in batches])
            topics.setdefault(self.served.topics[topic], []).append(partition)
        return [AcknowledgeTopic(topic, partitions) for topic, partitions in topics.items()]

    def acknowledge(
        self, acks: dict[tuple[str, int], list[Ack]], *, renew: bool = False, epoch: int | None = None
    ) -> Any:
        request = ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch,
            is_renew_ack=renew,
            topics=self.acks_of(acks),
        )
        answer = self.client.ask(request, self.version)
        if not answer.error_code and epoch is None:
            self.epoch += 1
        return answer


def partition_of(answer: Any) -> PartitionData:
    """Return the only partition of an answer."""
    assert answer.error_code == 0
    [topic] = answer.responses
    [partition] = topic.partitions
    return partition


def acquired(answer: Any) -> list[tuple[int, int, int]]:
    """Return the acquired records of the only partition of an answer; [] if the answer names no topic."""
    assert answer.error_code == 0, answer
    if not answer.responses:
        return []
    partition = partition_of(answer)
    assert partition.error_code == 0
    return [(each.first_offset, each.last_offset, each.delivery_count) for each in partition.acquired_records]


def offsets(answer: Any) -> list[tuple[int, int]]:
    """Return the first and last offset of each batch in the only partition of an answer."""
    records = partition_of(answer).records
    return [(header.base_offset, header.last_offset) for _, header in iter_batches(records or b"")]
