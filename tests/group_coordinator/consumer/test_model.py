"""Random lives of a consumer group: members of both protocols join, leave, vanish, bounce; topics change; appends fail.

Checked at every step: G1 no partition has two owners at the same time, G4 and replay: a coordinator that loads the log,
compacted or not, has the same state as this one, G5 all members converge, each partition of each subscribed topic with
one owner, G7 the group's limit.
"""

from __future__ import annotations

import itertools
from hashlib import sha256
from typing import Any
from unittest.mock import patch
from uuid import UUID

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.coordination.shard import CoordinatorRecord
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.consumer.classic_subscriptions import read_assignment
from kbroker.group_coordinator.groups.classic_group import STABLE
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroupState
from kbroker.protocol.errors import ErrorCode
from tests.group_coordinator.consumer_context import Consumer, ConsumerContext, Owned
from tests.tries import tries

E = ErrorCode
TOPICS = ("t", "u", "v")
SESSION_MS = 45_000
MAX_SIZE = 6


def compacted(log: list[CoordinatorRecord]) -> list[CoordinatorRecord]:
    """Return the final result of compacting a log: the last value of each key, no tombstones."""
    last = {record.key: number for number, record in enumerate(log)}
    return [r for number, r in enumerate(log) if last[r.key] == number and r.value is not None]


class ClassicConsumer:
    """A member of the classic protocol with cooperative rebalances, whose subscription lists its partitions."""

    def __init__(self, context: ConsumerContext, *topics: str) -> None:
        self.context = context
        self.topics = topics
        self.member_id = ""
        self.generation = -1
        self.owned: Owned = set()
        self.parked: Any = None

    def subscription(self) -> bytes:
        out = b"\0\1" + len(self.topics).to_bytes(4, "big")
        for topic in self.topics:
            out += len(topic).to_bytes(2, "big") + topic.encode()
        out += b"\xff\xff\xff\xff"
        names = {t: name for t, _ in self.owned if (name := self.context.topics.name_of(t))}
        out += len(names).to_bytes(4, "big")
        for topic_id, name in sorted(names.items()):
            indexes = sorted(index for t, index in self.owned if t == topic_id)
            out += len(name).to_bytes(2, "big") + name.encode() + len(indexes).to_bytes(4, "big")
            out += b"".join(index.to_bytes(4, "big") for index in indexes)
        return out

    def step(self) -> None:
        """Do what such a client does next: join, process the response, sync, or heartbeat."""
        if self.parked is not None:
            self._hear()
        elif self.generation < 0:
            self._join()
        else:
            code = self.context.heartbeat(self.member_id, self.generation)
            if code == E.REBALANCE_IN_PROGRESS:
                self._join()
            elif code != E.NONE:
                self.forget(keep_id=False)

    def forget(self, *, keep_id: bool) -> None:
        self.owned, self.generation, self.parked = set(), -1, None
        if not keep_id:
            self.member_id = ""

    def _join(self) -> None:
        self.parked = self.context.join(
            self.member_id, protocols={"range": self.subscription()}, session=SESSION_MS, rebalance=60_000
        )
        self._hear()

    def _hear(self) -> None:
        answer = self.parked.answer
        if answer is None:
            return
        self.parked = None
        if answer.error_code == E.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self._join()
        elif answer.error_code == E.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self._sync(answer)
        elif answer.error_code != E.REBALANCE_IN_PROGRESS:
            self.forget(keep_id=False)

    def _sync(self, join: Any) -> None:
        if self.context.classic_groups.get("g") is not None:
            # A classic group now: this client's own assignor is not tested here.
            self.generation = -1
            self.forget(keep_id=True)
            return
        answer = self.context.sync(self.member_id, self.generation, protocol_name="range").answer
        if answer.error_code == E.NONE:
            partitions, _ = read_assignment(answer.assignment, self.context.topics)
            self.owned = {(topic_id, index) for topic_id, indexes in partitions.items() for index in indexes}
        elif answer.error_code == E.REBALANCE_IN_PROGRESS:
            self._join()
        else:
            self.forget(keep_id=False)


