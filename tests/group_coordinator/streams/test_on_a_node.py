"""Streams groups on a node with an authorizer, from the request's bytes to the response's bytes."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

from kbroker.handlers.streams_groups import streams_group_heartbeat
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest, Subtopology, TopicInfo, Topology
from kbroker.security.authorizer.acls import Operation, PatternType, ResourceType
from tests.security.authorizer.served import ADMIN, ALICE, asynchronous, serving

E = ErrorCode
LONGEST = 32_767
DELAY = {"group_streams_initial_rebalance_delay_ms": "0"}


async def opened(served):
    """Create the topics `t` and `__consumer_offsets`."""
    for name in ("t", "__consumer_offsets"):
        served.node.controller.auto_create(name)
    await served.settled()
    await served.node.replicas.hosted_of("__consumer_offsets")


async def join(served, *subtopologies, principal=ADMIN, **fields):
    return await served.ask(joining(*subtopologies, **fields), 1, principal)


def joining(*subtopologies, member_id="m", **fields):
    return StreamsGroupHeartbeatRequest(
        group_id="g",
        member_id=member_id,
        topology=Topology(1, list(subtopologies)),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        rebalance_timeout_ms=1_000,
        process_id="p",
        **fields,
    )


def storing(*names):
    return Subtopology("0", ["t"], [], [TopicInfo(name, 0, 0, []) for name in names], [], [], [])


@asynchronous
async def test_many_topics_that_a_member_may_not_create_are_told_in_a_text_that_clients_can_read(tmp_path):
    async with serving(tmp_path, **DELAY) as served:
        await opened(served)
        await served.allow(ResourceType.GROUP, "g", Operation.READ)
        for name in ("t", "s"):
            await served.allow(ResourceType.TOPIC, name, Operation.DESCRIBE, pattern=PatternType.PREFIXED)
        names = [f"s-{index}-".ljust(200, "x") for index in range(200)]
        answer = await join(served, storing(*names), principal=ALICE)
        assert answer.error_code == E.NONE
        (status,) = answer.status
        assert "Unauthorized to CREATE on topics s-" in status.status_detail
        assert len(status.status_detail) == LONGEST


@asynchronous
async def test_invalid_names_and_long_ids_are_told_in_a_text_that_clients_can_read(tmp_path):
    async with serving(tmp_path, **DELAY) as served:
        await opened(served)
        answer = await join(served, Subtopology("0", ["\u00fc" * 10_000, "/" * 30_000], [], [], [], [], []))
        assert answer.error_code == E.STREAMS_INVALID_TOPOLOGY
        assert len(answer.error_message.encode()) <= LONGEST
        assert (await join(served, storing(), instance_id="i")).error_code == E.NONE
        answer = await join(served, storing(), member_id="n" * LONGEST, instance_id="i")
        assert answer.error_code == E.UNRELEASED_INSTANCE_ID
        assert answer.error_message.startswith("Static member nnn")


@asynchronous
async def test_others_have_a_turn_between_the_decisions_who_may_create_a_topic(tmp_path):
    asked = []

    def may_create(name):
        asked.append(name)
        return False

    async with serving(tmp_path, **DELAY) as served:
        await opened(served)
        context = served.context(ADMIN)
        context.version = 1
        work = streams_group_heartbeat(context, joining(storing("a", "b", "c")), may_create=may_create)
        counts = [0]
        with suppress(StopIteration):
            while work.send(None) is None:
                counts.append(len(asked))
        assert counts[-1] == len(asked) == 3
        assert {after - before for before, after in pairwise(counts)} == {0, 1}
