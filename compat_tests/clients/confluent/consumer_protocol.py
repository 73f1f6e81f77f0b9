"""Scenarios of group.protocol=consumer (KIP-848): groups that grow and shrink, static members, patterns, migration."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from confluent_kafka import TopicPartition

from compat_tests.clients.common import bulk, wait_for
from compat_tests.clients.confluent import scenarios
from compat_tests.clients.confluent.groups import Member, described, stable
from compat_tests.clients.confluent.tools import consumer, create, error_name, fill, take
from compat_tests.clients.members import settle

NEW: dict[str, Any] = {"group_protocol": "consumer"}


def _without_order(seen: dict[str, Any]) -> dict[str, Any]:
    """Leave out which member has which partition: the assignment depends on the random member ids."""
    members = [[*fields[:3], len(fields[3] or ())] for fields in seen["members"]]
    return {**seen, "members": sorted(members, key=repr)}


@scenarios.add
def consumer_protocol_group_grows_and_shrinks(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 6)
    seen: dict[str, Any] = {}
    with ExitStack() as stack:
        members = [stack.enter_context(Member(bootstrap, unique, topic, **NEW))]
        seen["one"] = settle(members, [6])
        members.append(stack.enter_context(Member(bootstrap, unique, topic, **NEW)))
        seen["two"] = [len(share) for share in settle(members, [3, 3])]
        seen["described"] = _without_order(stable(bootstrap, unique))
        members.pop(0).leave()
        seen["the other"] = settle(members, [6])
    seen["empty"] = described(bootstrap, unique)
    return seen


@scenarios.add
def consumer_protocol_static_members(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 4)
    with ExitStack() as stack:

        def member(instance: str) -> Member:
            return stack.enter_context(Member(bootstrap, unique, topic, group_instance_id=instance, **NEW))

        one, two = member("one"), member("two")
        settle([one, two], [2, 2])
        stable(bootstrap, unique)
        before = [one.partitions, two.partitions]
        two.leave()
        away = described(bootstrap, unique)
        two = member("two")
        settle([one, two], [2, 2])
        after = [one.partitions, two.partitions]
        double = member("one")
        wait_for("the double's error", lambda: any(message.error() for message in double.messages))
        errors = sorted({error_name(message.error()) or "" for message in double.messages})
    return {"same": before == after, "while one is away": _without_order(away), "double": errors}


@scenarios.add
def consumer_protocol_goes_on_where_it_stopped(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    for partition in (0, 1):
        fill(bootstrap, topic, bulk(10), partition)
    offsets = [TopicPartition(topic, 0, 4), TopicPartition(topic, 1, 7)]
    with consumer(bootstrap, unique, group_protocol="consumer") as first:
        first.subscribe([topic])
        take(first, 20)
        first.commit(offsets=offsets, asynchronous=False)
    with Member(bootstrap, unique, topic, **NEW) as second:
        wait_for("the rest", lambda: len(second.messages) >= 9)
        return sorted([message.partition(), message.offset()] for message in second.messages)


@scenarios.add
def consumer_protocol_patterns(bootstrap: str, unique: str) -> object:
    create(bootstrap, f"{unique}-a", 2)
    create(bootstrap, f"other-{unique}", 2)
    with Member(bootstrap, unique, f"^{unique}-.*", **NEW) as member:
        seen: dict[str, Any] = {"one": settle([member], [2])}
        fill(bootstrap, f"{unique}-a", bulk(3))
        wait_for("its records", lambda: len(member.messages) >= 3)
        seen["topics"] = sorted({str(message.topic()).removeprefix(unique) for message in member.messages})
    return seen


@scenarios.add
def consumer_protocol_migration(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 4)
    seen: dict[str, Any] = {}
    with Member(bootstrap, unique, topic, partition_assignment_strategy="cooperative-sticky") as old:
        settle([old], [4])
        seen["classic"] = stable(bootstrap, unique)["type"]
        with Member(bootstrap, unique, topic, **NEW) as new:
            seen["both"] = [len(share) for share in settle([old, new], [2, 2])]
            seen["upgraded"] = _without_order(stable(bootstrap, unique))
        settle([old], [4])
        seen["downgraded"] = stable(bootstrap, unique)["type"]
    return seen
