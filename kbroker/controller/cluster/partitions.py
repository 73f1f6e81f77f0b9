"""Leaders and in-sync replicas of many partitions: decided, written, stored, and sent.

Owns the writes of partition states to the tree. Each write is fenced and checks the version of every state. A write
contains several partitions, and several writes run concurrently; Apache Kafka 3.9 (PartitionStateMachine,
ReplicaStateMachine) writes one partition at a time. elections.py decides the leaders. If another process has changed a
state, the state is read and decided again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from kbroker.cluster_state import NO_LEADER
from kbroker.controller import elections
from kbroker.controller.cluster.batch import Batch
from kbroker.controller.cluster.context import Partition, State
from kbroker.controller.cluster.fenced_tree import ControllerMoved, FencedTree
from kbroker.controller.cluster.term import Term
from kbroker.controller.pacing import all_of, paced, pieces
from kbroker.controller.tree.znode import Change, Create, Reason, Refused, SetData
from kbroker.controller.znodes import (
    CONFIG,
    LeaderAndIsr,
    Unreadable,
    decode_configs,
    partition_path,
    read,
    state_path,
    topic_path,
)

log = logging.getLogger(__name__)

UNCLEAN = "unclean.leader.election.enable"


async def unclean_topics(term: Term, topics: Collection[str]) -> set[str]:
    """Return the topics that allow unclean leaders, which may lose records."""
    ordered = list(topics)
    allowed = await all_of(ordered, lambda topic: _is_unclean(term, topic))
    return {topic for topic, unclean in zip(ordered, allowed, strict=True) if unclean}


async def _is_unclean(term: Term, topic: str) -> bool:
    path = f"{CONFIG}/topics/{topic}"
    found = await term.tree.get(path)
    if found is None:
        return term.config.unclean_leader_election
    try:
        own = read(path, found.data, decode_configs).get(UNCLEAN)
    except Unreadable as error:
        log.error("%s", error)
        return False
    return term.config.unclean_leader_election if own is None else own.lower() == "true"


WRITES_AT_ONCE = 8
Decide = Callable[[Partition, LeaderAndIsr], LeaderAndIsr | None]
"""Returns a partition's next state; None to keep the current one."""


async def read_state(tree: FencedTree, partition: Partition) -> State | None:
    """Return a partition's state; None if it is missing or unreadable. An unreadable state is logged."""
    path = state_path(*partition)
    found = await tree.get(path)
    if found is None:
        return None
    try:
        return State(read(path, found.data, LeaderAndIsr.decode), found.stat.version, found.stat.modified)
    except Unreadable as error:
        log.error("%s", error)
        return None


async def change(term: Term, partition: Partition, decide: Decide) -> State | None:
    """Write a partition's next state. Return this state, or None if `decide` or a missing state prevents a change.

    Raises ControllerMoved.
    """
    context = term.context
    state = context.states.get(partition)
    while state is not None:
        value = decide(partition, state.value)
        if value is None:
            return None
        path = state_path(*partition)
        version = await term.tree.set(path, value.encode(), state.version)
        if version is not None:
            written = context.states[partition] = State(value, version)
            return written
        before, state = state, await read_state(term.tree, partition)
        if state is None:
            log.error("%s is missing: nothing can be decided about the partition", path)
            return None
        if state.value.controller_epoch > term.epoch:
            raise ControllerMoved(f"{path} was written by a controller of epoch {state.value.controller_epoch}")
        context.states[partition] = state
        if state == State(value, before.version + 1):  # the first attempt wrote this state, but its response was lost
            return state
    return None


async def change_all(term: Term, partitions: Collection[Partition], decide: Decide) -> list[State | None]:
    """Run `change` for many partitions, several in one write; return their states in the same order."""

    async def change_some(some: Sequence[Partition]) -> list[State | None]:
        return await write_together(term, some, decide) or [await change(term, each, decide) for each in some]

    changed = await all_of(pieces(partitions), change_some, WRITES_AT_ONCE)
    return [state for some in changed for state in some]


