"""The simulator detects states that no controller may write: each rule is broken once."""

from __future__ import annotations

import pytest

from kbroker.controller.tree.znode import Change, Create, SetData
from kbroker.controller.znodes import CONTROLLER_EPOCH, Assignment, LeaderAndIsr, partition_path, state_path, topic_path
from tests.simulation.states import States, WatchedEnsemble

T = "t"
ID = b"0123456789abcdef"
KEY = T, 0, ID


class Written:
    """An ensemble with one partition on brokers 1, 2 and 3, led by 1 in epoch 0, and the judge of what is written."""

    def __init__(self, unclean: tuple[str, ...] = ()) -> None:
        self.ensemble = WatchedEnsemble()
        self.session = self.ensemble.connect().session_id
        self.states = States(self.ensemble, unclean)
        self.ensemble.on_commit = self.states.committed
        paths = "/brokers", "/brokers/topics"
        self.commit(*(Create(each) for each in paths), Create(CONTROLLER_EPOCH, b"7"))
        self.commit(Create(topic_path(T), Assignment({0: (1, 2, 3)}, ID).encode()))
        self.commit(Create(f"{topic_path(T)}/partitions"), Create(partition_path(T, 0)))
        self.commit(Create(state_path(T, 0), LeaderAndIsr(1, 0, (1, 2, 3), 7).encode()))

    def commit(self, *changes: Change) -> None:
        self.ensemble.commit(self.session, changes)

    def state(self, leader: int, epoch: int, *isr: int, controller_epoch: int = 7) -> None:
        self.commit(SetData(state_path(T, 0), LeaderAndIsr(leader, epoch, isr, controller_epoch).encode()))

    def assign(self, replicas: tuple[int, ...], adding: tuple[int, ...] = (), removing: tuple[int, ...] = ()) -> None:
        changed = Assignment(
            {0: replicas}, ID, {0: adding} if adding else {}, {0: removing} if removing else {}
        ).encode()
        self.commit(SetData(topic_path(T), changed))

    @property
    def said(self) -> str:
        return str(self.states.violation or "")


def test_what_controllers_do_is_not_complained_of() -> None:
    written = Written()
    written.state(1, 0, 1, 3)  # its leader removes 2 from the ISR
    written.state(3, 1, 3)  # 1 ends, 3 is elected
    written.state(-1, 2, 3)  # 3 ends as well
    written.state(3, 3, 3)
    written.state(3, 3, 3, 1)
    written.assign((3, 1, 2, 4), adding=(4,), removing=(2,))
    written.state(3, 4, 3, 1)
    written.state(3, 4, 3, 1, 4)
    written.assign((3, 1, 4))
    assert not written.said
    assert written.states.counts["reassignments"] == 1
    newest = written.states.newest(KEY)
    assert newest is not None
    assert newest.isr == (3, 1, 4)
    assert written.states.assigned(KEY) == (3, 1, 4)
    assert [each.leader for each in written.states.history[KEY].values()] == [1, 1, 3, -1, 3, 3, 3, 3]


@pytest.mark.parametrize(
    ("rule", "state"),
    [
        ("R6", (4, 1, 4)),  # it was not in sync
        ("R6", (2, 1, 1, 2, 2)),
        ("R6", (2, 1)),
        ("R6", (2, 1, 1, 3)),
        ("R9", (2, 0, 1, 2, 3)),
        ("R9", (2, 2, 1, 2, 3)),
        ("R9", (1, -1, 1, 2, 3)),
    ],
)
def test_elections_that_cannot_be(rule: str, state: tuple[int, ...]) -> None:
    written = Written()
    written.state(*state)
    assert written.said.startswith(rule)


def test_an_unclean_election_is_one_only_where_the_topic_would_have_it_so() -> None:
    written = Written(unclean=(T,))
    written.state(-1, 1, 1)
    written.state(3, 2, 3)
    assert not written.said
    assert written.states.counts["unclean elections"] == 1
    written.state(2, 3, 2, 3)
    assert written.said.startswith("R6")


def test_in_sync_replicas_that_come_in_by_an_election() -> None:
    written = Written()
    written.state(1, 0, 1, 2)
    written.state(2, 1, 1, 2, 3)
    assert written.said.startswith("R7")


def test_in_sync_replicas_that_are_not_assigned() -> None:
    written = Written()
    written.state(1, 0, 1, 2, 3, 4)
    assert written.said.startswith("R7")


def test_in_sync_replicas_that_lack_what_is_committed_or_are_about_to_stop() -> None:
    written = Written()
    written.state(1, 0, 1)
    written.states.may_come_in = lambda key, broker: "it lacks something" if (key, broker) == (KEY, 2) else ""
    written.states.usable = lambda session, broker: (session, broker) != (written.session, 3)
    written.state(1, 0, 1, 2)
    assert written.said.endswith("it lacks something")
    written.states.violation = None
    written.state(1, 0, 1, 2, 3)
    assert written.said.endswith("3 does not live, or is about to stop")


def test_a_controller_that_was_replaced() -> None:
    written = Written()
    written.commit(SetData(CONTROLLER_EPOCH, b"8"))
    written.state(1, 0, 1, 2, controller_epoch=7)
    assert written.said.startswith("R16")


def test_a_partition_that_nobody_in_sync_begins() -> None:
    written = Written()
    written.commit(Create(partition_path(T, 1)), Create(state_path(T, 1), LeaderAndIsr(2, 0, (1,), 7).encode()))
    assert written.said.startswith("R6")


def test_replicas_that_go_before_others_are_in_sync() -> None:
    written = Written()
    written.assign((4, 2, 3, 1), adding=(4,), removing=(1,))
    written.assign((4, 2, 3))
    assert written.said.startswith("R17")


def test_a_cancelled_move_that_leaves_nobody_in_sync() -> None:
    written = Written()
    written.assign((4, 1, 2, 3), adding=(4,), removing=(1, 2, 3))
    written.state(1, 0, 1, 4)
    written.state(4, 1, 4)
    written.assign((1, 2, 3))
    assert written.said.startswith("R17")
