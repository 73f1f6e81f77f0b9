"""Clients over their quotas: their throttle times, how long nothing is read from them, and that nobody else notices.

The quotas' clock stands still, so that each throttle time is known to the millisecond; a pause is real time.
"""

from __future__ import annotations

import struct
import time

import pytest

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges.produce import batch
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker import Broker
from kbroker.handlers.registry import APIS, served
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.groups import ListGroupsRequest
from kbroker.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tests.broker.test_client_quotas import alter, entry
from tests.broker.test_hot_path import frame
from tests.network.test_tls import TlsClient, context

SETTINGS = {"num.partitions": "1", "auto.create.topics.enable": "true"}


class StandingClock:
    """A clock whose monotonic time stands still until it is moved."""

    def __init__(self):
        self.monotonic = 5_000_000.0

    def now_ms(self):
        return time.time_ns() // 1_000_000

    def monotonic_ms(self):
        return self.monotonic


class World:
    def __init__(self, running, clock):
        self.clock = clock
        self.address = running.bootstrap_servers
        self.clients = []
        self.admin = self.connect("admin")

    def connect(self, client_id="app"):
        self.clients.append(WireClient(self.address, client_id))
        return self.clients[-1]

    def limit(self, entity=None, **limits):
        assert alter(self.admin, entry(entity or {"client-id": "app"}, **limits)) == [(0, None)]

    def topic(self, name, partitions=1, version=7):
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        (result,) = self.admin.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), version).topics
        assert result.error_code == 0
        return bytes(result.topic_id)


@pytest.fixture(
    params=[
        {},
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        },
    ],
    ids=["open", "authorized"],
)
def world(request):
    clock = StandingClock()
    with Broker({**SETTINGS, **request.param}, clock=clock, strict=True) as running:
        found = World(running, clock)
        yield found
        for client in found.clients:
            client.close()


def produced(client, records, acks=1, version=9):
    answer = client.ask(produce_request("t", records, acks=acks), version)
    assert answer.responses[0].partition_responses[0].error_code == 0
    return answer.throttle_time_ms


def test_a_producer_is_told_for_how_long_and_is_not_read_from(world):
    world.topic("t")
    client = world.connect()
    records = batch(1, size=20_000)
    assert produced(client, records) == 0
    world.limit(producer_byte_rate=2000.0)
    # The pause begins before the test has read the response.
    began = time.monotonic()
    # Only what arrived since then counts: the window is 10 s, so 20 kB are 2000 bytes/s, and the header adds a little.
    first = produced(client, records)
    size = len(records) + 100
    assert 0 < first < (size / 10 - 2000) / 2000 * 10_000 + 1
    client.start(ApiVersionsRequest(), 0)
    # Other clients continue, also those of the same user; the throttled client is served after the pause.
    assert produced(world.connect("other"), records) == 0
    assert client.finish().error_code == 0
    assert time.monotonic() - began >= first / 1000


def test_a_quota_counts_at_once_also_where_requests_went_the_express_way(world):
    world.topic("t")
    client, other = world.connect(), world.connect("other")
    records = batch(1, size=21_000)
    world.limit({"client-id": "somebody"}, producer_byte_rate=1.0)
    assert [produced(each, records) for each in (client, other) * 3] == [0] * 6
    world.limit(producer_byte_rate=2000.0)
    assert produced(client, records) > 0
    assert produced(other, records) == 0
    world.limit(producer_byte_rate=None)
    assert [produced(each, records) for each in (client, other) * 2] == [0] * 4


def test_a_producer_that_wants_no_answer_pauses_as_well(world):
    world.topic("t")
    world.limit(producer_byte_rate=1000.0)
    client = world.connect()
    records = batch(1, size=10_200)
    client.start(produce_request("t", records, acks=0), 9)
    began = time.monotonic()
    assert client.ask(ApiVersionsRequest(), 0).error_code == 0
    assert time.monotonic() - began >= 0.2


def fetch(client, topic_id, session=(0, 0), offset=0, max_bytes=1 << 20, wanted=True):
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic_id=topic_id, partitions=[partition])] if wanted else []
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, topics=topics, session_id=session[0], session_epoch=session[1]
    )
    return client.ask(request, 13)


def size_of(answer):
    return sum(len(p.records or b"") for topic in answer.responses for p in topic.partitions)


