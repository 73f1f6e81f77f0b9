"""Scenarios: groups that form, grow, shrink and remember; what an admin sees of them."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, TypeVar

from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.admin import MemberToRemove
from kafka.consumer.fetcher import ConsumerRecord
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from compat_tests.clients.common import WAIT_S, bulk, outcome, wait_for
from compat_tests.clients.kafka_python import scenarios
from compat_tests.clients.kafka_python.tools import admin, consumer, create, fill, know, take
from compat_tests.clients.members import MemberThread, settle

FAST = {"heartbeat_interval_ms": 200, "session_timeout_ms": 6000}

T = TypeVar("T")


class Member(MemberThread):
    """A member of a group that subscribes to one topic and polls in its own thread, as applications do.

    A context manager. Only its thread uses the consumer; `do` runs a call in that thread.
    """

    def __init__(self, bootstrap: str, group: str, topic: str, **config: Any) -> None:
        super().__init__()
        settings = {**FAST, "group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False, **config}
        self._consumer = KafkaConsumer(bootstrap_servers=bootstrap, **settings)
        self._consumer.subscribe([topic])
        know(self._consumer, topic)
        self._work: queue.SimpleQueue[tuple[Callable[[KafkaConsumer], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._polling = True
        self.records: list[ConsumerRecord] = []

    def live(self) -> None:
        while True:
            if self._polling:
                for records in self._consumer.poll(timeout_ms=100).values():
                    self.records += records
                # The thread keeps this, because the consumer refuses a second thread.
                self.owned = frozenset(tp.partition for tp in self._consumer.assignment())
            try:
                work = self._work.get(timeout=0.001 if self._polling else 0.1)
            except queue.Empty:
                continue
            if work is None:
                break
            call, future = work
            try:
                future.set_result(call(self._consumer))
            except Exception as error:  # noqa: BLE001 - handed to who asked
                future.set_exception(error)
        self._consumer.close(autocommit=False)

    def do(self, call: Callable[[KafkaConsumer], T]) -> T:
        """Run `call` with the consumer in this member's thread and return its result."""
        future: Future[T] = Future()
        self._work.put((call, future))
        try:
            return future.result(WAIT_S)
        except TimeoutError:
            raise self.error or TimeoutError(self.doing()) from None

    def fall_silent(self) -> None:
        """Stop polling, like a member that works too long on a record."""
        self._polling = False

    def end(self) -> None:
        self._work.put(None)


def described(bootstrap: str, group: str) -> dict[str, Any]:
    """Return what an admin sees of a group, with sorted members and without their random ids."""
    with admin(bootstrap) as client:
        found = client.describe_groups([group])[group]
    for each in found["members"]:
        each["client_id"] = each["client_id"].rpartition("-")[0] or each["client_id"]
    found["members"].sort(key=lambda each: repr(each["member_assignment"]))
    return dict(found)


def stable(bootstrap: str, group: str) -> dict[str, Any]:
    """Wait until no rebalance is in progress, and return what an admin sees then.

    Members have their partitions before the last of them has sent SyncGroup.
    """

    def found() -> dict[str, Any] | None:
        seen = described(bootstrap, group)
        return seen if seen["group_state"] == "Stable" else None

    return wait_for("a stable group", found)


def _grow_and_shrink(bootstrap: str, unique: str, strategy: type) -> dict[str, Any]:
    topic = create(bootstrap, unique, 6)
    seen: dict[str, Any] = {}
    with ExitStack() as stack:
        members: list[Member] = []
        for count, sizes in ((1, [6]), (2, [3, 3]), (3, [2, 2, 2])):
            joining = Member(bootstrap, unique, topic, partition_assignment_strategy=(strategy,))
            members.append(stack.enter_context(joining))
            seen[f"{count} members"] = settle(members, sizes)
        seen["described"] = stable(bootstrap, unique)
        members.pop().leave()
        seen["one left"] = settle(members, [3, 3])
        members.pop().leave()
        seen["two left"] = settle(members, [6])
    seen["empty"] = described(bootstrap, unique)
    return seen


@scenarios.add
def range_group_grows_and_shrinks(bootstrap: str, unique: str) -> object:
    return _grow_and_shrink(bootstrap, unique, RangePartitionAssignor)


@scenarios.add
def round_robin_group_grows_and_shrinks(bootstrap: str, unique: str) -> object:
    return _grow_and_shrink(bootstrap, unique, RoundRobinPartitionAssignor)


@scenarios.add
def cooperative_group_grows_and_shrinks(bootstrap: str, unique: str) -> object:
    seen = _grow_and_shrink(bootstrap, unique, CooperativeStickyAssignor)
    group = seen["described"]
    # Which partitions a member keeps depends on the random member ids; the number of kept partitions does not.
    sizes = {stage: [len(share) for share in shares] for stage, shares in seen.items() if isinstance(shares, list)}
    return {"sizes": sizes, "protocol": group["protocol_data"], "state": group["group_state"], "empty": seen["empty"]}


