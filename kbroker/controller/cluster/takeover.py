"""Begins a term: reads and watches the cluster's znodes, sends all brokers the state, and continues started operations.

Owns the order (KafkaController.onControllerFailover). The controller sends the list of live brokers first, because a
broker follows a leader only if it knows that the leader is live. The controller sends the leaderships after all
possible elections. Then it continues reassignments, deletions and requested elections.
"""

from __future__ import annotations

import logging

from kbroker.controller.cluster import deletion, elect_leaders, features, log_dirs, reassignment, topics
from kbroker.controller.cluster.brokers import open_channel, read_brokers
from kbroker.controller.cluster.context import Partition
from kbroker.controller.cluster.partitions import (
    bring_online,
    mark_leaderless,
    read_state,
    take_out,
    take_out_restarted,
)
from kbroker.controller.cluster.term import Term
from kbroker.controller.pacing import all_of, paced
from kbroker.controller.znodes import DELETE_TOPICS

log = logging.getLogger(__name__)


async def take_over(term: Term) -> None:
    """Begin a term. If it raises an exception, the caller has to resign, so that another broker can try."""
    context = term.context
    await features.learn(term)
    await log_dirs.clear(term)
    context.brokers.update(await read_brokers(term))
    await features.begin(term)
    partitions = await topics.read_topics(term)
    states = await all_of(partitions, lambda partition: read_state(term.tree, partition))
    async for partition, state in paced(zip(partitions, states, strict=True)):
        if state is not None:
            context.states[partition] = state
    for number in context.brokers:
        open_channel(term, number)
    await _remember_deletions(term)
    log.info("Controller of epoch %d: %d brokers, %d partitions", term.epoch, len(context.brokers), len(partitions))
    await term.notify()
    await take_out_restarted(term)
    await _elect_and_notify(term, partitions)
    taken_up = await reassignment.take_up(term)
    await reassignment.resume(term, except_for=taken_up)
    await deletion.begin(term)
    await elect_leaders.check(term)
    await log_dirs.check(term)


async def _elect_and_notify(term: Term, partitions: list[Partition]) -> None:
    """Remove offline replicas; then send the leaderships to all other replicas, once.

    Apache Kafka sends the leaderships before and after each step. Kafka also increments the leader epoch of a partition
    twice if the partition has no live leader.
    """
    context = term.context
    batch = term.batch()
    offline: dict[int, list[Partition]] = {}
    async for partition in paced(partitions):
        if context.is_deleted(partition[0]):
            continue
        for broker in context.assigned(partition):
            if not context.is_online(broker, partition):
                offline.setdefault(broker, []).append(partition)
            elif partition in context.states:
                batch.leadership((broker,), partition)
    await mark_leaderless(term, context.states)
    await bring_online(term, batch=batch)
    for broker, without in offline.items():
        await take_out(term, broker, without, batch)
    await batch.send()


async def _remember_deletions(term: Term) -> None:
    """Load the deletions in progress, before the controller sends their topics to brokers as existing topics."""
    for topic in await term.tree.children(DELETE_TOPICS):
        if term.config.delete_topics and topic in term.context.topics:
            await deletion.enqueue(term, topic)