def test_a_consumer_gets_nothing_while_it_has_to_pause_and_all_of_it_later(world):
    topic_id = world.topic("t")
    client = world.connect()
    produced(client, batch(1, size=9_000))
    answer = fetch(client, topic_id)
    session = answer.session_id
    assert session
    assert size_of(answer) > 9_000
    world.limit(consumer_byte_rate=1000.0)
    again = fetch(client, topic_id, (session, 1))
    assert again.throttle_time_ms == 0
    assert size_of(again) > 9_000
    for epoch in (2, 3):
        world.clock.monotonic += 1
        throttled = fetch(world.connect(), topic_id, (session, epoch))
        assert (throttled.error_code, throttled.session_id, throttled.responses) == (0, session, [])
        assert throttled.throttle_time_ms == pytest.approx(8_200, abs=300)
    # What the session could not return earlier is returned once there is room again.
    world.clock.monotonic += 12_000
    later = fetch(world.connect(), topic_id, (session, 4), wanted=False)
    assert later.throttle_time_ms == 0
    assert size_of(later) > 9_000


def test_a_fetch_is_not_larger_than_what_may_go_without_a_pause(world):
    topic_id = world.topic("t")
    for _ in range(4):
        produced(world.admin, batch(1, size=3_000))
    world.limit(consumer_byte_rate=700.0)
    # The bytes around the records add a little, and so the pause is short.
    assert fetch(world.connect(), topic_id).throttle_time_ms == pytest.approx(100, abs=50)
    world.clock.monotonic += 600
    answer = fetch(world.connect(), topic_id)
    assert answer.throttle_time_ms == 0
    assert 6_000 < size_of(answer) <= 7_000


def test_a_batch_that_is_larger_than_the_quota_ever_allows_never_comes(world):
    """As in Kafka, whose window is ten seconds."""
    topic_id = world.topic("t")
    produced(world.admin, batch(1, size=10_000))
    world.limit(consumer_byte_rate=100.0)
    answer = fetch(world.connect(), topic_id)
    assert (answer.session_id, answer.responses) == (0, [])
    assert answer.throttle_time_ms > 80_000


def test_a_long_poll_that_is_throttled_is_answered_with_nothing(world):
    topic_id = world.topic("t")
    world.limit(consumer_byte_rate=100.0)
    client = world.connect()
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic_id=topic_id, partitions=[partition])]
    client.start(FetchRequest(max_wait_ms=20_000, min_bytes=1, max_bytes=1 << 20, topics=topics), 13)
    assert world.admin.ask(ApiVersionsRequest(), 0).error_code == 0
    produced(world.admin, batch(1, size=10_000))
    answer = client.finish()
    assert answer.responses == []
    assert answer.throttle_time_ms > 80_000


def test_a_fetch_of_many_partitions_is_throttled(world):
    topic_id = world.topic("many", 100)
    world.limit(consumer_byte_rate=100.0)
    partitions = [FetchPartition(partition=p, partition_max_bytes=1 << 20) for p in range(100)]
    request = FetchRequest(
        max_wait_ms=0, max_bytes=1 << 20, session_id=0, session_epoch=-1,
        topics=[FetchTopic(topic_id=topic_id, partitions=partitions)],
    )  # fmt: skip
    answer = world.connect().ask(request, 13)
    assert (answer.responses, answer.session_id) == ([], 0)
    assert answer.throttle_time_ms > 0


def test_every_answer_that_has_a_place_for_it_tells_of_the_time_of_requests(world):
    world.limit(request_percentage=1e-9)
    asked = {ApiVersionsRequest: 3, ListGroupsRequest: 4, MetadataRequest: 12}
    for request, version in asked.items():
        answer = world.connect().ask(request(), version)
        assert answer.throttle_time_ms == 1000, request
    assert fetch(world.connect(), bytes(16)).throttle_time_ms == 1000
    # Nobody else is throttled, and removing the quota removes it for all.
    assert world.connect("other").ask(ApiVersionsRequest(), 3).throttle_time_ms == 0
    world.limit(request_percentage=None)
    assert world.connect().ask(ApiVersionsRequest(), 3).throttle_time_ms == 0


def test_the_more_specific_quota_holds(world):
    world.limit({"user": None}, request_percentage=1e-9)
    world.limit({"user": "ANONYMOUS", "client-id": "free"}, request_percentage=1e6)
    assert world.connect("free").ask(ApiVersionsRequest(), 3).throttle_time_ms == 0
    assert world.connect("app").ask(ApiVersionsRequest(), 3).throttle_time_ms == 1000
    assert world.connect(None).ask(ApiVersionsRequest(), 3).throttle_time_ms == 1000


