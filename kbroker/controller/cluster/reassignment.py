"""The reassignment of partitions to other brokers: start, cancellation, completion, and continuation after a fail-over.

Owns the steps of a reassignment (KIP-455; KafkaController.onPartitionReassignment). The topic's znode stores a started
reassignment (replicas, adding, removing), so that another controller can continue it:

    begin    write the znode; begin a new leader epoch; send LeaderAndIsr to the current replicas, and to the added
             replicas as new ones
    finish   when all replicas of the target are in sync: elect a leader among them; remove the other replicas from
             the in-sync replicas and delete them; write the znode without adding and removing; send the metadata to
             all brokers

Cancelling is a reassignment back to the original replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from kbroker.controller import elections
from kbroker.controller.cluster import deletion
from kbroker.controller.cluster.assigned_replicas import Replicas, in_transition, with_partition
from kbroker.controller.cluster.context import Partition, State
from kbroker.controller.cluster.partitions import bring_online, elect, read_state, renew_leader_epoch, take_out
from kbroker.controller.cluster.term import Term
from kbroker.controller.pacing import paced
from kbroker.controller.tree.znode import Change, Delete, Refused, SetData
from kbroker.controller.znodes import (
    REASSIGNMENTS,
    Assignment,
    LeaderAndIsr,
    Unreadable,
    decode_reassignments,
    encode_reassignments,
    read,
    state_path,
    topic_path,
)
from kbroker.protocol.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)

_NO_PARTITION = "The partition does not exist."
Asked = Mapping[Partition, Sequence[int] | None]
"""The target replicas of partitions; None for the original replicas."""


async def alter(term: Term, asked: Asked, *, may_change_factor: bool) -> dict[Partition, ApiError | None]:
    """Begin or cancel reassignments at a client's request; return the results.

    Without `may_change_factor`, targets of a different size are refused (KIP-860).
    """
    results: dict[Partition, ApiError | None] = {}
    planned: dict[Partition, Replicas] = {}
    async for partition, target in paced(asked.items()):
        current = term.context.replicas(partition) or Replicas(())
        refused = None if target is None else _why_not(term, current, target, may_change_factor)
        plan = refused or _plan(term, partition, target)
        if isinstance(plan, ApiError):
            results[partition] = plan
        else:
            planned[partition] = plan
    await _drop_from_znode(term, lambda partition, _: partition in planned)
    results.update(await _begin(term, planned))
    return results


def _plan(term: Term, partition: Partition, target: Sequence[int] | None) -> Replicas | ApiError:
    """Return the replicas of a reassignment at its start, or the error."""
    current = term.context.replicas(partition)
    if current is None or term.context.is_deleted(partition[0]):
        if target is None:
            return ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NO_PARTITION)
    if target is None:
        if not current.in_motion:
            return ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        target = current.origin
    planned = in_transition(current, target)
    state = term.context.states.get(partition)
    if state is not None and not set(state.value.isr) & set(planned.replicas):
        text = f"No replica in sync of {partition[0]}-{partition[1]} would be left: what only it has would be lost."
        return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return planned


def _why_not(term: Term, current: Replicas, target: Sequence[int], may_change_factor: bool) -> ApiError | None:
    """Return the fault of a client's target; None if the target is valid."""

    def refusal(text: str) -> ApiError:
        return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)

    live = term.context.live()
    if not target:
        return refusal("Empty replica list specified in partition reassignment.")
    # Check a bounded number of ids: a client may name millions. In a longer list this part always has a fault: a
    # duplicate, or a broker that is neither live nor a replica.
    target = target[: len(live) + len(current.replicas) + 1]
    if len(set(target)) != len(target):
        return refusal(f"Duplicate replica ids in partition reassignment replica list: {_listed(target)}")
    if min(target) < 0:
        return refusal(f"Invalid broker id in replica list: {_listed(target)}")
    if current.replicas and not may_change_factor and len(target) != len(current.target):
        text = f"The replication factor is changed from {len(current.target)} to {len(target)}"
        return ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    adding = in_transition(current, target).adding
    if live.issuperset(adding):
        return None
    return refusal(
        f"Replica assignment has brokers that are not alive. Replica list: {_listed(adding)}, "
        f"live broker list: {_listed(sorted(live))}"
    )


