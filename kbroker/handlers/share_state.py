"""The requests that leaders of share partitions and group coordinators send to the share coordinator (KIP-932).

InitializeShareGroupState (key 83), version 0: begin the state of share partitions, or replace it.

ReadShareGroupState (key 84), version 0: return the complete state to a share partition's new leader.

WriteShareGroupState (key 85), versions 0-1: change a state. Version 1 has the delivery complete count (KIP-1226).

DeleteShareGroupState (key 86), version 0: delete states.

ReadShareGroupStateSummary (key 87), versions 0-1: epochs and offsets. Version 1 has the delivery complete count.

Behaviour (Kafka: ShareCoordinatorService): each share partition has its own error. A request without a group or without
topics gets an empty response. So does a request with a topic without partitions, except InitializeShareGroupState. If a
request repeats a partition, only its last entry is answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import has_share_groups, share_coordinator
from kbroker.long_work import awaited, each, every, turn
from kbroker.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    PartitionResult,
    PartitionState,
    PartitionSummary,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    StateBatch,
    TopicResult,
    TopicState,
    TopicSummary,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from kbroker.share_coordinator import state_batches
from kbroker.share_coordinator.persister import Change, Done, State, Summary
from kbroker.share_coordinator.share_partition_state import SharePartition

R = TypeVar("R")


async def _answers(
    request: Any, ask: Callable[[SharePartition, Any], R | Awaitable[R]]
) -> list[tuple[bytes, list[tuple[int, R]]]]:
    """Return the answer of `ask` for each partition, by topic. If a partition is repeated, its last entry counts."""
    asked: list[tuple[bytes, int, R | Awaitable[R]]] = []
    found: dict[bytes, dict[int, R]] = {}
    for topic in request.topics:
        for wanted in topic.partitions:
            place = SharePartition(request.group_id, topic.topic_id, wanted.partition)
            asked.append((topic.topic_id, wanted.partition, ask(place, wanted)))
            await turn
        await turn
    for topic_id, partition, answer in asked:
        found.setdefault(topic_id, {})[partition] = await awaited(answer)
        await turn
    results = []
    for topic_id, answers in found.items():
        results.append((topic_id, list(answers.items())))
        await turn
    return results


async def _asks_nothing(request: Any, *, whole_topics: bool = True) -> bool:
    """Whether a request gets an empty response."""
    if not request.group_id or not request.topics:
        return True
    for topic in request.topics if whole_topics else ():
        if not topic.partitions:
            return True
        await turn
    return False


async def _results(answers: Iterable[tuple[bytes, list[tuple[int, Done]]]]) -> list[TopicResult]:
    async def result(answer: tuple[bytes, list[tuple[int, Done]]]) -> TopicResult:
        topic_id, of_topic = answer
        partitions = await each(of_topic, lambda found: PartitionResult(found[0], *found[1]))
        return TopicResult(topic_id=topic_id, partitions=partitions)

    return await every(answers, result)


@handles(
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    "0",
    mirrored(InitializeShareGroupStateResponse),
    advertised=has_share_groups,
)
async def initialize_share_group_state(
    ctx: RequestContext, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    """Create or replace the states of share partitions."""
    shares = share_coordinator(ctx.services)
    if await _asks_nothing(request, whole_topics=False):
        return InitializeShareGroupStateResponse()
    answers = await _answers(request, lambda place, e: shares.initialize(place, e.state_epoch, e.start_offset))
    return InitializeShareGroupStateResponse(results=await _results(answers))


@handles(
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    "0",
    mirrored(ReadShareGroupStateResponse),
    advertised=has_share_groups,
)
async def read_share_group_state(
    ctx: RequestContext, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse:
    """Return states."""
    shares = share_coordinator(ctx.services)
    if await _asks_nothing(request):
        return ReadShareGroupStateResponse()

    async def answer(found: tuple[int, State]) -> PartitionState:
        partition, state = found
        return PartitionState(
            partition=partition,
            error_code=state.error_code,
            error_message=state.message,
            state_epoch=state.state_epoch,
            start_offset=state.start_offset,
            state_batches=await each(state.batches, lambda batch: StateBatch(*batch)),
        )

    results = []
    for topic_id, of_topic in await _answers(request, lambda place, e: shares.read(place, e.leader_epoch)):
        results.append(TopicState(topic_id=topic_id, partitions=await every(of_topic, answer)))
        await turn
    return ReadShareGroupStateResponse(results=results)


@handles(
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    "0-1",
    mirrored(WriteShareGroupStateResponse),
    advertised=has_share_groups,
)
async def write_share_group_state(
    ctx: RequestContext, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse:
    """Change states."""
    shares = share_coordinator(ctx.services)
    if await _asks_nothing(request):
        return WriteShareGroupStateResponse()

    async def write(place: SharePartition, asked: Any) -> Done:
        batches = await each(
            asked.state_batches,
            lambda e: state_batches.StateBatch(e.first_offset, e.last_offset, e.delivery_state, e.delivery_count),
        )
        change = Change(
            asked.state_epoch, asked.leader_epoch, asked.start_offset, asked.delivery_complete_count, batches
        )
        return await awaited(shares.write(place, change))

    return WriteShareGroupStateResponse(results=await _results(await _answers(request, write)))


@handles(
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    "0",
    mirrored(DeleteShareGroupStateResponse),
    advertised=has_share_groups,
)
async def delete_share_group_state(
    ctx: RequestContext, request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse:
    """Delete states."""
    shares = share_coordinator(ctx.services)
    if await _asks_nothing(request):
        return DeleteShareGroupStateResponse()
    return DeleteShareGroupStateResponse(
        results=await _results(await _answers(request, lambda place, _e: shares.delete(place)))
    )


@handles(
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    "0-1",
    mirrored(ReadShareGroupStateSummaryResponse),
    advertised=has_share_groups,
)
async def read_share_group_state_summary(
    ctx: RequestContext, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse:
    """Return epochs and offsets."""
    shares = share_coordinator(ctx.services)
    if await _asks_nothing(request):
        return ReadShareGroupStateSummaryResponse()

    def answer(of_partition: tuple[int, Summary]) -> PartitionSummary:
        partition, found = of_partition
        return PartitionSummary(
            partition=partition,
            error_code=found.error_code,
            error_message=found.message,
            state_epoch=found.state_epoch,
            leader_epoch=found.leader_epoch,
            start_offset=found.start_offset,
            delivery_complete_count=found.delivery_complete_count,
        )

    results = []
    for topic_id, of_topic in await _answers(request, lambda place, _e: shares.read_summary(place)):
        results.append(TopicSummary(topic_id=topic_id, partitions=await each(of_topic, answer)))
        await turn
    return ReadShareGroupStateSummaryResponse(results=results)