def create(client, *names, partitions=5, version=7, validate_only=False):
    topics = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    request = CreateTopicsRequest(topics=topics, timeout_ms=10_000, validate_only=validate_only)
    answer = client.ask(request, version)
    return answer.throttle_time_ms, [each.error_code for each in answer.topics]


EXCEEDED = int(ErrorCode.THROTTLING_QUOTA_EXCEEDED)


def test_mutations_over_the_quota_are_refused_by_newer_versions(world):
    world.limit(controller_mutation_rate=1.0)  # 11 may accumulate
    assert create(world.connect(), "a", "b", "c", "d") == (4_000, [0, 0, 0, EXCEEDED])
    assert create(world.connect(), "d") == (4_000, [EXCEEDED])
    assert create(world.connect(), "d", validate_only=True) == (4_000, [EXCEEDED])
    world.clock.monotonic += 1_000
    growth = [CreatePartitionsTopic(name="a", count=6, assignments=None)]
    answer = world.connect().ask(CreatePartitionsRequest(topics=growth, timeout_ms=10_000), 3)
    assert (answer.throttle_time_ms, answer.results[0].error_code) == (3_000, EXCEEDED)
    answer = world.connect().ask(DeleteTopicsRequest(topics=[DeleteTopicState("a")], timeout_ms=10_000), 6)
    assert (answer.throttle_time_ms, answer.responses[0].error_code) == (3_000, EXCEEDED)
    world.clock.monotonic += 3_000
    answer = world.connect().ask(DeleteTopicsRequest(topics=[DeleteTopicState("a")], timeout_ms=10_000), 6)
    assert (answer.throttle_time_ms, answer.responses[0].error_code) == (0, 0)
    # A client without a quota is not delayed by other clients' quotas.
    assert create(world.connect("other"), "d") == (0, [0])


def test_older_versions_are_let_through_and_pause_for_it(world):
    world.limit(controller_mutation_rate=1.0)
    assert create(world.connect(), "a", "b", "c", "d", version=5) == (9_000, [0, 0, 0, 0])
    growth = [CreatePartitionsTopic(name="a", count=6, assignments=None)]
    answer = world.connect().ask(CreatePartitionsRequest(topics=growth, timeout_ms=10_000), 2)
    assert (answer.throttle_time_ms, answer.results[0].error_code) == (10_000, 0)
    answer = world.connect().ask(DeleteTopicsRequest(topic_names=["a"], timeout_ms=10_000), 4)
    assert (answer.throttle_time_ms, answer.responses[0].error_code) == (16_000, 0)


def test_topics_are_not_created_by_the_way_over_the_quota(world):
    world.limit(controller_mutation_rate=1.0)
    create(world.connect(), "a", "b", "c")
    ask = MetadataRequest(topics=[MetadataRequestTopic(name="by-the-way")], allow_auto_topic_creation=True)
    assert world.connect().ask(ask, 9).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    deadline = time.monotonic() + 20
    while world.admin.ask(ask, 9).topics[0].error_code:
        assert time.monotonic() < deadline


def test_a_pause_over_tls():
    with Broker(tls=True, clock=StandingClock()) as running:
        files = running.certificates
        with TlsClient(running.bootstrap_servers, context(files, files.client("app")), "localhost") as client:
            assert alter(client, entry({"user": "CN=app"}, request_percentage=1e-9)) == [(0, None)]
            began = time.monotonic()
            assert client.ask(ApiVersionsRequest(), 3).throttle_time_ms == 1000
            frames = [frame(ApiVersionsRequest(), 3)] * 2
            client.send_bytes(b"".join(struct.pack(">i", len(each)) + each for each in frames))
            assert client.receive()
            assert time.monotonic() - began >= 1


def test_all_answers_have_a_place_for_the_throttle_time_but_these():
    without = {api.name for api in served(in_cluster=False).values() if not hasattr(api.response(), "throttle_time_ms")}
    without -= {"SaslHandshake", "SaslAuthenticate", "WriteTxnMarkers", "DescribeQuorum"}
    assert all("ShareGroupState" in name for name in without), "only brokers ask the share coordinator"
    assert APIS
