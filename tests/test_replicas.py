"""Which of the cluster's partitions a broker hosts, without sockets, and with the test's clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4
from weakref import WeakSet

import pytest

from kbroker.cluster_state import ClusterState, PartitionState, TopicState
from kbroker.log import open_files
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.directories.log_manager import LogManager
from kbroker.log.log_config import LogConfig
from kbroker.protocol.records import build_batch
from kbroker.replicas import Replicas
from tests.descriptors import no_descriptors
from tests.turns import turns

NOW = 1_700_000_000_000
COUNT = 300  # more than are hosted in one piece
SETTINGS = LogConfig()


class World:
    """The replicas of node 1; the test moves its clock and runs its deferred work."""

    def __init__(self, directory: Path) -> None:
        self.waited_ms = 0.0
        self.deferred: deque[Callable[[], None]] = deque()
        self.logs = LogManager([LogDirectory(str(directory), node_id=1)], str(directory))
        self.logs.open()
        self.logs.load(lambda _topic: LogConfig(), NOW, lambda _topic, _partition, _id: True)
        self.replicas = Replicas(1, self.logs, lambda _topic: SETTINGS, self, self.deferred.append)
        self.state = ClusterState("cluster")

    def now_ms(self) -> int:
        return NOW

    def monotonic_ms(self) -> float:
        return self.waited_ms

    def change(self, state: ClusterState) -> None:
        old, self.state = self.state, state
        self.change_from(old)

    def change_from(self, old: ClusterState) -> None:
        self.replicas.apply(old, self.state)
        self.run()

    def run(self) -> None:
        while self.deferred:
            self.deferred.popleft()()

    def wait(self, ms: int = 1000) -> None:
        self.waited_ms += ms
        self.replicas.tick()
        self.run()

    def hosted(self) -> int:
        return sum(partition.leading for partition in self.replicas)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(open_files, "_all", WeakSet())  # otherwise logs of earlier tests would have to close files
    world = World(tmp_path)
    yield world
    world.logs.close()


def topic(name: str, count: int) -> TopicState:
    return TopicState(name, uuid4().bytes, (PartitionState((1,), (1,), 1, 0),) * count)


@pytest.mark.parametrize("count", [1, COUNT])
def test_what_found_no_descriptors_is_hosted_as_soon_as_there_are_some(
    world: World, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    with no_descriptors():
        world.change(world.state.with_topic(topic("early", count)))
        for _ in range(3):
            world.wait()
        assert world.hosted() == 0
    assert caplog.text.count("early-0 cannot be hosted") == 1
    world.wait(10)
    assert world.hosted() == 0, "not tried with every tick"
    world.wait()
    assert world.hosted() == count
    partition = world.replicas.leader("early", count - 1)
    assert partition.append(build_batch([(NOW, b"k", b"v", ())]), -1, NOW).base_offset == 0


def test_a_topic_that_was_deleted_meanwhile_stays_away(world: World) -> None:
    with no_descriptors():
        world.change(world.state.with_topic(topic("early", 2)))
    world.change(world.state.without_topics(["early"]))
    world.wait()
    assert world.hosted() == 0


def test_a_topic_that_changed_meanwhile_is_hosted_as_it_is(world: World) -> None:
    with no_descriptors():
        world.change(world.state.with_topic(topic("early", 1)))
        world.change(world.state.with_topic(topic("early", 3)))
    world.wait()
    assert world.hosted() == 3


@pytest.mark.long
def test_a_topic_that_changed_meanwhile_and_waits_for_its_turn_is_hosted_as_it_is(world: World) -> None:
    early = topic("early", COUNT)
    with no_descriptors():
        world.change(world.state.with_topic(early))
    old = world.state
    world.state = old.with_topic(replace(early, partitions=early.partitions * 2))
    world.replicas.apply(old, world.state)
    world.wait()
    assert world.hosted() == 2 * COUNT


def test_nothing_is_hosted_once_the_broker_stops(world: World) -> None:
    with no_descriptors():
        world.change(world.state.with_topic(topic("refused", 1)))
    old, world.state = world.state, world.state.with_topic(topic("large", COUNT))
    world.replicas.apply(old, world.state)
    world.replicas.close()
    world.wait()
    assert list(world.replicas) == []


@pytest.mark.long
def test_on_a_slow_disk_one_partition_is_hosted_in_a_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def ever_later() -> float:
        world.waited_ms += 1
        return world.waited_ms

    monkeypatch.setattr(world, "monotonic_ms", ever_later)
    old, world.state = world.state, world.state.with_topic(topic("large", COUNT))
    world.replicas.apply(old, world.state)
    for turn in range(COUNT):
        assert world.hosted() == turn
        world.deferred.popleft()()
    assert world.hosted() == COUNT


@pytest.mark.long
def test_a_topic_that_was_refused_and_then_changed_keeps_its_last_settings(world: World) -> None:
    early = topic("early", COUNT)
    with no_descriptors():
        world.change(world.state.with_topic(early))
    old = world.state
    world.state = old.with_topic(replace(early, partitions=(PartitionState((1,), (1,), 1, 7),) * COUNT))
    world.change_from(old)
    world.wait()
    assert {partition.leader_epoch for partition in world.replicas} == {7}


@pytest.mark.long
def test_changed_defaults_reach_many_topics_in_slices_and_are_read_once_for_those_without_configs(world: World) -> None:
    state = world.state
    for number in range(COUNT):
        state = state.with_topic(topic(f"t{number}", 1))
    world.change(state)
    settings = []

    def changed(known: TopicState) -> LogConfig:
        settings.append(LogConfig(segment_bytes=1 << 20))
        return settings[-1]

    world.replicas._settings = changed
    world.replicas.reconfigure(state)
    assert 0 < sum(partition.log.config is settings[0] for partition in world.replicas) < COUNT
    assert world.deferred
    world.run()
    assert all(partition.log.config is settings[0] for partition in world.replicas)
    assert len(settings) == 1


@pytest.mark.long
def test_a_large_topic_is_reconfigured_in_slices(world: World) -> None:
    large = topic("large", COUNT)
    world.change(world.state.with_topic(large))
    old, world.state = world.state, world.state.with_topic(replace(large, configs={"retention.ms": "1"}))
    changed = LogConfig()
    world.replicas._settings = lambda _topic: changed
    world.replicas.apply(old, world.state)
    assert not any(partition.log.config is changed for partition in world.replicas)
    world.run()
    assert all(partition.log.config is changed for partition in world.replicas)


@pytest.mark.long
def test_a_new_topic_of_a_coordinator_is_hosted_later_or_as_it_is_loaded(world: World) -> None:
    """Its 50 partitions are created one by one, with turns for others; one that is needed earlier is created then."""
    name = "__consumer_offsets"
    old, world.state = world.state, world.state.with_topics((topic("large", COUNT), topic(name, 50)))
    world.replicas.apply(old, world.state)
    assert world.hosted() == 0
    world.replicas.host_now(name, 17)
    world.replicas.host_now(name, 17)
    world.replicas.host_now(name, 50)
    world.replicas.host_now("none", 0)
    assert [(p.topic, p.index, p.leading) for p in world.replicas] == [(name, 17, True)]
    steps = 0
    for _ in turns(world.replicas.hosted_of(name)):
        steps += 1
    assert steps >= 50
    assert {p.topic for p in world.replicas} == {name}, "before others"
    world.run()
    assert world.hosted() == 50 + COUNT


@pytest.mark.long
def test_a_change_of_a_coordinators_topic_is_followed_at_once(world: World) -> None:
    name = "__consumer_offsets"
    offsets = topic(name, COUNT)
    world.change(world.state.with_topic(offsets))
    led = tuple(replace(partition, leader_epoch=1) for partition in offsets.partitions)
    old, world.state = world.state, world.state.with_topic(replace(offsets, partitions=led))
    world.replicas.apply(old, world.state)
    assert {partition.leader_epoch for partition in world.replicas} == {1}


def test_two_who_wait_for_a_topic_each_do_not_keep_each_other_back(world: World) -> None:
    both = [topic("__consumer_offsets", 50), topic("__transaction_state", 50)]
    world.replicas.apply(world.state, world.state.with_topics(both))
    waiting = [turns(world.replicas.hosted_of(each.name)) for each in both]
    for _ in range(60):
        for each in waiting:
            next(each, None)
    assert world.hosted() == 100
    assert world.replicas.has_hosted_all


def test_a_topic_that_fails_in_an_unforeseen_way_does_not_keep_others_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_args: object) -> None:
        raise ZeroDivisionError

    topics = [topic("a", 200), topic("b", 200)]
    world.replicas.apply(world.state, world.state.with_topics(topics))
    with monkeypatch.context() as broken:
        broken.setattr(world.logs, "get_or_create", fails)
        with pytest.raises(ZeroDivisionError):
            world.replicas._host_next()
    for _ in turns(world.replicas.hosted_of("b")):
        pass
    for _ in turns(world.replicas.hosted_of("a")):
        pass
    assert world.replicas.has_hosted_all
