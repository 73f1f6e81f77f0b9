"""Dead letter topics of share groups on a node (KIP-1191), and the delay before records are delivered again (ours)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.partition import Partition
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import IncrementalAlterConfigsRequest, IncrementalConfig, IncrementalResource
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from kbroker.protocol.records import Record, build_batch, iter_batches, read_records
from kbroker.share_partition.dead_letters import EXCEEDED, REJECTED, Letter
from kbroker.share_partition.states import RecordState

from .conversation import GROUP, Member, Served, acquired

T = ("t", 0)
DLQ = "dlq.t"
ENABLED = {"errors.deadletterqueue.group.enable": "true"}
ACCEPT, RELEASE, REJECT = 1, 2, 3
NOW = 1_700_000_000_000


@pytest.fixture
def served() -> Iterator[Served]:
    with Broker() as broker:
        made = Served(broker)
        made.topic("t")
        made.settings.now = made.settings.now._replace(dead_letters=True)
        yield made


def configure(broker: Broker, kind: int, name: str, **configs: str) -> None:
    changes = [IncrementalConfig(key.replace("_", "."), 0, value) for key, value in configs.items()]
    with WireClient(broker.bootstrap_servers) as client:
        answer = client.ask(IncrementalAlterConfigsRequest([IncrementalResource(kind, name, changes)]), 1)
    assert answer.responses[0].error_code == 0, answer


def names(broker: Broker, topic: str = DLQ, **configs: str) -> None:
    """Set the dead letter topic of the group, and other configs of the group."""
    configure(broker, 32, GROUP, errors_deadletterqueue_topic_name=topic, **configs)


def create(broker: Broker, name: str = DLQ, partitions: int = 1, **configs: str) -> None:
    wanted = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    wanted += [CreatableTopicConfig(key, value) for key, value in ENABLED.items() if "enable" not in str(configs)]
    topic = CreatableTopic(name, partitions, 1, configs=wanted)
    with WireClient(broker.bootstrap_servers) as client:
        assert client.ask(CreateTopicsRequest([topic], 10_000), 7).topics[0].error_code == 0


def records_of(served: Served, topic: str = DLQ, index: int = 0) -> list[Record]:
    """Return all records of a partition."""
    return served.on_loop(lambda: all_records(served.broker, topic, index))


def all_records(broker: Broker, topic: str, index: int) -> list[Record]:
    leader = broker.node.replicas.get((topic, index))
    if leader is None:
        return []
    view = leader.log.read(0, 1 << 24, leader.log.high_watermark, min_one=True).view()
    batches = [bytes(view[at : at + header.size]) for at, header in iter_batches(view)]
    return [record for each in batches for record in read_records(each, max_bytes=1 << 24)]


def headers(record: Record) -> dict[str, str]:
    assert all(name.startswith("__dlq.errors.") for name, _ in record.headers)
    return {name.removeprefix("__dlq.errors."): (value or b"").decode() for name, value in record.headers}


def states(served: Served) -> dict[int, tuple[int, int]]:
    return served.persister.records.get((GROUP, served.topics["t"], 0), {})


def archived(served: Served, *offsets: int) -> None:
    """Wait until the records at these offsets are stored as archived."""
    served.until(lambda: all(states(served).get(at, (0, 0))[0] == RecordState.ARCHIVED for at in offsets))


def ok(answer: Any) -> None:
    assert [each.error_code for topic in answer.responses for each in topic.partitions] == [0]


# -- what is written


def test_a_rejected_record_goes_to_the_topic(served: Served) -> None:
    create(served.broker)
    names(served.broker)
    served.produce("t", 3)
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 2, 1)]
        ok(member.acknowledge({T: [(0, 2, [ACCEPT, REJECT, ACCEPT])]}))
        archived(served, 1)
        [record] = records_of(served)
        assert list(headers(record).items()) == [
            ("topic", "t"), ("partition", "0"), ("offset", "1"), ("group", GROUP), ("delivery.count", "1"),
            ("message", REJECTED),
        ]  # fmt: skip
        assert (record.key, record.value) == (None, None), "only described, by default"
        assert served.in_flight("t") == 0
        counts = served.on_loop(lambda: served.broker.node.dead_letters.counts()[GROUP])
        assert (counts.records, counts.requests, counts.failed) == (1, 1, 0)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_keys_and_values_are_copied_on_request(served: Served, codec: int) -> None:
    create(served.broker)
    names(served.broker, errors_deadletterqueue_copy_record_enable="true")
    own = [(NOW + at, b"k%d" % at if at % 2 else None, b"v%d" % at * at if at % 3 else None, (("h", b"x"),))
           for at in range(600)]  # fmt: skip
    produce(served, build_batch(own, codec=codec))
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=5000, records=600)) == [(0, 599, 1)]
        types = [REJECT if at % 100 == 55 or at in (0, 1, 599) else ACCEPT for at in range(600)]
        ok(member.acknowledge({T: [(0, 599, types)]}))
        wanted = [at for at in range(600) if types[at] == REJECT]
        archived(served, *wanted)
        found = records_of(served)
        assert [int(headers(each)["offset"]) for each in found] == wanted
        assert [(each.key, each.value) for each in found] == [own[at][1:3] for at in wanted]


def produce(served: Served, records: bytes, topic: str = "t") -> None:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(0, records)])
    with WireClient(served.broker.bootstrap_servers) as client:
        answer = client.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data]), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_a_record_that_is_released_too_often(served: Served) -> None:
    served.settings.now = served.settings.now._replace(delivery_count=2)
    create(served.broker, partitions=2)
    names(served.broker)
    served.topic("many", 4)
    served.produce("many", 1, index=3)
    with Member(served) as member:
        for count in (1, 2):
            assert acquired(member.fetch(("many", 3), wait_ms=5000)) == [(0, 0, count)]
            ok(member.acknowledge({("many", 3): [(0, 0, [RELEASE])]}))
        served.until(lambda: served.in_flight("many", 3) == 0)
    assert records_of(served) == []
    [record] = records_of(served, index=1)
    assert (headers(record)["message"], headers(record)["delivery.count"]) == (EXCEEDED, "2"), "partition 3 modulo 2"


@pytest.mark.parametrize("ends", ["lock", "session"])
def test_the_end_of_the_last_lock_or_its_session(served: Served, ends: str) -> None:
    served.settings.now = served.settings.now._replace(delivery_count=2)
    create(served.broker)
    names(served.broker)
    served.produce("t", 1)
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 0, 1)]
        ok(member.acknowledge({T: [(0, 0, [RELEASE])]}))
        assert acquired(member.fetch(wait_ms=5000)) == [(0, 0, 2)]
        if ends == "lock":
            served.broker.clock.advance(seconds=31)
            archived(served, 0)
    archived(served, 0)
    [record] = records_of(served)
    assert (headers(record)["message"], headers(record)["delivery.count"]) == (EXCEEDED, "2")


def test_letters_are_divided_into_batches_that_the_topic_takes(served: Served) -> None:
    create(served.broker, max_message_bytes="2000")
    names(served.broker, errors_deadletterqueue_copy_record_enable="true")
    values = [b"v" * 900, b"v" * 900, b"v" * 900, b"w" * 5000, b"x" * 1900, b"y"]
    produce(served, build_batch([(NOW, None, value, ()) for value in values]))
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 5, 1)]
        ok(member.acknowledge({T: [(0, 5, [REJECT])]}))
        archived(served, *range(6))
    found = records_of(served)
    assert [int(headers(each)["offset"]) for each in found] == list(range(6)), "none is lost"
    assert [each.value for each in found] == [*values[:3], None, None, b"y"], "without a copy where it has no room"


@pytest.mark.parametrize("configs", [{"compression_type": "zstd"}, {"message_timestamp_type": "LogAppendTime"}])
def test_the_settings_of_the_topic_apply(served: Served, configs: dict[str, str]) -> None:
    create(served.broker, **configs)
    names(served.broker, errors_deadletterqueue_copy_record_enable="true")
    produce(served, build_batch([(NOW, b"k", b"v" * 50_000, ())] * 30, codec=2))
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 29, 1)]
        ok(member.acknowledge({T: [(0, 29, [REJECT])]}))
        archived(served, *range(30))
    assert [(each.key, each.value) for each in records_of(served)] == [(b"k", b"v" * 50_000)] * 30


# -- topics that do not take letters


@pytest.mark.parametrize(
    ("topic", "make"),
    [
        (DLQ, {}),  # the topic does not exist
        ("other.t", {"errors_deadletterqueue_group_enable": "true"}),  # the prefix
        (DLQ, {"errors_deadletterqueue_group_enable": "false"}),  # not allowed
        (DLQ, {"max_message_bytes": "100"}),  # too small for any dead letter
        (DLQ, {"cleanup_policy": "compact"}),  # dead letters without a key are refused
    ],
)
def test_what_no_topic_takes_is_archived(served: Served, topic: str, make: dict[str, str]) -> None:
    if make:
        create(served.broker, topic, **make)
    names(served.broker, topic)
    served.produce("t", 2)
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 1, 1)]
        ok(member.acknowledge({T: [(0, 1, [REJECT])]}))
        archived(served, 0, 1)
        assert served.in_flight("t") == 0
    assert records_of(served, topic) == []


def test_a_missing_topic_is_created_where_that_is_allowed(served: Served) -> None:
    configure(served.broker, 4, "", errors_deadletterqueue_auto_create_topics_enable="true")
    names(served.broker)
    served.produce("t", 1)
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 0, 1)]
        ok(member.acknowledge({T: [(0, 0, [REJECT])]}))
        archived(served, 0)
    assert len(records_of(served)) == 1
    configs = served.on_loop(lambda: dict(served.broker.node.metadata.state.topics[DLQ].configs))
    assert configs == {**ENABLED, "message.timestamp.type": "CreateTime"}


def test_a_topic_that_is_deleted_meanwhile(served: Served) -> None:
    create(served.broker)
    names(served.broker)
    served.produce("t", 200)
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 199, 1)]
        ok(member.acknowledge({T: [(0, 199, [REJECT])]}))
        with WireClient(served.broker.bootstrap_servers) as client:
            gone = DeleteTopicsRequest([DeleteTopicState(DLQ)], timeout_ms=10_000)
            assert client.ask(gone, 6).responses[0].error_code == 0
        archived(served, *range(200))
        assert served.in_flight("t") == 0


# -- writes that fail, and restarts


class Held:
    """A writer of dead letters whose writes wait for the event `may`, if it is set."""

    def __init__(self) -> None:
        self.written: list[Letter] = []
        self.may: asyncio.Event | None = None

    async def write(self, _group: str, _partition: Partition, letters: Sequence[Letter]) -> None:
        self.written += letters
        if self.may is not None:
            await self.may.wait()


def test_a_write_that_fails_before_the_letter_gives_the_record_back() -> None:
    with Broker() as broker:
        writer = Held()
        served = Served(broker, letters=writer)
        served.settings.now = served.settings.now._replace(dead_letters=True)
        served.topic("t")
        served.produce("t", 1)
        with Member(served) as member:
            assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 0, 1)]
            served.persister.errors.append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            answer = member.acknowledge({T: [(0, 0, [REJECT])]})
            assert answer.responses[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert writer.written == [], "no letter about what its member still has"
            ok(member.acknowledge({T: [(0, 0, [ACCEPT])]}))
            assert states(served) == {0: (RecordState.ACKNOWLEDGED, 1)}


def test_a_letter_is_written_again_if_it_is_not_known_to_be() -> None:
    """The write of `archived` fails with a fenced epoch: the state is read again, and the dead letter written again."""
    with Broker() as broker:
        writer = Held()
        served = Served(broker, letters=writer)
        served.settings.now = served.settings.now._replace(dead_letters=True)
        served.topic("t")
        served.produce("t", 2)
        writer.may = served.on_loop(asyncio.Event)
        with Member(served) as member:
            assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 1, 1)]
            ok(member.acknowledge({T: [(0, 0, [REJECT])]}))
            served.until(lambda: writer.written)
            assert states(served) == {0: (RecordState.ARCHIVING, 1)}, "stored before the letter is written"
            refused = member.acknowledge({T: [(0, 0, [ACCEPT])]})
            assert refused.responses[0].partitions[0].error_code == ErrorCode.INVALID_RECORD_STATE
            served.persister.errors.append(ErrorCode.FENCED_STATE_EPOCH)
            served.on_loop(writer.may.set)
            served.until(lambda: len(served.share) == 0)
            assert states(served) == {0: (RecordState.ARCHIVING, 1)}
        with Member(served, "m2") as member:
            assert acquired(member.fetch(T, wait_ms=5000)) == [(1, 1, 1)], "what nobody has acknowledged"
            archived(served, 0)
        assert writer.written == [Letter(0, 0, 1, REJECTED)] * 2


def test_a_note_that_could_not_be_stored_is_part_of_the_next_one() -> None:
    """The write of `archived` fails with another error: the record stays done, as in Kafka; the next write has it."""
    with Broker() as broker:
        writer = Held()
        served = Served(broker, letters=writer)
        served.settings.now = served.settings.now._replace(dead_letters=True)
        served.topic("t")
        served.produce("t", 2)
        writer.may = served.on_loop(asyncio.Event)
        with Member(served) as member:
            assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 1, 1)]
            ok(member.acknowledge({T: [(0, 0, [REJECT])]}))
            served.until(lambda: writer.written)
            served.persister.errors.append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            served.on_loop(writer.may.set)
            served.until(lambda: served.in_flight("t") == 1)
            served.until(lambda: not served.persister.errors)
            assert states(served) == {0: (RecordState.ARCHIVING, 1)}
            ok(member.acknowledge({T: [(1, 1, [ACCEPT])]}))
            assert served.persister.starts[GROUP, served.topics["t"], 0] == 1
        served.until(lambda: len(served.share) == 0)
        with Member(served, "m2") as member:
            assert acquired(member.fetch(T)) == []
        assert writer.written == [Letter(0, 0, 1, REJECTED)]


def test_letters_keep_a_share_partition_in_use() -> None:
    with Broker() as broker:
        writer = Held()
        served = Served(broker, letters=writer)
        served.settings.now = served.settings.now._replace(dead_letters=True)
        served.topic("t")
        served.produce("t", 1)
        writer.may = served.on_loop(asyncio.Event)
        with Member(served) as member:
            assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 0, 1)]
            ok(member.acknowledge({T: [(0, 0, [REJECT])]}))
            served.until(lambda: writer.written)
        served.until(lambda: not len(served.share.sessions))
        assert served.in_flight("t") == 1
        served.on_loop(writer.may.set)
        served.until(lambda: len(served.share) == 0)
        assert states(served) == {0: (RecordState.ARCHIVED, 1)}


# -- a client


def test_a_share_consumer_rejects() -> None:
    quick = {"group.share.min.heartbeat.interval.ms": "100", "group.share.heartbeat.interval.ms": "200"}
    with Broker(config=quick) as broker:
        create(broker, "jobs")
        create(broker)
        names(broker, errors_deadletterqueue_copy_record_enable="true", share_auto_offset_reset="earliest")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("jobs", b"bad", b"key")
        assert producer.flush(10) == 0
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": GROUP, "log_level": 0}
        consumer = ShareConsumer({**settings, "share.acknowledgement.mode": "explicit"})
        consumer.subscribe(["jobs"])
        got: list[Any] = []
        deadline = time.monotonic() + 20
        while not got and time.monotonic() < deadline:
            got += consumer.poll(0.2)
        consumer.acknowledge(got[0], AcknowledgeType.REJECT)
        consumer.commit_sync(10.0)
        consumer.close()

        def written(broker: Broker) -> list[Record]:
            async def read() -> list[Record]:
                return all_records(broker, DLQ, 0)

            return asyncio.run_coroutine_threadsafe(read(), broker.node._loop).result(10)

        [record] = broker.wait_for(written)
        assert (record.key, record.value) == (b"key", b"bad")
        assert headers(record)["topic"] == "jobs"


# -- delays


def test_a_released_record_comes_later(served: Served) -> None:
    served.settings.now = served.settings.now._replace(backoff_ms=10_000, backoff_max_ms=15_000)
    served.produce("t", 1)
    served.produce("t", 1)
    with Member(served) as member, Member(served, "m2") as other:
        assert acquired(member.fetch(T, wait_ms=5000, records=1, limit=True)) == [(0, 0, 1)]
        ok(member.acknowledge({T: [(0, 0, [RELEASE])]}))
        assert acquired(other.fetch(T, wait_ms=5000)) == [(1, 1, 1)], "meanwhile a fetch goes on to later records"
        member.start(wait_ms=30_000)
        served.until(lambda: len(served.share.get(GROUP, served.topics["t"], 0).waiters) == 1)
        served.broker.clock.advance(seconds=9)
        served.broker.clock.advance(seconds=2)
        assert acquired(member.finish()) == [(0, 0, 2)], "a waiting fetch wakes in time"
        ok(member.acknowledge({T: [(0, 0, [RELEASE])]}))
        served.broker.clock.advance(seconds=14)
        assert acquired(member.fetch(wait_ms=100)) == [], "longer after the second delivery"
        served.broker.clock.advance(seconds=2)
        assert acquired(member.fetch(wait_ms=5000)) == [(0, 0, 3)], "but no longer than the limit"


def test_a_record_whose_lock_ended_comes_later(served: Served) -> None:
    served.settings.now = served.settings.now._replace(backoff_ms=10_000)
    served.produce("t", 1)
    with Member(served) as member, Member(served, "m2") as other:
        assert acquired(member.fetch(T, wait_ms=5000)) == [(0, 0, 1)]
        other.start(T, wait_ms=60_000)
        served.until(lambda: served.share.get(GROUP, served.topics["t"], 0).waiters)
        served.broker.clock.advance(seconds=31)
        served.until(lambda: states(served) == {0: (RecordState.AVAILABLE, 1)})
        assert len(served.share.get(GROUP, served.topics["t"], 0).waiters) == 1
        served.broker.clock.advance(seconds=11)
        assert acquired(other.finish()) == [(0, 0, 2)]