async def write_together(term: Term, partitions: Sequence[Partition], decide: Decide) -> list[State | None] | None:
    """Write the next states of partitions in one transaction.

    If one state is refused, write no state and return None.
    """
    context = term.context
    states: list[State | None] = []
    writes: list[Change] = []
    for partition in partitions:
        state = context.states.get(partition)
        value = None if state is None else decide(partition, state.value)
        if state is None or value is None:
            states.append(None)
            continue
        writes.append(SetData(state_path(*partition), value.encode(), state.version))
        states.append(State(value, state.version + 1))
    if writes:
        try:
            await term.tree.commit(*writes)
        except Refused:
            return None
    for partition, state in zip(partitions, states, strict=True):
        if state is not None:
            context.states[partition] = state
    return states


async def create(term: Term, partitions: Collection[Partition], batch: Batch) -> None:
    """Create the states of new partitions. The first online replica leads, and all online replicas are in sync."""
    context = term.context

    values: dict[Partition, LeaderAndIsr] = {}
    async for partition in paced(partitions):
        replicas = context.online(partition)
        value = elections.first_state(replicas, replicas, term.epoch)
        if value is None:
            log.error("No replica of partition %s-%d is online: it has no leader", *partition)
        else:
            values[partition] = value
    topics = dict.fromkeys(topic for topic, _ in values)
    await all_of(topics, lambda topic: _create(term.tree, f"{topic_path(topic)}/partitions"))
    created = await all_of(pieces(values), lambda some: _create_states(term.tree, some, values), WRITES_AT_ONCE)
    states = [state for some in created for state in some]
    async for partition, state in paced(zip(values, states, strict=True)):
        if state is not None:
            context.states[partition] = state
            batch.leadership(context.online(partition), partition, is_new=True)


async def _create_states(
    tree: FencedTree, partitions: Sequence[Partition], values: Mapping[Partition, LeaderAndIsr]
) -> list[State | None]:
    """Create the znodes of new partitions in one transaction. If some of the znodes exist, create them one by one."""
    writes: list[Change] = []
    for partition in partitions:
        writes += [Create(partition_path(*partition)), Create(state_path(*partition), values[partition].encode())]
    try:
        await tree.commit(*writes)
    except Refused:
        return [await _create_state(tree, partition, values[partition]) for partition in partitions]
    return [State(values[partition], 0) for partition in partitions]


async def _create_state(tree: FencedTree, partition: Partition, value: LeaderAndIsr) -> State | None:
    if not await _create(tree, partition_path(*partition)):
        return None
    try:
        await tree.commit(Create(state_path(*partition), value.encode()))
    except Refused as refused:
        if refused.reason is Reason.NODE_EXISTS:
            return await read_state(tree, partition)
        log.error("Partition %s-%d cannot be created: %s", *partition, refused)
        return None
    return State(value, 0)


async def _create(tree: FencedTree, path: str) -> bool:
    """Create a node that may exist; return whether it exists now."""
    try:
        await tree.create(path)
    except Refused as refused:
        log.error("The znodes of a topic cannot be created: %s", refused)
        return False
    return True


async def elect(
    term: Term, partitions: Collection[Partition], decide: Decide, receivers: Callable[[Partition], Iterable[int]]
) -> dict[Partition, State]:
    """Elect the leaders that `decide` selects; send the leadership to `receivers` and the metadata to all brokers.

    Return the partitions with a new leader.
    """
    batch = term.batch()
    elected = await _elect(term, partitions, decide, receivers, batch)
    await batch.send()
    return elected


async def _elect(
    term: Term,
    partitions: Collection[Partition],
    decide: Decide,
    receivers: Callable[[Partition], Iterable[int]],
    batch: Batch,
) -> dict[Partition, State]:
    states = await change_all(term, partitions, decide)
    elected = {}
    async for partition, state in paced(zip(partitions, states, strict=True)):
        if state is not None:
            elected[partition] = state
            term.context.offline.discard(partition)
            batch.leadership(receivers(partition), partition)
    return elected


async def bring_online(
    term: Term, partitions: Collection[Partition] | None = None, *, unclean: bool = False, batch: Batch | None = None
) -> dict[Partition, State]:
    """Create the states of new partitions, and elect leaders for offline partitions.

    Examine only the given partitions, or all partitions if None. With `unclean`, a leader may also be a replica that is
    not in sync, whatever the topics' configs say. If `batch` is given, add the requests to it; otherwise send them
    immediately. Return the partitions for which a leader was elected.
    """
    own = term.batch() if batch is None else batch
    elected = await _bring_online(term, partitions, own, unclean=unclean)
    if batch is None:
        await own.send()
    return elected


