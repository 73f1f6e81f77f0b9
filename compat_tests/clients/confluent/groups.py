"""Scenarios: groups that form, grow, shrink and remember; what an admin sees of them."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Message, TopicPartition

from compat_tests.clients.common import WAIT_S, bulk, wait_for
from compat_tests.clients.confluent import scenarios
from compat_tests.clients.confluent.tools import QUIET, admin, answers, consumer, create, error_name, fill, take, told
from compat_tests.clients.members import MemberThread, settle

NEW = {"topic.metadata.refresh.interval.ms": 500}
FAST = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200, "topic.metadata.refresh.interval.ms": 500}


class Member(MemberThread):
    """A member of a group that subscribes to one topic and polls in its own thread. A context manager."""

    def __init__(self, bootstrap: str, group: str, topic: str, **config: Any) -> None:
        super().__init__()
        settings = {key.replace("_", "."): value for key, value in config.items()}
        base = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", **QUIET}
        # With the consumer protocol, the broker sets the heartbeat interval.
        base |= NEW if settings.get("group.protocol") == "consumer" else FAST
        self.consumer = Consumer({**base, "enable.auto.commit": False, **settings})
        self.messages: list[Message] = []
        # The callbacks set this: to ask the consumer from another thread while it rebalances may block forever.
        self.consumer.subscribe([topic], on_assign=self._gain, on_revoke=self._lose, on_lost=self._lose)
        self._ends = threading.Event()
        self.silent = threading.Event()

    def live(self) -> None:
        while not self._ends.is_set():
            if self.silent.is_set():
                self._ends.wait(0.1)
                continue
            message = self.consumer.poll(0.1)
            if message is not None:
                self.messages.append(message)
        self.consumer.close()

    def _gain(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned |= {each.partition for each in partitions}

    def _lose(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned -= {each.partition for each in partitions}

    def end(self) -> None:
        self._ends.set()


def described(bootstrap: str, group: str) -> dict[str, Any]:
    """Return what an admin sees of a group, with sorted members and without their random ids."""

    def show(found: Any) -> dict[str, Any]:
        members = [
            [
                each.client_id,
                each.host,
                each.group_instance_id,
                sorted(tp.partition for tp in each.assignment.topic_partitions) if each.assignment else None,
            ]
            for each in found.members
        ]
        return {
            "state": found.state.name,
            "type": found.type.name,
            "assignor": found.partition_assignor,
            "simple": found.is_simple_consumer_group,
            "coordinator": found.coordinator.id,
            "operations": found.authorized_operations,
            "members": sorted(members, key=repr),
        }

    client = admin(bootstrap)
    futures = client.describe_consumer_groups([group], request_timeout=10, include_authorized_operations=True)
    (only,) = answers(futures, show).values()
    return dict(only)


def stable(bootstrap: str, group: str) -> dict[str, Any]:
    """Wait until no rebalance is in progress, and return what an admin sees then."""

    def found() -> dict[str, Any] | None:
        seen = described(bootstrap, group)
        return seen if seen["state"] == "STABLE" else None

    return wait_for("a stable group", found)


def _grow_and_shrink(bootstrap: str, unique: str, strategy: str) -> dict[str, Any]:
    topic = create(bootstrap, unique, 6)
    seen: dict[str, Any] = {}
    with ExitStack() as stack:
        members: list[Member] = []
        for count, sizes in ((1, [6]), (2, [3, 3]), (3, [2, 2, 2])):
            members.append(
                stack.enter_context(Member(bootstrap, unique, topic, partition_assignment_strategy=strategy))
            )
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
    return _grow_and_shrink(bootstrap, unique, "range")


@scenarios.add
def round_robin_group_grows_and_shrinks(bootstrap: str, unique: str) -> object:
    return _grow_and_shrink(bootstrap, unique, "roundrobin")


@scenarios.add
def cooperative_group_grows_and_shrinks(bootstrap: str, unique: str) -> object:
    seen = _grow_and_shrink(bootstrap, unique, "cooperative-sticky")
    # Which partitions a member keeps depends on the random member ids; the number of kept partitions does not.
    sizes = {stage: [len(share) for share in shares] for stage, shares in seen.items() if isinstance(shares, list)}
    group = seen["described"]
    return {"sizes": sizes, "assignor": group["assignor"], "members": len(group["members"]), "empty": seen["empty"]}


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
        before = [one.partitions, two.partitions]
        two.leave()
        away = described(bootstrap, unique)
        two = member("two")
        settle([one, two], [2, 2])
        after = [one.partitions, two.partitions]
    return {
        "same": before == after,
        "while one is away": away,
        "both closed": len(described(bootstrap, unique)["members"]),
    }


@scenarios.add
def a_static_member_is_fenced_by_its_double(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    config = {"group_instance_id": "one", "session_timeout_ms": 30_000}
    with Member(bootstrap, unique, topic, **config) as first:
        settle([first], [2])
        with Member(bootstrap, unique, topic, **config) as second:
            settle([second], [2])
            wait_for("the error", lambda: any(message.error() for message in first.messages))
            return sorted({error_name(message.error()) or "" for message in first.messages})


@scenarios.add
def a_silent_member_loses_its_partitions(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 4)
    config = {"session_timeout_ms": 1500, "max_poll_interval_ms": 1500}
    with Member(bootstrap, unique, topic, **config) as quiet, Member(bootstrap, unique, topic) as lively:
        together = settle([quiet, lively], [2, 2])
        quiet.silent.set()
        return {"together": together, "alone": settle([lively], [4])}


@scenarios.add
def a_group_goes_on_where_it_stopped(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    for partition in (0, 1):
        fill(bootstrap, topic, bulk(10), partition)
    offsets = [TopicPartition(topic, 0, 4), TopicPartition(topic, 1, 7)]
    with consumer(bootstrap, unique) as first:
        first.subscribe([topic])
        take(first, 20)
        first.commit(offsets=offsets, asynchronous=False)
    with Member(bootstrap, unique, topic) as second:
        wait_for("the rest", lambda: len(second.messages) >= 9)
        return sorted([message.partition(), message.offset()] for message in second.messages)


@scenarios.add
def commits_happen_by_themselves(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    fill(bootstrap, topic, bulk(10))
    with consumer(bootstrap, unique, enable_auto_commit=True, auto_commit_interval_ms=100) as client:
        client.subscribe([topic])
        take(client, 10)

        def committed() -> int:
            client.poll(0.1)
            return max(int(client.committed([TopicPartition(topic, 0)], timeout=10)[0].offset), 0)

        return wait_for("a commit", committed)


@scenarios.add
def a_group_with_members_is_protected(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    client = admin(bootstrap)
    with Member(bootstrap, unique, topic) as member:
        settle([member], [1])
        moved = ConsumerGroupTopicPartitions(unique, [TopicPartition(topic, 0, 1)])
        return {
            "alter": answers(client.alter_consumer_group_offsets([moved]), _positions),
            "delete": answers(client.delete_consumer_groups([unique])),
        }


def _positions(found: Any) -> list[list[Any]]:
    return [[tp.partition, tp.offset, tp.metadata, error_name(tp.error)] for tp in found.topic_partitions]


@scenarios.add
def groups_as_an_admin_sees_them(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    fill(bootstrap, topic, bulk(10))
    client = admin(bootstrap)
    unknown = f"{unique}-none"

    def positions(group: str, partitions: list[TopicPartition] | None = None) -> Any:
        asked = ConsumerGroupTopicPartitions(group, partitions)
        return answers(client.list_consumer_group_offsets([asked]), _positions)

    def listed(**options: Any) -> list[list[Any]]:
        found = client.list_consumer_groups(**options).result(WAIT_S)
        return [
            [each.group_id == unique, each.is_simple_consumer_group, each.state.name, each.type.name]
            for each in found.valid
            if each.group_id == unique
        ]

    moved = [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 0)]
    return {
        "unknown": told(lambda: described(bootstrap, unknown)),
        "offsets of unknown": positions(unknown, [TopicPartition(topic, 0)]),
        "all offsets of unknown": positions(unknown),
        "delete unknown": answers(client.delete_consumer_groups([unknown])),
        "alter": answers(
            client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(unique, moved)]), _positions
        ),
        "offsets": positions(unique),
        "one offset": positions(unique, [TopicPartition(topic, 1), TopicPartition(topic, 5)]),
        "described": described(bootstrap, unique),
        "listed": listed(),
        "delete": answers(client.delete_consumer_groups([unique])),
        "listed after": listed(),
    }