def _listed(numbers: Iterable[int]) -> str:
    return f"[{', '.join(str(each) for each in numbers)}]"


async def check(term: Term) -> None:
    """Start the reassignments that a tool has written into /admin/reassign_partitions, and watch for more."""
    await take_up(term)


async def take_up(term: Term) -> set[Partition]:
    """Start the reassignments in /admin/reassign_partitions, and watch for more. Return the started reassignments."""
    found = await term.tree.get(REASSIGNMENTS, lambda: term.put("reassignments", lambda: check(term)))
    if found is None:
        return set()
    try:
        asked = read(REASSIGNMENTS, found.data, decode_reassignments)
    except Unreadable as error:
        log.error("%s: it is removed", error)
        await term.tree.delete(REASSIGNMENTS)
        return set()
    results: dict[Partition, ApiError | None] = {}
    planned: dict[Partition, Replicas] = {}
    async for partition, target in paced(asked.items()):
        plan = _plan(term, partition, target) if target else ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        if isinstance(plan, ApiError):
            results[partition] = plan
        else:
            planned[partition] = plan
    results.update(await _begin(term, planned))
    failed = {partition for partition, error in results.items() if error is not None}
    if failed:
        log.warning("%s requests reassignments of which %d are impossible", REASSIGNMENTS, len(failed))
        await _drop_from_znode(term, lambda partition, _: partition in failed)
    return results.keys() - failed


async def _begin(term: Term, planned: Mapping[Partition, Replicas]) -> dict[Partition, ApiError | None]:
    results: dict[Partition, ApiError | None] = {}
    for partition, replicas in planned.items():
        if await go_on(term, partition, replicas):
            results[partition] = None
        else:
            results[partition] = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NO_PARTITION)
    return results


async def resume(term: Term, except_for: Collection[Partition] = (), target_on: int | None = None) -> None:
    """Continue all started reassignments, or only those whose target includes the broker `target_on`."""
    for partition in list(term.context.moving):
        replicas = term.context.replicas(partition)
        if replicas is None or partition in except_for:
            continue
        if target_on is None or target_on in replicas.target:
            await go_on(term, partition, replicas)


async def in_sync_changed(term: Term, partition: Partition) -> None:
    """Finish a reassignment if all replicas of its target are in sync now."""
    replicas = term.context.replicas(partition)
    if partition in term.context.moving and replicas is not None and _is_complete(term, partition, replicas):
        await go_on(term, partition, replicas)


def _is_complete(term: Term, partition: Partition, replicas: Replicas) -> bool:
    state = term.context.states.get(partition)
    return not replicas.in_motion or (state is not None and set(replicas.target) <= set(state.value.isr))


async def go_on(term: Term, partition: Partition, replicas: Replicas) -> bool:
    """Run the next steps of a reassignment; return whether its topic exists."""
    deletion.halt(term, (partition[0],))
    if not await _remember(term, partition, replicas):
        return False
    if partition not in term.context.states:  # the partition has no state yet, because none of its replicas was online
        await bring_online(term, (partition,))
    if not _is_complete(term, partition, replicas):
        await _notify_replicas(term, partition, replicas)
    else:
        await _finish(term, partition, replicas)
    return True


async def _remember(term: Term, partition: Partition, replicas: Replicas) -> bool:
    """Write a started reassignment. Remove the replicas that only an earlier, replaced reassignment has added."""
    context = term.context
    current = context.replicas(partition)
    if current is not None and current != replicas:
        # A cancellation also writes a new leader epoch here, because brokers ignore a new replica list if they already
        # know its leader epoch. After a fail-over the next controller would find no reassignment to continue.
        if not await _write(term, partition, replicas, new_epoch=not replicas.in_motion):
            return False
        context.assign(partition, replicas)
        unneeded = [each for each in current.replicas if each not in replicas.replicas]
        if unneeded:
            await _remove(term, partition, unneeded)
    context.moving.add(partition)
    return True


async def _notify_replicas(term: Term, partition: Partition, replicas: Replicas) -> None:
    if await renew_leader_epoch(term, partition) is None:
        log.error("The reassignment of %s-%d cannot begin: the partition has no state", *partition)
        return
    batch = term.batch()
    batch.leadership(replicas.origin, partition)
    batch.leadership(replicas.adding, partition, is_new=True)
    await batch.send()


