"""What the console checks by itself, what it reports as wrong, and a cluster that is unreachable for a while."""

from __future__ import annotations

import re
import threading
import time
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer
from kafka.errors import KafkaConnectionError
from kafka.structs import OffsetAndMetadata, TopicPartition

from kbroker import Broker
from kbroker.admin.cluster_view import ClusterView, TopicView
from kbroker.admin.connection import Connection
from kbroker.admin.errors import AdminError, Unreachable
from kbroker.admin.log_dirs import LogDir
from kbroker.admin.transactions import Open
from kbroker.console import asking
from kbroker.console import sampler as sampling
from kbroker.console.asking import Busy, Cluster, Slow
from kbroker.console.charts import over_time, spark
from kbroker.console.health import GROWING_S, UNSETTLED_S, can_move, findings
from kbroker.console.listing import Listing
from kbroker.console.number_text import duration, number, short_number, size
from kbroker.console.sampler import Sampler, Samples
from kbroker.console.series import POINTS, Family, Series
from kbroker.console.stuck_groups import STANDING_S, StandingStill, Unsettled
from kbroker.protocol.messages.cluster import MetadataResponseBroker, MetadataResponsePartition
from kbroker.protocol.messages.transactions import ProducerState
from tests.console.conftest import served
from tests.console.visitor import Visitor


def part(index, leader, replicas, isr):
    return MetadataResponsePartition(0, index, leader, 0, replicas, isr, [])


def view(*topics, brokers=(1, 2), controller=1):
    found = {}
    for name, parts in topics:
        offline = sum(each.leader_id < 0 for each in parts)
        under = sum(len(each.isr_nodes) < len(each.replica_nodes) for each in parts)
        found[name] = TopicView(name, None, False, parts, 2, offline, under)
    alive = [MetadataResponseBroker(each, "h", 1, None) for each in brokers]
    return ClusterView("id", controller, alive, found)


def titles(samples):
    return [(each.level, each.title) for each in findings(samples)]


def test_nothing_is_wrong_with_what_is_well():
    assert titles(Samples(view=view(("t", [part(0, 1, [1, 2], [1, 2])])))) == []


def test_the_worst_comes_first():
    samples = Samples(view=view(("t", [part(0, -1, [1, 3], [3]), part(1, 1, [1, 2], [1])]), controller=-1))
    samples.under_min_isr = {("t", 1)}
    samples.dirs = [LogDir(1, "/d", "KAFKA_STORAGE_ERROR", -1, -1, {}, 0)]
    samples.hanging = [Open("t", 1, ProducerState(5, 0, 0, 0, 0, 77))]
    samples.groups = {"g": "Empty", "slow": "Stable", "still": "Stable", "stuck": "Stable"}
    for at in (0.0, STANDING_S):
        samples.standing.update("stuck", {("t", 1): 5}, {("t", 1): 8 + int(at)}, 100.0 + at)
    for at in range(0, int(GROWING_S) + 10, 5):
        samples.lags.add("g", at, at)
        samples.lags.add("slow", at, at)
        samples.lags.add("still", at, 5)
    told = titles(samples)
    assert [level for level, _ in told] == ["bad"] * 5 + ["warn"] * 5
    assert {title for _, title in told} == {
        "1 partition nobody leads",
        "1 partition below min.insync.replicas",
        "No controller",
        "A log directory of broker 1 is offline",
        "1 hanging transaction",
        "2 under-replicated partitions",
        "Broker 3 is gone",
        "Group g has no members",
        "Group slow falls behind",
        "Group stuck stands still",
    }
    order = [title for _, title in told]
    assert order.index("Broker 3 is gone") < order.index("2 under-replicated partitions"), "a cause, then what follows"
    assert all(each.href.startswith("/") for each in findings(samples))
    assert "/topics?health=min-isr" in {each.href for each in findings(samples)}
    samples.under_min_isr = {("__consumer_offsets", 1)}
    assert "/topics?health=min-isr&internal=1" in {each.href for each in findings(samples)}


