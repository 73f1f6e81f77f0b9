"""Random lives of share groups: members join, leave and vanish; topics change; the share coordinator and appends fail.

Checked at every step: a coordinator that loads the log, compacted or not, is where this one is; only initialised
partitions of subscribed topics are assigned; the group keeps its limit. At the end all come to rest: every partition of
each subscribed topic is initialised and has a member, every member has what the target gives it, and after the last
member and the group's deletion nothing is left.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.groups.share_group import StatePartitions
from kbroker.protocol.errors import ErrorCode
from tests.group_coordinator.consumer.test_model import compacted
from tests.tries import tries

from .context import ShareContext

E = ErrorCode
NAMES, TOPICS, MAX_SIZE = ("a", "b", "c", "d"), ("t", "u"), 3


class ShareGroups(RuleBasedStateMachine):
    """One group, and the epochs that its members know."""

    def __init__(self):
        super().__init__()
        self.context = ShareContext(GroupConfig(share_assignment_interval_ms=0, share_max_size=MAX_SIZE))
        self.epochs = {}
        self.lives = dict.fromkeys(TOPICS, 0)

    def beat(self, name, *topics):
        known = self.context.shard.groups.share("g")
        full = known is not None and len(known.members) >= MAX_SIZE and name not in known.members
        answer = self.context.share_beat(name, self.epochs.get(name, 0), *topics)
        code = answer.error_code
        if code == E.NONE:
            self.epochs[name] = answer.member_epoch
        elif full and code == E.GROUP_MAX_SIZE_REACHED:
            pass
        else:
            assert code in (E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND, E.COORDINATOR_NOT_AVAILABLE, E.INVALID_REQUEST)
            if code in (E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND):
                self.epochs.pop(name, None)
        return code

    @rule(name=st.sampled_from(NAMES), topics=st.sets(st.sampled_from(TOPICS), min_size=1), fail=st.booleans())
    def subscribe(self, name, topics, fail):
        self.context.fail_with = E.NOT_ENOUGH_REPLICAS if fail else E.NONE
        self.beat(name, *sorted(topics))
        self.context.fail_with = E.NONE

    @rule(name=st.sampled_from(NAMES))
    def heartbeat(self, name):
        if name in self.epochs:
            self.beat(name)

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name):
        if name in self.epochs:
            self.context.share_beat(name, -1)
            del self.epochs[name]

    @rule(ms=st.sampled_from([1_000, 31_000, 46_000]))
    def advance(self, ms):
        self.context.advance(ms)

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 5))
    def create(self, topic, count):
        topics = self.context.topics
        known = topics.id_of(topic)
        if known is None or topics.count_of(known) < count:
            self.context.create(topic, count, self.lives[topic])

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic):
        known = self.context.topics.id_of(topic)
        if known is not None:
            self.lives[topic] += 1
            self.context.delete(topic)
            self.context.share_state(lambda state: state.on_topics_deleted([known]))

    @rule(fails=st.booleans())
    def answer_of_the_share_coordinator(self, fails):
        if not fails:
            self.context.initialise()
            return
        for each in self.context.wanted:
            topics = {topic_id: list(offsets) for topic_id, offsets in each.offsets.items()}
            self.context.share_state(lambda state, topics=topics: state.not_initialized("g", topics))
        self.context.wanted.clear()

    @rule(compact=st.booleans())
    def restart(self, compact):
        if compact:
            after = ShareContext(
                self.context.config, compacted(self.context.log), self.context.topics, self.context.now
            )
        else:
            after = self.context.restarted()
        self.same(after)
        self.context = after

    def same(self, other):
        ours, theirs = self.context.shard.groups.share("g"), other.shard.groups.share("g")
        assert (ours is None) == (theirs is None)
        if ours is not None:
            for name in ("epoch", "assignment_epoch", "members", "target", "metadata_hash", "state_partitions"):
                assert getattr(ours, name) == getattr(theirs, name), name
            assert ours.counts.by_name == theirs.counts.by_name

    @invariant()
    def only_initialised_partitions_are_assigned(self):
        group = self.context.shard.groups.share("g")
        if group is None:
            return
        assert len(group.members) <= MAX_SIZE
        held = group.state_partitions or StatePartitions()
        assert not held.initializing.keys() & held.deleting.keys()
        for topic_id, used in held.initializing.items():
            known = held.initialized.get(topic_id)
            assert known is None or not known.partitions & used.partitions

    def teardown(self):
        self.come_to_rest()
        super().teardown()

    def come_to_rest(self):
        context = self.context
        for topic in TOPICS:
            if context.topics.id_of(topic) is None:
                context.create(topic, 2, self.lives[topic])
        for name in list(self.epochs):
            self.beat(name)
        if not self.epochs:
            self.beat("a", "t")
        for _ in range(6):
            context.advance(31_000)
            for name in list(self.epochs):
                self.beat(name)
                context.initialise()
        group = context.share_group()
        wanted = {
            (context.topics.id_of(topic), index)
            for topic in group.counts.by_name
            for index in range(context.topics.count_of(context.topics.id_of(topic)))
        }
        held = {
            (topic_id, index)
            for member in group.members.values()
            for topic_id, indexes in member.assigned.items()
            for index in indexes
        }
        assert held == wanted
        for member in group.members.values():
            subscribed = {context.topics.id_of(topic) for topic in member.topics}
            assert {topic_id for topic_id, indexes in member.assigned.items() if indexes} <= subscribed
            assert member.member_epoch == group.assignment_epoch == group.epoch
        for name in list(group.members):
            context.share_beat(name, -1)
        context.share_state(lambda state: state.delete_groups(["g"]))
        (result,) = context.ask(lambda shard, _now: shard.delete_groups(["g"]))
        assert result.error_code == E.NONE
        assert not compacted(context.log)


TestShareGroups = ShareGroups.TestCase
TestShareGroups.settings = settings(max_examples=tries(60), stateful_step_count=30)