@scenarios.add
def static_members_keep_their_partitions(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 4)
    with ExitStack() as stack:

        def member(instance: str) -> Member:
            joining = Member(bootstrap, unique, topic, group_instance_id=instance, session_timeout_ms=30_000)
            return stack.enter_context(joining)

        one, two = member("one"), member("two")
        settle([one, two], [2, 2])
        stable(bootstrap, unique)
        settle([one, two], [2, 2])
        before = [one.partitions, two.partitions]
        generation = one.do(lambda client: client.group_metadata().generation_id)
        two.leave()
        away = described(bootstrap, unique)
        # The member returns before its session expires: it gets the same partitions without a new generation.
        two = member("two")
        settle([one, two], [2, 2])
        after = [one.partitions, two.partitions]
        same_generation = one.do(lambda client: client.group_metadata().generation_id) == generation
    return {
        "same partitions": before == after,
        "same generation": same_generation,
        "members while one is away": sorted(each["group_instance_id"] for each in away["members"]),
        "members after both closed": len(described(bootstrap, unique)["members"]),
    }


@scenarios.add
def an_admin_removes_members(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    with Member(bootstrap, unique, topic, group_instance_id="one", session_timeout_ms=30_000) as one:
        settle([one], [2])
    with admin(bootstrap) as client:
        before = described(bootstrap, unique)["group_state"]
        unknown = outcome(
            lambda: str(client.remove_group_members(unique, [MemberToRemove(group_instance_id="nobody")]))
        )
        known = outcome(lambda: str(client.remove_group_members(unique, [MemberToRemove(group_instance_id="one")])))
        after = described(bootstrap, unique)["group_state"]
    return {"before": before, "unknown": unknown, "known": known, "after": after}


@scenarios.add
def a_silent_member_loses_its_partitions(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 4)
    with (
        Member(bootstrap, unique, topic, max_poll_interval_ms=1000) as quiet,
        Member(bootstrap, unique, topic) as lively,
    ):
        together = settle([quiet, lively], [2, 2])
        # The member's client notices that nobody polls, and leaves the group.
        quiet.fall_silent()
        alone = settle([lively], [4])
        return {"together": together, "alone": alone}


@scenarios.add
def a_group_goes_on_where_it_stopped(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    for partition in (0, 1):
        fill(bootstrap, topic, bulk(10), partition)
    offsets = {TopicPartition(topic, p): OffsetAndMetadata(offset, "", -1) for p, offset in ((0, 4), (1, 7))}
    with Member(bootstrap, unique, topic) as first:
        settle([first], [2])
        first.do(lambda client: client.commit(offsets))
    with Member(bootstrap, unique, topic) as second:
        wait_for("the rest", lambda: len(second.records) >= 9)
        return sorted([record.partition, record.offset] for record in second.records)


@scenarios.add
def commits_happen_by_themselves(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    fill(bootstrap, topic, bulk(10))
    with consumer(bootstrap, topic, group_id=unique, enable_auto_commit=True, auto_commit_interval_ms=100) as client:
        take(client, 10)
        committed = wait_for(
            "a commit", lambda: client.poll(timeout_ms=100) or client.committed(TopicPartition(topic, 0))
        )
    return {"committed": committed}


@scenarios.add
def a_group_with_members_is_protected(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    one = TopicPartition(topic, 0)
    seen: dict[str, Any] = {}
    with Member(bootstrap, unique, topic) as member, admin(bootstrap) as client:
        settle([member], [1])
        answer = client.alter_group_offsets(unique, {one: OffsetAndMetadata(1, "", -1)})
        seen["alter offsets"] = {str(tp.partition): error.__name__ for tp, error in answer.items()}
        seen["delete"] = client.delete_groups([unique])
        seen["delete offsets"] = outcome(
            lambda: {str(tp.partition): e.__name__ for tp, e in client.delete_group_offsets(unique, [one]).items()}
        )
    return seen


@scenarios.add
def groups_as_an_admin_sees_them(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    fill(bootstrap, topic, bulk(10))
    seen: dict[str, object] = {}
    with admin(bootstrap) as client:
        seen["unknown"] = client.describe_groups([f"{unique}-none"])
        seen["offsets of unknown"] = client.list_group_offsets(f"{unique}-none")
        seen["delete unknown"] = client.delete_groups([f"{unique}-none"])
        altered = client.alter_group_offsets(
            unique, {one: OffsetAndMetadata(3, "m", 0), two: OffsetAndMetadata(0, "", -1)}
        )
        seen["altered"] = sorted([tp.partition, error.__name__] for tp, error in altered.items())
        offsets = client.list_group_offsets(unique)[unique]
        seen["offsets"] = sorted([tp.partition, *offset] for tp, offset in offsets.items())
        seen["asked for"] = [
            [tp.partition, *offset] for tp, offset in client.list_group_offsets({unique: [one]})[unique].items()
        ]
        seen["described"] = client.describe_groups([unique])
        seen["listed"] = [each for each in client.list_groups() if each["group_id"] == unique]
        seen["listed as empty"] = [
            each["group_id"] for each in client.list_groups(states_filter=["Empty"]) if each["group_id"] == unique
        ]
        seen["listed as stable"] = [
            each["group_id"] for each in client.list_groups(states_filter=["Stable"]) if each["group_id"] == unique
        ]
        gone = client.delete_group_offsets(unique, [one])
        seen["deleted offsets"] = [[tp.partition, error.__name__] for tp, error in gone.items()]
        left = client.list_group_offsets(unique)[unique]
        seen["left"] = sorted([tp.partition, *offset] for tp, offset in left.items())
        seen["deleted"] = client.delete_groups([unique])
        seen["after"] = client.describe_groups([unique])
    return seen