def test_a_group_stands_still_where_it_commits_nothing_while_records_come():
    standing, one, other = StandingStill(3), ("t", 0), ("t", 1)

    def look(at, committed, ends, group="g"):
        standing.update(group, dict(zip((one, other), committed, strict=True)), {one: ends[0], other: ends[1]}, at)
        return {key: stop.lasted_s for key, stop in standing.of(group, 60).items()}

    assert look(10.0, (5, 9), (7, 9)) == {}
    assert look(40.0, (5, 9), (8, 9)) == {}
    assert look(69.9, (5, 9), (8, 9)) == {}
    assert look(71.0, (5, 9), (8, 9)) == {one: 61.0}
    assert standing.of("g", 60)[one].offset == 5
    assert look(72.0, (6, 9), (9, 9)) == {}, "it has got on"
    assert look(140.0, (6, 9), (9, 9)) == {}, "nothing has come since: behind a marker one waits for ever"
    assert look(150.0, (6, 9), (10, 9)) == {one: 78.0}
    assert look(160.0, (10, 9), (10, 9)) == {}
    standing.keep([])
    assert look(170.0, (10, 9), (12, 9)) == {}
    assert look(171.0, (10, 9), (13, 9)) == {}, "what was before it had no members does not count"
    standing.keep(["h"])
    assert look(300.0, (1, 1), (2, 2), "h") == {}
    assert look(301.0, (1, 1), (3, 3), "too many") == {}
    assert look(400.0, (1, 1), (4, 4), "h") == {one: 100.0, other: 100.0}
    assert look(401.0, (1, 1), (4, 4), "too many") == {one: 100.0}, "three partitions are kept, and two are taken"
    standing.forget("h")
    assert standing.of("h", 60) == {}
    assert look(402.0, (1, 1), (5, 5), "too many") == {one: 101.0}
    assert look(502.0, (1, 1), (6, 6), "too many") == {one: 201.0, other: 100.0}


def test_another_client_asks_when_other_brokers_live(monkeypatch):
    """kafka-python learns of brokers from its own Metadata, once in five minutes."""
    clients, asked = [], []

    def open_admin(connection):
        clients.append(SimpleNamespace(close=lambda: None))
        return clients[-1]

    alive = iter([(1,), (1, 2), (1, 2), (1,), (1, 2), (2, 3)])

    def look(admin):
        asked.append(admin)
        sampler.samples.view = view(brokers=next(alive, (2, 3)))

    monkeypatch.setattr(Connection, "open_admin", open_admin)
    monkeypatch.setattr(sampling, "_SOON_S", 0.001)
    sampler = Sampler(Connection("h:1", {}), period_s=0.001)
    monkeypatch.setattr(sampler, "round", look)
    with sampler:
        assert sampler.wait_for_rounds(8, 30)
    assert [clients.index(each) for each in asked[:8]] == [0, 0, 1, 1, 1, 2, 2, 2]
    assert time.time() - sampler.samples.looked_at < 30


def test_a_look_that_waits_for_brokers_that_are_gone_is_not_the_last_for_minutes():
    sampler = Sampler(Connection("h:1", {}))
    assert sampler._pause_s(6.0) == 120.0
    sampler.samples.view = view(("t", [part(0, 1, [1, 2], [1, 2])]))
    assert sampler._pause_s(6.0) == 120.0
    sampler.samples.view = view(("t", [part(0, 1, [1, 3], [1])]))
    assert sampler._pause_s(6.0) == 12.0
    assert sampler._pause_s(0.01) == pytest.approx(4.99)


