"""AlterPartition: a leader requests another set of in-sync replicas.

Owns the decision about each request, in the order of Apache Kafka's checks (KafkaController.tryProcessAlterPartition).
KRaft's checks refuse impossible requests: the sender must lead the partition, be in sync, and name only replicas. A
granted change keeps the leader epoch; every broker gets the change by UpdateMetadata, and the leader also by the
response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kbroker.controller.cluster import reassignment
from kbroker.controller.cluster.context import Partition, State
from kbroker.controller.cluster.partitions import WRITES_AT_ONCE, read_state, write_together
from kbroker.controller.cluster.term import Term
from kbroker.controller.pacing import all_of, paced, pieces
from kbroker.controller.znodes import RECOVERING, LeaderAndIsr, state_path
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.inter_broker import (
    AlteredPartition,
    AlteredTopic,
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionResponse,
)

_Outcome = State | ErrorCode


async def alter_partition(term: Term, request: AlterPartitionRequest) -> AlterPartitionResponse:
    """Handle a leader's request. Raises ApiError if the complete request is refused.

    The caller may run `complete_reassignments` after the leader has its response.
    """
    context = term.context
    broker = context.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
    wanted: dict[Partition, AlterPartitionData] = {}
    topics = []
    for topic in request.topics:
        name = context.names.get(topic.topic_id)
        if name is None:
            unknown = [_failed(each.partition_index, ErrorCode.UNKNOWN_TOPIC_ID) for each in topic.partitions]
            topics.append(AlteredTopic(topic.topic_id, unknown))
            continue
        async for each in paced(topic.partitions):
            wanted[name, each.partition_index] = each
    outcomes = await _alter_all(term, request.broker_id, wanted)
    answers: dict[str, AlteredTopic] = {}
    async for (name, index), outcome in paced(outcomes.items()):
        if name not in answers:
            answers[name] = AlteredTopic(context.topics[name].topic_id)
        answers[name].partitions.append(_answer(index, outcome))
    await term.notify(wanted)
    return AlterPartitionResponse(topics=[*topics, *answers.values()])


async def complete_reassignments(term: Term, response: AlterPartitionResponse) -> None:
    """Finish the reassignments whose replicas are all in sync now. The leader has already received its response."""
    for topic in response.topics:
        name = term.context.names.get(topic.topic_id)
        for each in topic.partitions:
            if name is not None and not each.error_code:
                await reassignment.in_sync_changed(term, (name, each.partition_index))


async def _alter_all(
    term: Term, broker: int, wanted: Mapping[Partition, AlterPartitionData]
) -> dict[Partition, _Outcome]:
    outcomes: dict[Partition, _Outcome] = {}
    values: dict[Partition, LeaderAndIsr] = {}
    async for partition, each in paced(wanted.items()):
        result = _alter(term, broker, partition, each)
        if isinstance(result, LeaderAndIsr):
            values[partition] = result
        else:
            outcomes[partition] = result

    async def write(some: Sequence[Partition]) -> None:
        states = await write_together(term, some, lambda partition, _: values[partition])
        for index, partition in enumerate(some):
            state = states[index] if states else None
            outcomes[partition] = state or await _write(term, partition, values[partition])

    await all_of(pieces(values), write, WRITES_AT_ONCE)
    return {partition: outcomes[partition] for partition in wanted}


def _alter(term: Term, broker: int, partition: Partition, wanted: AlterPartitionData) -> LeaderAndIsr | _Outcome:
    """Return the state to write, an error, or the current state if it equals the requested state."""
    state = term.context.states.get(partition)
    if state is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    isr = tuple(each.broker_id for each in wanted.new_isr_with_epochs) or tuple(wanted.new_isr)
    outcome = _check(term, broker, partition, state, wanted, isr)
    if outcome is not None:
        return outcome
    recovering = wanted.leader_recovery_state == RECOVERING
    return replace(state.value, isr=isr, recovering=recovering, controller_epoch=term.epoch)


def _check(
    term: Term, broker: int, partition: Partition, state: State, wanted: AlterPartitionData, isr: tuple[int, ...]
) -> _Outcome | None:
    """Return the error if the change is refused, and None if it is allowed.

    If nothing would change, return the state.
    """
    current = state.value
    recovering = wanted.leader_recovery_state == RECOVERING
    if wanted.partition_epoch > state.version or wanted.leader_epoch > current.leader_epoch:
        return ErrorCode.NOT_CONTROLLER  # the leader knows a change of a later controller
    if wanted.leader_epoch < current.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker != current.leader:
        return ErrorCode.INVALID_REQUEST
    if set(isr) == set(current.isr) and recovering == current.recovering:
        return state
    if wanted.partition_epoch < state.version:
        return ErrorCode.INVALID_UPDATE_VERSION
    if recovering and (len(isr) > 1 or not current.recovering):
        return ErrorCode.INVALID_REQUEST
    if broker not in isr or len(set(isr)) != len(isr) or not set(isr) <= set(term.context.assigned(partition)):
        return ErrorCode.INVALID_REQUEST
    if not term.context.live().issuperset(isr):
        return ErrorCode.INELIGIBLE_REPLICA
    return None


async def _write(term: Term, partition: Partition, value: LeaderAndIsr) -> _Outcome:
    state = term.context.states[partition]
    version = await term.tree.set(state_path(*partition), value.encode(), state.version)
    if version is not None:
        written = term.context.states[partition] = State(value, version)
        return written
    found = await read_state(term.tree, partition)
    if found is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    term.context.states[partition] = found
    # This request may itself have written `found`: the write succeeded, its response was lost, and it was retried.
    return found if found == State(value, state.version + 1) else ErrorCode.INVALID_UPDATE_VERSION


def _answer(index: int, outcome: _Outcome) -> AlteredPartition:
    if not isinstance(outcome, State):
        return _failed(index, outcome)
    value = outcome.value
    return AlteredPartition(
        partition_index=index,
        leader_id=value.leader,
        leader_epoch=value.leader_epoch,
        isr=list(value.isr),
        leader_recovery_state=RECOVERING if value.recovering else 0,
        partition_epoch=outcome.version,
    )


def _failed(index: int, error: ErrorCode) -> AlteredPartition:
    return AlteredPartition(partition_index=index, error_code=error)