async def _finish(term: Term, partition: Partition, replicas: Replicas) -> None:
    context = term.context
    finished = Replicas(replicas.target)
    context.assign(partition, finished)
    await _move_leadership(term, partition, finished)
    await _remove(term, partition, replicas.removing)
    if not await _write(term, partition, finished):
        log.error("The reassignment of %s-%d cannot be finished: the topic does not exist", *partition)
    await _drop_from_znode(term, lambda each, target: each == partition and tuple(target) == finished.replicas)
    context.moving.discard(partition)
    await term.notify((partition,))
    await deletion.resume(term, (partition[0],))


async def _move_leadership(term: Term, partition: Partition, finished: Replicas) -> None:
    """Elect a leader if the current leader is offline or not in the target. Send the replica list to all replicas."""
    context = term.context
    leader = context.leader(partition)
    if leader in finished.replicas and context.is_online(leader, partition):
        await renew_leader_epoch(term, partition)
        await _notify_brokers(term, partition, finished.replicas)
        return

    def decide(_: Partition, value: LeaderAndIsr) -> LeaderAndIsr | None:
        return elections.elect_of_target(value, finished.replicas, context.online(partition), term.epoch)

    if not await elect(term, (partition,), decide, lambda _: finished.replicas):
        await _notify_brokers(term, partition, finished.replicas)


async def _notify_brokers(term: Term, partition: Partition, brokers: Iterable[int]) -> None:
    batch = term.batch()
    batch.leadership(brokers, partition)
    await batch.send()


async def _remove(term: Term, partition: Partition, brokers: Sequence[int]) -> None:
    """Remove replicas from the in-sync replicas, and request their brokers to stop and delete them."""
    for broker in brokers:
        batch = term.batch()
        await take_out(term, broker, (partition,), batch)
        await batch.send()
    batch = term.batch()
    for broker in brokers:
        batch.stop(broker, partition, delete=True)
    await batch.send()


async def _write(term: Term, partition: Partition, replicas: Replicas, *, new_epoch: bool = False) -> bool:
    """Write a partition's replicas into its topic's znode. Other writers may change other partitions of the znode.

    If `new_epoch` is true, the same write begins a new leader epoch of the partition.
    """
    context, path = term.context, topic_path(partition[0])
    while True:
        found = await term.tree.get(path)
        if found is None:
            return False
        assignment = read(path, found.data, Assignment.decode)
        changed = with_partition(assignment, partition[1], replicas)
        if changed == assignment:
            return True
        writes: list[Change] = [SetData(path, changed.encode(), found.stat.version)]
        state = context.states.get(partition)
        if state is not None and new_epoch:
            state = State(elections.unchanged(state.value, term.epoch), state.version + 1)
            writes.append(SetData(state_path(*partition), state.value.encode(), state.version - 1))
        try:
            await term.tree.commit(*writes)
        except Refused:
            state = await read_state(term.tree, partition)
        else:
            if state is not None:
                context.states[partition] = state
            return True
        if state is not None:
            context.states[partition] = state
        else:
            context.states.pop(partition, None)


async def _drop_from_znode(term: Term, is_done: Callable[[Partition, Sequence[int]], bool]) -> None:
    """Remove partitions from a tool's request, and delete the request's znode when it has no partitions."""
    while True:
        found = await term.tree.get(REASSIGNMENTS)
        if found is None:
            return
        asked = read(REASSIGNMENTS, found.data, decode_reassignments)
        left = {partition: target for partition, target in asked.items() if not is_done(partition, target)}
        if len(left) == len(asked) and asked:
            return
        version = found.stat.version
        change = SetData(REASSIGNMENTS, encode_reassignments(left), version) if left else Delete(REASSIGNMENTS, version)
        try:
            await term.tree.commit(change)
        except Refused:  # a tool has written the znode meanwhile
            continue
        if not left:  # the znode is gone, so another tool may now write a request
            term.put("reassignments", lambda: check(term))
        return


async def ongoing(term: Term, partitions: Collection[Partition] | None) -> dict[Partition, Replicas]:
    """Return the running reassignments of all partitions, or of the given partitions."""
    found = {}
    async for partition in paced(list(term.context.moving) if partitions is None else partitions):
        replicas = term.context.replicas(partition)
        if replicas is not None and replicas.in_motion:
            found[partition] = replicas
    return found
