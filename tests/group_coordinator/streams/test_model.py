"""Random lives of a streams group: threads of several processes join, leave, vanish; topics grow; appends fail.

Checked at every step: no active task has two owners at the same time, and a coordinator that loads the log, compacted
or not, has the same state as this one. In the end all members converge: each task has one owner, and no process has a
task twice.
"""

from __future__ import annotations

import itertools

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.coordination.shard import CoordinatorRecord
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.groups.streams_group import StreamsGroupState
from kbroker.group_coordinator.streams_settings import StreamsConfig
from tests.group_coordinator.consumer.test_model import compacted
from tests.group_coordinator.streams_context import StreamsContext, StreamsThread, converge, reading, topology
from tests.tries import tries

TOPOLOGY = topology(reading("t", store="c"), reading("u", name="1"))


class StreamsLife(RuleBasedStateMachine):
    @initialize(delay=st.sampled_from([0, 3_000]), interval=st.sampled_from([0, 1_000]), standbys=st.integers(0, 2))
    def begin(self, delay: int, interval: int, standbys: int) -> None:
        config = StreamsConfig(
            initial_rebalance_delay_ms=delay, assignment_interval_ms=interval, standby_replicas=standbys
        )
        self.context = StreamsContext(GroupConfig(streams=config))
        self.context.create("t", 3)
        self.context.create("c", 3)
        self.context.create("u", 2)
        self.threads: list[StreamsThread] = []
        self.gone: list[StreamsThread] = []
        self.names = itertools.count()
        self.standbys = standbys

    def some(self, data: st.DataObject) -> StreamsThread:
        return data.draw(st.sampled_from(self.threads))

    @precondition(lambda self: len(self.threads) < 6)
    @rule(process=st.sampled_from("pq"), static=st.booleans())
    def join(self, process: str, static: bool) -> None:
        number = next(self.names)
        fields = {"instance_id": f"i{number}"} if static else {}
        self.threads.append(StreamsThread(self.context, f"m{number}", TOPOLOGY, process, **fields))

    @precondition(lambda self: self.threads)
    @rule(data=st.data(), settles=st.booleans())
    def beat(self, data: st.DataObject, settles: bool) -> None:
        thread = self.some(data)
        thread.beat()
        for role, held in thread.held.items():
            held &= thread.told[role]
        if settles:
            thread.settle()

    @precondition(lambda self: self.threads)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        thread = self.some(data)
        self.threads.remove(thread)
        thread.leave()

    @precondition(lambda self: self.threads)
    @rule(data=st.data())
    def vanish(self, data: st.DataObject) -> None:
        """End a process without leaving: its tasks run nowhere."""
        self.threads.remove(self.some(data))

    @precondition(lambda self: self.threads)
    @rule(data=st.data())
    def bounce(self, data: st.DataObject) -> None:
        thread = self.some(data)
        if "instance_id" in thread.fields:
            thread.leave(-2)
            thread.member_id = f"m{next(self.names)}"

    @rule(seconds=st.sampled_from([1, 4, 20, 46]))
    def wait(self, seconds: int) -> None:
        self.context.advance(seconds * 1_000)
        for thread in self.threads:
            if seconds > 20:  # a client without a response for that long gives up its tasks
                thread._forget()

    @rule()
    def grow(self) -> None:
        count = self.context.topics.partitions_of("u") or 0
        self.context.create("u", min(count + 1, 6))

    @rule()
    def reload(self) -> None:
        self.context = self.context.restarted()
        for thread in self.threads:
            thread.context = self.context

    @invariant()
    def nobody_shares_an_active_task(self) -> None:
        seen: dict[tuple[str, int], str] = {}
        for thread in self.threads:
            for task in thread.held["active"]:
                assert task not in seen, f"{task} runs in {seen[task]} and {thread.member_id}"
                seen[task] = thread.member_id

    @invariant()
    def the_log_tells_the_same(self) -> None:
        group = self.context.shard.groups.streams("g")
        for log in (self.context.log, compacted(list[CoordinatorRecord](self.context.log))):
            again = StreamsContext(self.context.config, log, self.context.topics, self.context.now)
            loaded = again.shard.groups.streams("g")
            if group is None:
                assert loaded is None
                continue
            assert loaded is not None
            for name in ("epoch", "assignment_epoch", "members", "static_members", "target", "topology", "_active"):
                assert getattr(loaded, name) == getattr(group, name), name

    def teardown(self) -> None:
        if not hasattr(self, "threads") or not self.threads:
            return
        self.context.advance(46_000)
        for thread in self.threads:
            thread._forget()
        converge(self.threads, rounds=20)
        assert self.context.streams_group().state is StreamsGroupState.STABLE
        tasks = {("0", index) for index in range(3)}
        tasks |= {("1", index) for index in range(self.context.topics.partitions_of("u") or 0)}
        held = [task for thread in self.threads for task in thread.held["active"]]
        assert sorted(held) == sorted(tasks)
        for process in "pq":
            here = [each for each in self.threads if each.process == process]
            copies = [task for each in here for task in [*each.held["active"], *each.held["standby"]]]
            assert len(copies) == len(set(copies)), "a process has a task twice"


TestStreamsLife = StreamsLife.TestCase
TestStreamsLife.settings = settings(
    max_examples=tries(60), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
