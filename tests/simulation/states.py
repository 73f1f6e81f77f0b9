"""What controllers may write about a partition, checked at every write (docs/replication.md: R6 to R9, R16, R17).

Owns every state that a partition ever had, by its version. A violation is kept in `violation`, because the writer must
not notice it; the next check of the brokers raises it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from kbroker.controller.cluster.assigned_replicas import Replicas, of_topic
from kbroker.controller.tree.memory import MemoryEnsemble
from kbroker.controller.tree.znode import Change, Create, Delete, Done, SetData
from kbroker.controller.znodes import CONTROLLER_EPOCH, TOPICS, Assignment, LeaderAndIsr, state_path, topic_path
from tests.simulation.violation import Violation

Key = tuple[str, int, bytes]
"""A partition of one topic: the topic's name, the partition's number, and the topic's id."""


class WatchedEnsemble(MemoryEnsemble):
    """An ensemble that reports what was written: `on_commit(session, changes)`."""

    def __init__(self) -> None:
        super().__init__()
        self.on_commit: Callable[[int, Sequence[Change]], None] = lambda _session, _changes: None

    def commit(self, session: int, changes: Sequence[Change]) -> list[Done]:
        done = super().commit(session, changes)
        self.on_commit(session, changes)
        return done


class States:
    """Judges what is written.

    `unclean` are the topics that may lose records instead of being without a leader. `may_come_in(key, broker)` returns
    why a broker must not become in sync, `usable(session, broker)` whether the owner of this session may choose a
    broker.
    """

    def __init__(self, ensemble: MemoryEnsemble, unclean: Collection[str] = ()) -> None:
        self._ensemble = ensemble
        self._unclean = unclean
        self.history: dict[Key, dict[int, LeaderAndIsr]] = {}
        self.may_come_in: Callable[[Key, int], str] = lambda _key, _broker: ""
        self.usable: Callable[[int, int], bool] = lambda _session, _broker: True
        self.violation: Violation | None = None
        self._newest: dict[Key, LeaderAndIsr] = {}
        self._assignments: dict[str, Assignment] = {}
        self.counts = {"unclean elections": 0, "reassignments": 0}

    def committed(self, session: int, changes: Sequence[Change]) -> None:
        """Judge the changes of one transaction."""
        try:
            for change in changes:
                if not change.path.startswith(f"{TOPICS}/"):
                    continue
                if isinstance(change, Create | SetData):
                    self._written(session, change.path)
                elif isinstance(change, Delete) and change.path.count("/") == 3:
                    self._assignments.pop(change.path.rpartition("/")[2], None)
        except Violation as violation:
            self.violation = self.violation or violation

    def newest(self, key: Key) -> LeaderAndIsr | None:
        """Return a partition's current state."""
        return self._newest.get(key)

    def assigned(self, key: Key) -> tuple[int, ...]:
        """Return a partition's current replicas."""
        assignment = self._assignments.get(key[0])
        if assignment is None or assignment.topic_id != key[2]:
            return ()
        return assignment.replicas.get(key[1], ())

    def is_moving(self, key: Key) -> bool:
        """Whether a reassignment of a partition is in progress."""
        assignment = self._assignments.get(key[0])
        if assignment is None or assignment.topic_id != key[2]:
            return False
        return bool(assignment.adding.get(key[1]) or assignment.removing.get(key[1]))

    def _written(self, session: int, path: str) -> None:
        parts = path.split("/")  # /brokers/topics/T[/partitions/P[/state]]
        if len(parts) == 4:
            self._assigned(parts[3])
        elif parts[-1] == "state":
            self._stated(session, parts[3], int(parts[5]))

    # --- states

    def _stated(self, session: int, topic: str, index: int) -> None:
        found = self._ensemble.read(state_path(topic, index))
        assignment = self._assignments.get(topic)
        assert found is not None
        if assignment is None:  # the topic was deleted meanwhile
            raise Violation(f"R16: a state of {topic}-{index} is written, of which there is no topic")
        key = topic, index, assignment.topic_id or b""
        state = LeaderAndIsr.decode(json.loads(found[0].data))
        history = self.history.setdefault(key, {})
        before = self._newest.get(key)
        history[found[0].stat.version] = self._newest[key] = state
        self._judge_controller(key, state)
        if before is None:
            if state.leader not in state.isr:
                raise Violation(f"R6: {_name(key)} begins as {state}")
            return
        self._judge_election(key, before, state)
        self._judge_in_sync(session, key, before, state)

    def _judge_controller(self, key: Key, state: LeaderAndIsr) -> None:
        """Check that only the newest controller writes."""
        newest = self._ensemble.read(CONTROLLER_EPOCH)
        epoch = -1 if newest is None else int(newest[0].data)
        if state.controller_epoch != epoch:
            raise Violation(
                f"R16: {_name(key)} is written by the controller of epoch {state.controller_epoch}, "
                f"while that of {epoch} is there"
            )

    def _judge_election(self, key: Key, before: LeaderAndIsr, state: LeaderAndIsr) -> None:
        """Check that a new leader was in sync, and begins a new leader epoch."""
        change = f"{_name(key)} goes from {before} to {state}"
        steps = state.leader_epoch - before.leader_epoch
        if steps not in (0, 1) or (steps == 0 and state.leader != before.leader):
            raise Violation(f"R9: {change}")
        if not state.isr or len(set(state.isr)) < len(state.isr):
            raise Violation(f"R6: {change}")
        if state.leader >= 0 and state.leader not in state.isr:
            raise Violation(f"R6: {change}")
        if state.leader < 0 or state.leader in before.isr:
            return
        if key[0] not in self._unclean or state.isr != (state.leader,):
            raise Violation(f"R6: {change}")
        self.counts["unclean elections"] += 1

    def _judge_in_sync(self, session: int, key: Key, before: LeaderAndIsr, state: LeaderAndIsr) -> None:
        """Check: a replica joins the ISR only if its leader asks for that and it is assigned, alive and complete."""
        change = f"{_name(key)} goes from {before} to {state}"
        new = [each for each in state.isr if each not in before.isr]
        if not new or (state.leader_epoch != before.leader_epoch and state.isr == (state.leader,)):
            return
        if state.leader_epoch != before.leader_epoch:
            raise Violation(f"R7: {change}: not by its leader's wish")
        for each in new:
            if each not in self.assigned(key):
                raise Violation(f"R7: {change}: {each} is none of {self.assigned(key)}")
            if not self.usable(session, each):
                raise Violation(f"R7: {change}: {each} does not live, or is about to stop")
            if why := self.may_come_in(key, each):
                raise Violation(f"R7: {change}: {why}")

    # --- assignments

    def _assigned(self, topic: str) -> None:
        found = self._ensemble.read(topic_path(topic))
        assert found is not None
        assignment = Assignment.decode(json.loads(found[0].data))
        before = self._assignments.get(topic)
        self._assignments[topic] = assignment
        if before is None or before.topic_id != assignment.topic_id:
            return
        now = of_topic(assignment)
        for index, replicas in of_topic(before).items():
            if now.get(index) != replicas:
                self._judge_move((topic, index, assignment.topic_id or b""), replicas, now.get(index) or Replicas(()))

    def _judge_move(self, key: Key, before: Replicas, now: Replicas) -> None:
        """Check that a removed replica is not needed: all others are in sync, or, after a cancel, one is."""
        state = self._newest.get(key)
        change = f"the replicas of {_name(key)} go from {before} to {now}, its state is {state}"
        if state is None:
            return
        if not set(state.isr) & set(now.replicas):
            raise Violation(f"R17: {change}: nobody in sync is left")
        gone = set(before.replicas) - set(now.replicas)
        if gone & set(before.removing) and now == Replicas(before.target):
            self.counts["reassignments"] += 1
            if not set(now.replicas) <= set(state.isr):
                raise Violation(f"R17: {change}: not all who stay are in sync")


def _name(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


def usable_for(brokers: dict[int, Any]) -> Callable[[int, int], bool]:
    """Return a function that says whether a controller, identified by its session, may choose a broker."""

    def usable(session: int, broker: int) -> bool:
        for each in brokers.values():
            if each.tree is not None and each.tree.session_id == session and each.node is not None:
                term = each.node.controller._term
                return term is None or bool(term.context.is_live(broker))
        return True

    return usable