class GroupLife(RuleBasedStateMachine):
    @initialize(interval=st.sampled_from([0, 1_000]))
    def begin(self, interval: int) -> None:
        # Ids decide the order of members, and hypothesis must be able to repeat a run.
        numbers = itertools.count(1)
        made = patch("uuid.uuid4", lambda: UUID(int=next(numbers) * 0x9E3779B97F4A7C15))
        random = patch("os.urandom", lambda size: sha256(b"%d" % next(numbers)).digest()[:size])
        self.ids = (made, random)
        for each in self.ids:
            each.start()
        config = GroupConfig(consumer_assignment_interval_ms=interval, consumer_max_size=MAX_SIZE)
        self.c = ConsumerContext(config)
        self.lives = dict.fromkeys(TOPICS, 0)
        self.counts: dict[str, int] = {}
        self.consumers: list[Consumer] = []
        self.classics: list[ClassicConsumer] = []
        self.made = 0
        self.grow("t", 3)

    # -- members

    @rule(topics=st.sets(st.sampled_from(TOPICS), min_size=1), assignor=st.sampled_from([None, "range", "uniform"]))
    @precondition(lambda self: len(self.consumers) < 5)
    def new_consumer(self, topics: set[str], assignor: str | None) -> None:
        self.made += 1
        fields = {} if assignor is None else {"server_assignor": assignor}
        self.consumers.append(Consumer(self.c, f"m{self.made}", *sorted(topics), **fields))

    @rule(instance=st.sampled_from(["i", "j"]))
    def new_static_consumer(self, instance: str) -> None:
        for old in [c for c in self.consumers if c.fields.get("instance_id") == instance]:
            if old.epoch > 0:
                old.leave(-2)
            self.consumers.remove(old)
        self.made += 1
        self.consumers.append(Consumer(self.c, f"m{self.made}", "t", instance_id=instance))

    @rule(topics=st.sets(st.sampled_from(TOPICS), min_size=1))
    @precondition(lambda self: len(self.classics) < 3)
    def new_classic(self, topics: set[str]) -> None:
        self.classics.append(ClassicConsumer(self.c, *sorted(topics)))

    @rule(data=st.data(), gives_up=st.booleans())
    @precondition(lambda self: self.consumers)
    def beat(self, data: st.DataObject, gives_up: bool) -> None:
        consumer = data.draw(st.sampled_from(self.consumers))
        consumer.beat()
        if gives_up:
            consumer.settle()
        else:
            # A member may use new partitions immediately, and be slow to revoke others.
            consumer.owned |= consumer.told

    @rule(data=st.data())
    @precondition(lambda self: self.classics)
    def step(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.classics)).step()

    @rule(data=st.data(), topics=st.sets(st.sampled_from(TOPICS)))
    @precondition(lambda self: any(c.epoch > 0 for c in self.consumers))
    def resubscribe(self, data: st.DataObject, topics: set[str]) -> None:
        consumer = data.draw(st.sampled_from([c for c in self.consumers if c.epoch > 0]))
        consumer.topics = sorted(topics)
        consumer._take(
            self.c.beat(
                consumer.member_id, consumer.epoch, owned=consumer.owned, subscribed_topic_names=consumer.topics
            )
        )

    @rule(data=st.data())
    @precondition(lambda self: self.consumers)
    def leave(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(self.consumers))
        consumer.leave()
        self.consumers.remove(consumer)

    @rule(data=st.data())
    @precondition(lambda self: self.consumers)
    def vanish(self, data: st.DataObject) -> None:
        self.consumers.remove(data.draw(st.sampled_from(self.consumers)))

    @rule(data=st.data())
    @precondition(lambda self: self.classics)
    def classic_leaves(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.classics))
        self.classics.remove(member)
        if member.generation >= 0 and ("g" in self.c.consumer_groups or "g" in self.c.classic_groups):
            self.c.leave((member.member_id, None))

    # -- the world

    @rule(topic=st.sampled_from(TOPICS), more=st.integers(1, 3))
    def grow(self, topic: str, more: int) -> None:
        count = self.counts.get(topic, 0) + more
        if count <= 8:
            self.counts[topic] = count
            self.c.create(topic, count, life=self.lives[topic])

    @rule(topic=st.sampled_from(TOPICS))
    def delete(self, topic: str) -> None:
        if topic in self.counts:
            del self.counts[topic]
            self.lives[topic] += 1
            self.c.delete(topic)

    @rule(ms=st.sampled_from([100, 1_000, 10_000, 31_000]))
    def wait(self, ms: int) -> None:
        """Let time pass; a member past its timeout knows that, as a client does."""
        self.c.advance(ms)
        self._notice()

    def _notice(self) -> None:
        group = self.c.consumer_groups.get("g")
        known = group.members if group is not None else {}
        for consumer in self.consumers:
            if consumer.epoch > 0 and consumer.member_id not in known:
                consumer.epoch, consumer.owned, consumer.told = 0, set(), set()
        for member in self.classics:
            if member.generation >= 0 and member.member_id not in known:
                member.forget(keep_id=False)

    @rule()
    def move_coordinator(self) -> None:
        if any(member.parked is not None for member in self.classics):
            for member in self.classics:
                member.forget(keep_id=False)
        if "g" in self.c.classic_groups:
            return
        self.c = self.c.restarted()
        for member in [*self.consumers, *self.classics]:
            member.context = self.c

    @rule(data=st.data())
    @precondition(lambda self: self.consumers)
    def failed_append(self, data: st.DataObject) -> None:
        self.c.fail_with = E.NOT_ENOUGH_REPLICAS
        data.draw(st.sampled_from(self.consumers)).beat()
        self.c.fail_with = E.NONE

    # -- what must hold

    @invariant()
    def g1_one_owner(self) -> None:
        if not hasattr(self, "c") or "g" in self.c.classic_groups:
            return
        owners: dict[tuple[bytes, int], str] = {}
        for member in [*self.consumers, *self.classics]:
            if isinstance(member, Consumer) and member.epoch == 0:
                continue
            for place in member.owned:
                assert place not in owners, (place, owners[place], member.member_id)
                owners[place] = member.member_id

    @invariant()
    def replay_leads_to_the_same(self) -> None:
        if not hasattr(self, "c"):
            return
        log = self.c.log
        self._same(log)
        for kept in (log, log[: len(log) // 2]):
            self._same([*compacted(kept), *log[len(kept) :]])

    def _same(self, log: list[CoordinatorRecord]) -> None:
        """Load the log in another shard, and compare."""
        here, there = self.c, ConsumerContext(self.c.config, log, self.c.topics)
        assert here.consumer_groups.keys() == there.consumer_groups.keys()
        for group_id, group in here.consumer_groups.items():
            other = there.consumer_groups[group_id]
            for name in (
                "epoch", "assignment_epoch", "assignment_timestamp", "metadata_hash", "members", "static_members",
                "target", "resolved", "regexes", "assignors", "classic_members", "classic_protocols",
                "_partition_epochs",
            ):  # fmt: skip
                assert getattr(group, name) == getattr(other, name), name
            assert group.counts.by_name == other.counts.by_name
            assert len(group.members) <= MAX_SIZE

    def teardown(self) -> None:
        """Let all remaining members follow their assignments: the group converges, and no state is left over."""
        if not hasattr(self, "c"):
            return
        for each in self.ids:
            each.stop()
        self.classics.clear()
        self.c.advance(5 * 60_000 + SESSION_MS)  # classic members and vanished members are removed by then
        self._notice()
        for _ in range(4 * len(self.consumers) + 8):
            for consumer in self.consumers:
                consumer.beat()
                consumer.settle()
            self.c.advance(1_100)
            self._notice()
        members = [c for c in self.consumers if c.epoch > 0]
        if not members:
            return
        assert "g" not in self.c.classic_groups or self.c.classic_groups["g"].state is not STABLE
        group = self.c.consumer_group()
        assert group.state is ConsumerGroupState.STABLE, group.members
        everything = {
            (self.c.topics.id_of(topic), index)
            for topic, count in self.counts.items()
            if any(topic in (member.topics or ()) for member in members)
            for index in range(count)
        }
        held = [place for member in members for place in member.owned]
        assert len(held) == len(set(held))
        assert set(held) == everything
        for member in members:
            wanted = {self.c.topics.id_of(topic) for topic in member.topics or ()}
            assert {topic_id for topic_id, _ in member.owned} <= wanted


TestGroupLife = GroupLife.TestCase
TestGroupLife.settings = settings(
    max_examples=tries(200), stateful_step_count=60, suppress_health_check=list(HealthCheck)
)