async def _bring_online(
    term: Term, partitions: Collection[Partition] | None, batch: Batch, *, unclean: bool
) -> dict[Partition, State]:
    context = term.context
    new, offline = [], []
    async for partition in paced(list(context.partitions()) if partitions is None else partitions):
        if context.is_deleted(partition[0]):
            continue
        if not context.assigned(partition):
            batch.metadata((partition,))  # the topic is a view: its source has the replicas
        elif partition not in context.states:
            new.append(partition)
        elif partition in context.offline:
            offline.append(partition)
    if new:
        await create(term, new, batch)
    if not offline:
        return {}
    without_isr = {topic for topic, index in offline if not _has_online_isr(term, (topic, index))}
    allowed = without_isr if unclean else await unclean_topics(term, without_isr)

    uncleanly = set()

    def decide(partition: Partition, value: LeaderAndIsr) -> LeaderAndIsr | None:
        online = context.online(partition)
        may_be_unclean = partition[0] in allowed
        found = elections.elect_offline(value, context.assigned(partition), online, term.epoch, unclean=may_be_unclean)
        if found is not None and found.leader not in value.isr:
            uncleanly.add(partition)
        return found

    elected = await _elect(term, offline, decide, context.online, batch)
    term.elected_uncleanly(len(uncleanly & elected.keys()))
    return elected


def _has_online_isr(term: Term, partition: Partition) -> bool:
    isr = term.context.states[partition].value.isr
    return any(term.context.is_online(each, partition) for each in isr)


async def mark_leaderless(term: Term, partitions: Iterable[Partition]) -> None:
    """Mark the partitions without a usable leader as offline."""
    context = term.context
    async for partition in paced(list(partitions)):
        if partition in context.states and not context.is_led(partition) and not context.is_deleted(partition[0]):
            context.offline.add(partition)


async def take_out(term: Term, replica: int, partitions: Collection[Partition], batch: Batch) -> None:
    """Remove an unusable replica from leadership, and from the in-sync replicas if other in-sync replicas remain.

    If the replica's broker is live, stop the replica.
    """
    context = term.context

    def decide(_: Partition, value: LeaderAndIsr) -> LeaderAndIsr | None:
        if value.leader == NO_LEADER and value.isr == (replica,):
            return None  # the last in-sync replica stays in the set, and the state already has no leader
        return elections.without_replica(value, replica, term.epoch)

    states = await change_all(term, partitions, decide)
    async for partition, state in paced(zip(partitions, states, strict=True)):
        batch.stop(replica, partition, delete=False)
        if state is None:
            batch.metadata((partition,))
            continue
        if state.value.leader == NO_LEADER:
            context.offline.add(partition)
        batch.leadership([each for each in context.assigned(partition) if each != replica], partition)


async def take_out_restarted(term: Term) -> None:
    """Remove brokers that have restarted since a partition's state was written, if another in-sync replica has not.

    The former controller did not see their restart. Such a broker may have lost its disk: as the leader it would make
    the other replicas delete their records.
    """
    context = term.context
    restarted: dict[Partition, set[int]] = {}
    async for partition, state in paced(list(context.states.items())):
        online = [each for each in state.value.isr if context.is_online(each, partition)]
        later = {each for each in online if 0 <= state.written < context.brokers[each].epoch}
        if later and len(later) < len(online):
            restarted[partition] = later

    def decide(partition: Partition, value: LeaderAndIsr) -> LeaderAndIsr | None:
        later = restarted[partition]
        if value.leader in later:
            online = context.online(partition)
            return elections.elect_for_shutdown(value, context.assigned(partition), online, later, term.epoch)
        return elections.in_sync_without(value, later, term.epoch)

    if restarted:
        log.info("%d partitions had brokers in sync that have restarted since", len(restarted))
        await change_all(term, restarted, decide)


async def unled(term: Term, partitions: Collection[Partition]) -> None:
    """Remove the leaders of partitions whose topics are being deleted, even if their replicas are not usable."""

    def decide(_: Partition, value: LeaderAndIsr) -> LeaderAndIsr | None:
        if value.leader == NO_LEADER:
            return None
        return elections.without_replica(value, value.leader, term.epoch)

    await change_all(term, partitions, decide)


async def renew_leader_epoch(term: Term, partition: Partition) -> State | None:
    """Give a partition a new leader epoch, without other changes."""
    return await change(term, partition, lambda _, value: elections.unchanged(value, term.epoch))
