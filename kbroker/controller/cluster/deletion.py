"""The deletion of topics: brokers delete their replicas, then the topic's znodes are removed.

Owns the progress of each deletion. For a topic in /admin/delete_topics, the controller immediately announces that the
topic is deleted (leader -2), and the live brokers delete its replicas. The deletion waits while a broker with a replica
is not live, or while a reassignment of the topic is in progress. The deletion ends with the removal of the topic's
znodes; until then another controller can continue it. (TopicDeletionManager.)
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

from kbroker.controller.cluster.context import Deletion, Partition
from kbroker.controller.cluster.partitions import unled
from kbroker.controller.cluster.term import Term
from kbroker.controller.pacing import all_of, paced, pieces
from kbroker.controller.tree.znode import Delete, Refused
from kbroker.controller.znodes import CONFIG, DELETE_TOPICS, topic_path

log = logging.getLogger(__name__)

Replica = tuple[Partition, int]


async def check(term: Term) -> None:
    """Read the topics to be deleted, and watch for more. Drop the requests for missing topics."""
    asked = await term.tree.children(DELETE_TOPICS, lambda: term.put("deletions", lambda: check(term)))
    known = [topic for topic in asked if topic in term.context.topics]
    refused = set(asked).difference(known)
    if not term.config.delete_topics:
        refused.update(known)
        known = []
    for topic in sorted(refused):
        await term.tree.delete(f"{DELETE_TOPICS}/{topic}")
    begun = [topic for topic in known if not term.context.is_deleted(topic)]
    for topic in begun:
        await enqueue(term, topic)
    await _go_on(term, begun)


async def begin(term: Term) -> None:
    """Continue the known deletions when a term begins, and search for new deletions like `check`."""
    await _go_on(term, list(term.context.deletions))
    await check(term)


async def enqueue(term: Term, topic: str) -> None:
    """Record that a topic is to be deleted."""
    context = term.context
    deletion = context.deletions[topic] = Deletion()
    async for index in paced(list(context.topics[topic].partitions)):
        partition = topic, index
        if partition in context.moving or len(context.online(partition)) < len(context.assigned(partition)):
            deletion.halted = True
            log.info("The deletion of topic %s waits for a reassignment or for a broker", topic)
            return


def halt(term: Term, topics: Iterable[str]) -> None:
    """Halt the deletions of these topics until `resume`."""
    for topic in topics:
        deletion = term.context.deletions.get(topic)
        if deletion is not None:
            deletion.halted = True


async def resume(term: Term, topics: Iterable[str]) -> None:
    """Resume the deletions of these topics. Topics that are not to be deleted are ignored."""
    waited = [topic for topic in topics if topic in term.context.deletions]
    for topic in waited:
        term.context.deletions[topic].halted = False
    await _go_on(term, waited)


async def _go_on(term: Term, topics: Iterable[str]) -> None:
    for topic in topics:
        deletion = term.context.deletions[topic]
        left = await _left(term, topic, deletion)
        if not left:
            if not deletion.begun:  # the topic is a view, which no broker hosts
                await term.notify([(topic, index) for index in term.context.topics[topic].partitions])
            await _finish(term, topic)
        elif not deletion.asked and not deletion.halted:
            await _ask(term, topic, deletion, left)


async def _left(term: Term, topic: str, deletion: Deletion) -> list[Replica]:
    """Return the replicas whose deletion no broker has confirmed."""
    context = term.context
    left = []
    async for index in paced(list(context.topics[topic].partitions)):
        partition = topic, index
        left += [
            (partition, broker) for broker in context.assigned(partition) if (partition, broker) not in deletion.done
        ]
    return left


async def _ask(term: Term, topic: str, deletion: Deletion, left: Collection[Replica]) -> None:
    """Remove a topic's leaders, and request all live brokers to delete their replicas."""
    context = term.context
    partitions = list(dict.fromkeys(partition for partition, _ in left))
    if not deletion.begun:
        log.info("The deletion of topic %s begins", topic)
        deletion.begun = True
    await term.notify(partitions)
    await unled(term, partitions)
    context.offline.difference_update(partitions)
    stopped, deleted = term.batch(), term.batch()
    async for partition, broker in paced(left):
        if not context.is_online(broker, partition, also_leaving=True):
            deletion.halted = True
            continue
        stopped.stop(broker, partition, delete=False)
        deleted.stop(broker, partition, delete=True)
        deletion.asked.add((partition, broker))
    await stopped.send()
    await deleted.send()


async def answered(term: Term, broker: int, outcome: dict[Partition, bool]) -> None:
    """Handle a broker's response, which lists the replicas that it has deleted, and the failed deletions."""
    topics: dict[str, None] = {}
    async for partition, is_done in paced(outcome.items()):
        deletion = term.context.deletions.get(partition[0])
        replica = partition, broker
        if deletion is None or replica not in deletion.asked:
            continue
        deletion.asked.discard(replica)
        topics[partition[0]] = None
        if is_done:
            deletion.done.add(replica)
        else:
            log.error("Broker %d could not delete its replica of %s-%d: the deletion waits", broker, *partition)
            deletion.halted = True
    await _go_on(term, topics)


async def on_broker_failure(term: Term, broker: int, partitions: Collection[Partition]) -> None:
    """Halt the topic deletions that need these partitions, because a broker or a log directory has failed."""
    deletions = term.context.deletions
    async for partition in paced(partitions):
        deletion = deletions.get(partition[0])
        if deletion is not None:
            deletion.asked.discard((partition, broker))
            if (partition, broker) not in deletion.done:
                deletion.halted = True


async def _finish(term: Term, topic: str) -> None:
    """Remove the topic's znodes after all its brokers have deleted their replicas.

    The topic's znode and the deletion request are removed in one transaction. Otherwise a later controller would delete
    a new topic of the same name that was created in between.
    """
    tree = term.tree
    partitions = f"{topic_path(topic)}/partitions"
    indexes = await tree.children(partitions)
    await all_of(pieces(indexes), lambda some: _remove(term, topic, some))
    await tree.delete_below(partitions)
    last = topic_path(topic), f"{CONFIG}/topics/{topic}", f"{DELETE_TOPICS}/{topic}"
    while left := [path for path in last if await tree.get(path) is not None]:
        try:
            await tree.commit(*(Delete(path) for path in left))
        except Refused as refused:
            log.warning("The znodes of topic %s change while they are deleted: %s", topic, refused)
            await tree.delete_below(partitions)
    term.context.remove_topic(topic)
    log.info("Topic %s is deleted", topic)


async def _remove(term: Term, topic: str, indexes: Sequence[str]) -> None:
    """Remove the znodes of partitions in one transaction, or one by one if some of them have another structure."""
    tree, paths = term.tree, [f"{topic_path(topic)}/partitions/{index}" for index in indexes]
    try:
        await tree.commit(*(Delete(each) for path in paths for each in (f"{path}/state", path)))
    except Refused:
        for path in paths:
            await tree.delete_below(path)