def test_a_group_that_does_not_settle_is_told_of_after_a_while(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(sampling.time, "monotonic", lambda: now[0])
    state = ["PreparingRebalance"]

    class Admin:
        def list_groups(self):
            return [{"group_id": "g", "group_state": state[0]}]

        def list_group_offsets(self, asked):
            return {"g": {}}

    sampler = Sampler(Connection("h:1", {}))
    sampler.samples.view = view(("t", [part(0, 1, [1, 2], [1, 2])]))
    told = []
    for _ in range(3):
        sampler._lag(Admin(), sampler.samples, 0.0)
        told.append(titles(sampler.samples))
        now[0] += UNSETTLED_S
    assert told == [[], [], [("warn", "Group g does not settle")]]
    state[0] = "Empty"
    sampler._lag(Admin(), sampler.samples, 0.0)
    assert titles(sampler.samples) == []


def test_a_group_is_unsettled_that_is_stable_now_and_then():
    unsettled, states = Unsettled(), "PSPSSPSSS"
    looks = [
        unsettled.update({"g": "Stable" if each == "S" else "PreparingRebalance", "other": "Stable"}, float(at))
        for at, each in enumerate(states)
    ]
    assert looks == [{}, {}, {}, {}, {}, {"g": 5.0}, {"g": 6.0}, {"g": 7.0}, {}]
    assert unsettled.update({"g": "Assigning"}, 20.0) == {}
    assert unsettled.update({}, 21.0) == {}
    for at in (22.0, 23.0):
        assert unsettled.update({"g": "Assigning"}, at) == {}
    assert unsettled.update({"g": "Assigning"}, 24.0) == {"g": 2.0}, "what was before it was gone does not count"
    assert unsettled.update({"g": "Empty"}, 25.0) == {}


def test_a_group_does_not_stand_still_in_what_it_reads_no_more(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(sampling.time, "monotonic", lambda: now[0])
    old, new, asked, read = TopicPartition("old", 0), TopicPartition("new", 0), [], ["new"]

    class Admin:
        def list_groups(self):
            return [{"group_id": "g", "group_state": "Stable"}]

        def list_group_offsets(self, asked):
            return {"g": {old: OffsetAndMetadata(5, "", -1), new: OffsetAndMetadata(int(now[0]), "", -1)}}

    def group_of(admin, name):
        asked.append(name)
        return {"members": [{"partitions": [{"topic": topic, "partition": 0} for topic in read]}]}

    monkeypatch.setattr(sampling, "group_of", group_of)
    sampler = Sampler(Connection("h:1", {}))
    samples = sampler.samples
    samples.view = view(("t", [part(0, 1, [1, 2], [1, 2])]))
    for stands, pause in ((False, 10), (False, 130), (True, 10)):
        if stands:
            read.append("old")
        for _ in range(30):
            samples.ends = {("old", 0): int(now[0]), ("new", 0): int(now[0]) + 1}
            sampler._lag(Admin(), samples, 0.0)
            now[0] += pause
            assert stands or "Group g stands still" not in {title for _, title in titles(samples)}
        assert ("Group g stands still" in {title for _, title in titles(samples)}) is stands
        assert samples.standing.of("g", STANDING_S).keys() == ({("old", 0)} if stands else set())
    assert asked


def test_replicas_are_moved_away_where_enough_brokers_are_left():
    three, two = [part(0, 1, [1, 2, 3], [1, 2])], [part(0, 1, [1, 3], [1])]
    assert can_move(view(("two", two)), 3)
    assert not can_move(view(("two", two), ("three", three)), 3)
    assert can_move(view(("two", two), ("three", three), brokers=(1, 2, 4)), 3)
    assert can_move(view(("three", three), brokers=(1, 2)), 5), "it has none of them"
    for topics, advice in ((("two", two),), "move its replicas"), ((("two", two), ("three", three)), "fewer brokers"):
        (gone,) = (each for each in findings(Samples(view=view(*topics))) if each.title == "Broker 3 is gone")
        assert advice in gone.remedy


def test_a_transaction_that_hangs_is_looked_at_again_in_every_round(monkeypatch):
    """The other transactions are listed once a minute."""
    asked, hangs = [], {("t", 0), ("gone", 0)}

    def hanging(admin, leaders, older_than_ms):
        asked.append(dict(leaders))
        return [Open(topic, index, ProducerState(5, 0, 0, 0, 0, 77)) for topic, index in sorted(hangs & leaders.keys())]

    monkeypatch.setattr(sampling, "hanging", hanging)
    monkeypatch.setattr(sampling, "known_offsets_at", lambda *_: {})
    monkeypatch.setattr(sampling, "log_dirs", lambda *_: [])
    monkeypatch.setattr(Sampler, "_lag", lambda *_: None)
    topics = {"t": 1, "u": 2, "gone": 1}
    monkeypatch.setattr(
        sampling,
        "cluster_view",
        lambda _: view(*((name, [part(0, leader, [1, 2], [1, 2])]) for name, leader in topics.items())),
    )
    sampler = Sampler(Connection("h:1", {}))
    sampler.round(None)
    del topics["gone"]
    topics["t"] = 2
    sampler.round(None)
    hangs.clear()
    sampler.round(None)
    sampler.round(None)
    assert asked == [{("t", 0): 1, ("u", 0): 2, ("gone", 0): 1}, {("t", 0): 2}, {("t", 0): 2}]
    assert sampler.samples.hanging == []


def test_what_a_topic_needs_in_sync_is_asked_for_some_at_a_time_and_kept(monkeypatch):
    monkeypatch.setattr(sampling, "_MOST_JUDGED", 2)
    asked = []

    def topic_config(admin, names, key):
        asked.append((list(names), key))
        return dict.fromkeys(names, "2")

    monkeypatch.setattr(sampling, "topic_config", topic_config)
    sampler = Sampler(Connection("h:1", {}))
    parts = [part(0, 1, [1, 2], [1])]
    seen = view(*((name, parts) for name in "abc"), ("well", [part(0, 1, [1, 2], [1, 2])]))
    assert sampler._under_min_isr(None, seen, 0.0) == {("a", 0), ("b", 0)}
    assert sampler._under_min_isr(None, seen, 1.0) == {("a", 0), ("b", 0), ("c", 0)}
    assert sampler._under_min_isr(None, seen, 2.0) == {("a", 0), ("b", 0), ("c", 0)}
    assert [names for names, _ in asked] == [["a", "b"], ["c"]]
    assert sampler._under_min_isr(None, view(("a", parts)), 61.0) == {("a", 0)}
    assert asked[2:] == [(["a"], "min.insync.replicas")]
    sampler.samples.under_min_isr = {("a", 0)}
    assert sampler._under_min_isr(None, view(("a", parts), ("b", parts)), 62.0) == {("a", 0), ("b", 0)}
    assert asked[3:] == [(["a", "b"], "min.insync.replicas")], "what is below may be altered"


def test_a_partition_whose_end_is_not_known_for_a_moment_stands_as_long_as_before():
    standing, key = StandingStill(10), ("t", 0)
    for at, ends in ((0.0, {key: 7}), (100.0, {}), (130.0, {key: 9})):
        standing.update("g", {key: 5}, ends, at)
    assert standing.of("g", 120)[key].lasted_s == 130.0
    standing.update("g", {key: 6}, {}, 140.0)
    assert standing.of("g", 0) == {}


def test_what_a_group_with_members_does_not_get_on_with_is_seen():
    with Broker({"group.initial.rebalance.delay.ms": "0"}) as broker, ExitStack() as up:
        servers = {"bootstrap.servers": broker.bootstrap_servers}
        producer = Producer(servers)
        consumer = Consumer(
            {**servers, "group.id": "stuck", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        sampler = Sampler(Connection(broker.bootstrap_servers, {}))
        admin = up.enter_context(closing(Connection(broker.bootstrap_servers, {}).open_admin()))

        def write():
            producer.produce("t", b"one")
            assert producer.flush(20) == 0

        write()
        write()
        consumer.subscribe(["t"])
        deadline = time.monotonic() + 30
        while (message := consumer.poll(0.2)) is None or message.error():
            assert time.monotonic() < deadline
        consumer.commit(message, asynchronous=False)
        sampler.round(admin)
        assert sampler.samples.standing.of("stuck", 0.0) == {}
        write()
        sampler.round(admin)
        assert list(sampler.samples.standing.of("stuck", 0.0)) == [("t", 0)]
        assert sampler.samples.standing.of("stuck", 0.0)["t", 0].offset == 1
        consumer.close()
        sampler.round(admin)
        assert sampler.samples.standing.of("stuck", 0.0) == {}, "who has no members does not stand still"
        producer.close()


def test_topics_of_what_is_wrong_are_named_once_and_the_clusters_own_last():
    parts = [part(index, 1, [1, 2], [1]) for index in range(9)]
    samples = Samples(view=view(*((name, parts) for name in ("__consumer_offsets", "a", "b"))))
    samples.under_min_isr = {(name, index) for name in ("__consumer_offsets", "a", "b") for index in range(9)}
    below = next(each for each in findings(samples) if "below" in each.title)
    assert below.title == "27 partitions below min.insync.replicas"
    assert below.detail.endswith("refused. Topics: a, b, __consumer_offsets.")


def test_series_are_bounded():
    series = Series()
    for at in range(POINTS * 2):
        series.add(at, at)
    assert len(series) == POINTS
    assert (series.last, series.largest) == (POINTS * 2 - 1, POINTS * 2 - 1)
    assert series.grows(10)
    series.add(POINTS * 2, 0)
    assert not series.grows(10)
    family = Family(2)
    for name in ("a", "b", "a", "c"):
        family.add(name, 1, 1)
    assert [name for name in "abc" if len(family.get(name))] == ["a", "c"]
    family.keep(["c"])
    assert len(family) == 1


def test_a_series_is_read_while_another_thread_adds_to_it():
    series = Series()

    class Adds(float):
        """A value during whose comparison the sampler's thread runs."""

        def __gt__(self, other: float) -> bool:
            series.add(9, 9.0)
            return float(self) > other

    for at in range(3):
        series.add(at, Adds(at))
    assert series.largest == 2
    assert series.last == 9


def test_pictures_are_numbers_and_escaped_words():
    series = Series([(0, 0), (5, 10), (10, 5)])
    for drawn in (spark(series, '"><script>'), over_time(series, '"><script>', "x")):
        assert "<script" not in drawn
        assert "nan" not in drawn
        assert "<svg" in drawn
    assert "–" in spark(Series(), "none")
    wide, narrow = over_time(Series((float(at), 1.0) for at in range(9)), "Lag", "records").split("<svg ")[1:]
    assert (wide.count("00:00:0"), narrow.count("00:00:0")) == (4, 3), "fewer times where there is less room"
    assert "00:00:08 UTC" in wide
    assert "00:00:08 UTC" in narrow


def test_numbers_read_well():
    assert [number(each) for each in (None, 0, 1234567, 0.25)] == ["–", "0", "1,234,567", "0.2"]
    assert [short_number(each) for each in (999, 1500, 2_000_000)] == ["999", "1.5k", "2M"]
    assert [size(each) for each in (-1, 12, 1500, 2_500_000_000)] == ["–", "12 B", "1.5 kB", "2.5 GB"]
    assert [duration(each) for each in (5, 90, 7200, 200_000)] == ["5 s", "2 min", "2 h", "2 d"]


def test_pages_of_lists():
    pages = Listing(list(range(120)), 9, "/x", {"q": "a b"})
    assert (pages.page, pages.pages, pages.first, pages.last) == (3, 3, 101, 120)
    assert pages.href(2) == "/x?q=a+b&page=2"
    assert Listing([], 1, "/x").items == []


def test_a_cluster_that_is_not_there_is_told_and_comes_back():
    with Broker() as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        with served(broker.bootstrap_servers) as server:
            web = Visitor(server.url)
            assert web.get("/topics").status == 200
            broker.stop()
            rounds = server.console.sampler.samples.rounds
            while server.console.sampler.samples.failure is None:
                rounds += 1
                server.console.sampler.wait_for_rounds(rounds, 20)
            server.console.changed()
            lost = web.get("/topics")
            assert (lost.status, "The cluster cannot be reached" in lost.words) == (503, True)
            assert 'http-equiv="refresh"' in lost.text
            assert lost.words.count("no broker answers") == 1, "once is enough"
            assert web.get("/schemas").status == 200, "what needs no cluster is there"
            assert "The page may show an old state" in web.page("/schemas").words
            with Broker(port=port):
                deadline = time.monotonic() + 30
                while web.get("/topics").status != 200:
                    assert time.monotonic() < deadline
                rounds = server.console.sampler.samples.rounds
                while server.console.sampler.samples.failure is not None:
                    rounds += 1
                    server.console.sampler.wait_for_rounds(rounds, 20)


@pytest.fixture
def asked(cluster):
    made = Cluster(Connection(cluster.bootstrap_servers, {}), threads=2)
    yield made
    made.close()


@pytest.mark.asyncio
async def test_what_is_slow_holds_up_nothing_else(asked):
    over = threading.Event()
    try:
        with pytest.raises(Slow):
            await asked.ask(lambda _admin: over.wait(20), deadline_s=0.05)
        assert await asked.ask(lambda _admin: 7) == 7
    finally:
        over.set()


@pytest.mark.asyncio
async def test_there_is_an_end_to_what_waits(asked, monkeypatch):
    monkeypatch.setattr(asking, "_MOST_WAITING", 0)
    with pytest.raises(Busy):
        await asked.ask(lambda _admin: 7)


@pytest.mark.asyncio
async def test_a_client_that_broke_is_not_used_again(asked):
    seen = []
    await asked.ask(seen.append)

    def question(admin):
        if admin is seen[0]:
            raise KafkaConnectionError("it broke")
        return admin.describe_cluster()["cluster_id"]

    assert await asked.ask(question), "what only reads is asked once more, with another client"
    assert await asked.ask(question)
    seen[0] = await asked.ask(lambda admin: admin)
    with pytest.raises(Unreachable):
        await asked.ask(question, reads=False)


@pytest.mark.asyncio
async def test_a_refusal_keeps_the_client(asked):
    seen = []

    def refuse(admin):
        seen.append(admin)
        raise AdminError("no")

    for _ in range(2):
        with pytest.raises(AdminError, match="no"):
            await asked.ask(refuse)
    assert seen[0] is seen[1]


def test_what_goes_wrong_in_a_round_is_told(monkeypatch):
    sampler = Sampler(Connection("127.0.0.1:1", {}), 0.05)
    monkeypatch.setattr(sampler, "_admin", lambda: SimpleNamespace(close=lambda: None))
    with sampler:
        assert sampler.wait_for_rounds(1, 20)
    assert re.search("the log has the reason", sampler.samples.failure)
