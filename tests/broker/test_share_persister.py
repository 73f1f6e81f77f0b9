"""The path to the share coordinator: its topic is created first, its leader is asked, temporary errors are retried."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from kbroker.broker import share_persister
from kbroker.broker.share_persister import PAUSES_MS, SharePersister
from kbroker.cluster_state import SHARE_STATE_TOPIC, ClusterState, PartitionState, TopicState
from kbroker.protocol.errors import ErrorCode
from kbroker.share_coordinator.peer_states import NO_ANSWER, Operation
from kbroker.share_coordinator.persister import Change, Done, State
from kbroker.share_coordinator.share_partition_state import SharePartition
from kbroker.share_coordinator.state_batches import StateBatch
from tests.coordination.world import ManualClock

E = ErrorCode
T = b"t" * 16
PLACE = SharePartition("g", T, 0)
HERE, THERE, GONE = 1, 2, -1


def led_by(leader):
    return PartitionState(replicas=(1, 2), isr=(1, 2), leader=leader, leader_epoch=3)


class World:
    """Broker 1 of two: the leader of the coordinator's partition at each attempt, and the answers of both brokers."""

    def __init__(self, leaders, answers, *, knows_topic=True):
        self.leaders = list(leaders)
        self.answers = list(answers)
        self.asked = []
        self.pauses = []
        self.hosted = []
        self.exists = False
        self.clock = ManualClock()
        self.an_answer_takes_ms = 0
        self.knows_topic = knows_topic

    @property
    def state(self):
        leader = self.leaders[0] if len(self.leaders) == 1 else self.leaders.pop(0)
        state = ClusterState("c")
        if self.knows_topic:
            state = state.with_topic(TopicState("t", T, (led_by(HERE),)))
        return state.with_topic(TopicState(SHARE_STATE_TOPIC, b"s" * 16, (led_by(leader),)))

    # the share coordinator here

    def ensure_topic(self):
        return self.exists

    def partition_of(self, _place):
        return 0

    def delete(self, place):
        return self._answer(HERE, place)

    def read(self, place, epoch):
        return self._answer(HERE, (place, epoch))

    def write(self, place, change):
        return self._answer(HERE, (place, *change))

    # the metadata and the replicas

    def auto_created(self, topic):
        assert topic == SHARE_STATE_TOPIC
        self.exists = True

    async def hosted_of(self, topic):
        self.hosted.append(topic)

    # the other broker

    async def ask(self, node_id, _operation: Operation, _place, wanted):
        return self._answer(node_id, wanted)

    def _answer(self, node_id, wanted):
        self.asked.append((node_id, wanted))
        self.clock.ms += self.an_answer_takes_ms
        found = self.answers.pop(0)
        return Done(found) if isinstance(found, ErrorCode) else found

    async def pause(self, ms):
        self.pauses.append(ms)

    def persister(self, *, alone=False):
        return SharePersister(HERE, self, self, self, None if alone else self, self.clock, self.pause)

    def deleted(self, *, alone=False):
        return asyncio.run(self.persister(alone=alone).delete(*PLACE)).error_code

    def brokers_asked(self):
        return [each for each, _ in self.asked]


def test_the_topic_is_made_first():
    world = World([HERE], [E.NONE])
    assert world.deleted(alone=True) is E.NONE
    assert world.hosted == [SHARE_STATE_TOPIC]
    assert world.asked == [(HERE, PLACE)]
    assert world.pauses == []


def test_the_leader_of_the_coordinators_partition_is_asked_wherever_it_is():
    world = World([THERE], [State(E.NONE, 4, 7, (StateBatch(7, 8, 0, 1),))])
    read = asyncio.run(world.persister().read(*PLACE, 5))
    assert read == State(E.NONE, 4, 7, (StateBatch(7, 8, 0, 1),))
    ((node_id, wanted),) = world.asked
    assert (node_id, wanted.partition, wanted.leader_epoch) == (THERE, 0, 5)


def test_a_write_to_another_broker_has_all_that_one_here_has():
    batches = [StateBatch(3, 4, 2, 1), StateBatch(6, 6, 0, 2)]
    for leader in (HERE, THERE):
        world = World([leader], [E.NONE])
        asyncio.run(world.persister().write(*PLACE, Change(4, 5, 3, 2, batches)))
        ((_, wanted),) = world.asked
        if leader == HERE:
            assert wanted == (PLACE, 4, 5, 3, 2, batches)
        else:
            assert (wanted.state_epoch, wanted.leader_epoch, wanted.start_offset) == (4, 5, 3)
            assert wanted.delivery_complete_count == 2
            found = [(e.first_offset, e.last_offset, e.delivery_state, e.delivery_count) for e in wanted.state_batches]
            assert found == [tuple(each) for each in batches]


def test_the_coordinator_is_looked_up_again_at_each_try():
    world = World([THERE, THERE, GONE, HERE], [E.NOT_COORDINATOR, NO_ANSWER, E.NONE])
    assert world.deleted() is E.NONE
    assert world.brokers_asked() == [THERE, THERE, HERE]
    assert world.pauses == [100, 200, 400], "also while there is no leader"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (E.NOT_COORDINATOR, E.NOT_COORDINATOR),
        (E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_LOAD_IN_PROGRESS),
        (NO_ANSWER, E.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_tries_come_to_an_end(code, told):
    world = World([THERE], [code] * (len(PAUSES_MS) + 1))
    assert world.deleted() is told
    assert world.pauses == list(PAUSES_MS)
    assert len(world.asked) == len(PAUSES_MS) + 1


def test_a_broker_that_never_answers_is_not_asked_for_minutes():
    world = World([THERE], [NO_ANSWER] * 3)
    world.an_answer_takes_ms = 29_000
    assert world.deleted() is E.COORDINATOR_NOT_AVAILABLE
    assert world.brokers_asked() == [THERE, THERE]


@pytest.mark.parametrize("code", [E.FENCED_STATE_EPOCH, E.FENCED_LEADER_EPOCH, E.INVALID_REQUEST])
def test_other_errors_are_answers(code):
    world = World([THERE], [code])
    assert world.deleted() is code
    assert world.pauses == []


@pytest.mark.parametrize("knows", [True, False])
def test_an_unknown_topic_is_retried_only_while_this_broker_knows_it(knows):
    world = World([THERE], [E.UNKNOWN_TOPIC_OR_PARTITION, E.NONE], knows_topic=knows)
    assert world.deleted() is (E.NONE if knows else E.UNKNOWN_TOPIC_OR_PARTITION)


def test_alone_a_coordinator_elsewhere_is_none():
    world = World([GONE], [])
    world.exists = True
    assert world.deleted(alone=True) is E.COORDINATOR_NOT_AVAILABLE
    assert world.asked == []


def test_brokers_do_not_come_back_all_at_once():
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(share_persister, "asyncio", SimpleNamespace(sleep=sleep))
        pause = share_persister.Pause()
        for _ in range(20):
            asyncio.run(pause(1000))
    assert len(set(pauses)) > 1
    assert all(0.8 <= each <= 1.2 for each in pauses)
