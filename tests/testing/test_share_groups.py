"""A share group as a value: its start offsets, its lag and what is in flight, also over the control API."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges import share_groups
from kbroker import ApiError, Broker
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.share_groups import ShareGroupHeartbeatResponse
from kbroker.testing.groups import Group
from tests.control.conftest import controlled
from tests.share_partition.conversation import GROUP, Member, acquired

FEW = {"share.coordinator.state.topic.num.partitions": "1", "offsets.topic.num.partitions": "1"}
T = ("jobs", 0)


def joined(broker: Broker, client: WireClient, name: str) -> None:
    """Let a member send heartbeats until it owns the partition."""
    epochs = {name: 0}

    def has_it(_: Broker) -> bool:
        answer = client.ask(share_groups.beat(GROUP, name, epochs[name], "jobs"), 1)
        assert isinstance(answer, ShareGroupHeartbeatResponse)
        epochs[name] = answer.member_epoch or epochs[name]
        return any(each.id == name and each.assigned == (T,) for each in broker.groups[GROUP].members)

    broker.wait_for(has_it, timeout=20)


def runs(group: Group, **which: Any) -> list[tuple[int, int, str, int, str | None]]:
    return [
        (each.first_offset, each.last_offset, each.state, each.deliveries, each.member)
        for each in group.in_flight(**which)
    ]


def started(broker: Broker, client: WireClient) -> Any:
    """Create the topics, and the group with two members; return the parts of a broker that a Member needs."""
    broker.topics.create("jobs")
    broker.topics.create("wide", 2)
    client.ask(FindCoordinatorRequest(key=GROUP), 3)
    joined(broker, client, "one")
    joined(broker, client, "two")
    topic_id = broker.node.controller.state.topics["jobs"].topic_id
    return SimpleNamespace(broker=broker, topics={"jobs": topic_id})


def test_what_is_in_flight() -> None:
    with Broker(FEW) as broker, WireClient(broker.bootstrap_servers) as client, controlled(broker) as api:
        group = broker.groups[GROUP]
        assert (group.in_flight(), group.offsets) == ([], {})
        served = started(broker, client)
        with Member(served, "one") as one, Member(served, "two") as two:
            assert acquired(one.fetch(T)) == []
            for number in range(6):
                broker.topics["jobs"].produce(f"job {number}")
            broker.wait_for(lambda _: group.lag("jobs") == 6)
            assert group.in_flight() == []
            assert acquired(one.fetch(T, wait_ms=5000))[-1][1] == 5
            began = broker.clock.now_ms()
            (held,) = {each.deadline_ms for each in group.in_flight()}
            assert began - 20_000 < held - 30_000 <= began + 1  # a deadline is rounded to a ms of another clock
            one.acknowledge({T: [(1, 1, [1]), (2, 2, [2]), (3, 3, [3])]})
            told = runs(group)
            assert [each[2] for each in told] == [
                "acquired", "acknowledged", "available", "archived", "acquired"
            ]  # fmt: skip
            assert told[0] == (0, 0, "acquired", 1, "one")
            assert told[2] == (2, 2, "available", 1, None)
            assert all(each.is_stored for each in group.in_flight())
            assert (group.offsets, group.lag(), group.lag("jobs")) == ({T: 0}, 4, 4)
            assert runs(group, topic="wide") == runs(group, partition=1) == []
            assert runs(group, topic="jobs", partition=0, count=2) == told[:2]

            answer = api.ok("GET", f"/in-flight/{GROUP}?limit=3")
            assert [each["state"] for each in answer["in_flight"]] == ["acquired", "acknowledged", "available"]
            assert answer["more"] is True
            assert abs(answer["in_flight"][0].pop("deadline_ms") - held) <= 2, "two clocks are read one after the other"
            assert answer["in_flight"][0] == {
                "topic": "jobs", "partition": 0, "first_offset": 0, "last_offset": 0, "state": "acquired",
                "deliveries": 1, "member": "one", "is_stored": True,
            }  # fmt: skip
            assert api.ok("GET", f"/in-flight/{GROUP}?topic=jobs&partition=0")["more"] is False
            assert api.ok("GET", f"/groups/{GROUP}")["lag"] == 4

            broker.clock.advance(seconds=30)
            broker.wait_for(lambda _: all(each.member is None for each in group.in_flight()))
            two.fetch(T, wait_ms=5000)
            again = [each for each in runs(group) if each[4] == "two"]
            assert again[0] == (0, 0, "acquired", 2, "two"), "the lock has ended, and another member has the record"
            two.acknowledge({T: [(0, 0, [1])]})
            assert group.offsets == {T: 2}
        with pytest.raises(ApiError, match="NON_EMPTY_GROUP"):
            group.delete_offsets("jobs")
        for name in ("one", "two"):
            client.ask(share_groups.beat(GROUP, name, -1), 1)
        with pytest.raises(ApiError, match="for all partitions of wide together"):
            group.delete_offsets("wide:0")
        group.delete_offsets("jobs")
        assert group.offsets == {}
        group.delete()
        assert group.state == "Dead"


@pytest.mark.parametrize("name", ["nobody", "billing"])
def test_other_groups_have_nothing_in_flight(name: str) -> None:
    with Broker() as broker:
        assert broker.groups[name].in_flight() == []
        with pytest.raises(KeyError, match="no topic 'jobs'"):
            broker.groups[name].in_flight("jobs")
