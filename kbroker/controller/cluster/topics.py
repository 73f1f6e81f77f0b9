"""Topics that come, grow, or vanish.

Owns the reading of /brokers/topics and of each topic's znode, with the watches on them, and gives topics that have none
an id (KIP-516). Whoever creates a topic or lets one grow writes its znode, and only that: the controller begins the
partitions (KafkaController.processTopicChange, processPartitionModifications).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from kbroker.controller.cluster.assignment import of_topic
from kbroker.controller.cluster.context import Partition
from kbroker.controller.cluster.pacing import all_of, paced
from kbroker.controller.cluster.partitions import bring_online
from kbroker.controller.cluster.term import Term
from kbroker.controller.tree.znode import Changed
from kbroker.controller.znodes import TOPICS, Assignment, Unreadable, read, topic_path
from kbroker.protocol.wire import new_uuid

log = logging.getLogger(__name__)


async def read_topics(term: Term) -> list[Partition]:
    """Take in topics that are not known yet, forget those that are gone, and watch; return the new partitions."""
    context = term.context
    names = await term.tree.children(TOPICS, lambda: term.put("topics", lambda: look(term)))
    gone = context.topics.keys() - names
    for name in gone:
        log.error("The znode of topic %s has gone without its deletion: the topic is forgotten", name)
        context.remove_topic(name)
    new = [name for name in names if name not in context.topics]
    assignments = await all_of(new, lambda name: _read(term, name))
    found = []
    for name, assignment in zip(new, assignments, strict=True):
        if assignment is None or assignment.topic_id is None:
            continue
        context.add_topic(name, assignment.topic_id)
        async for index, replicas in paced(of_topic(assignment).items()):
            context.assign((name, index), replicas)
            found.append((name, index))
    return found


async def _read(term: Term, name: str) -> Assignment | None:
    """Read a topic's znode, and watch it; one without an id gets it. None where that is not possible, which is told.

    A tool that knows no ids writes the znode without: the topic keeps that which its logs have.
    """
    path = topic_path(name)
    watch = _watch(term, name)
    while True:
        found = await term.tree.get(path, watch)
        if found is None:
            return None
        try:
            assignment = read(path, found.data, Assignment.decode)
        except Unreadable as error:
            log.error("%s: the topic is passed over", error)
            return None
        if assignment.topic_id is not None:
            return assignment
        known = term.context.topics.get(name)
        assignment = replace(assignment, topic_id=new_uuid() if known is None else known.topic_id)
        if await term.tree.set(path, assignment.encode(), found.stat.version) is not None:
            await term.tree.get(path, watch)
            return assignment


def _watch(term: Term, name: str) -> Changed:
    return lambda: term.put(("topic", name), lambda: look_at(term, name))


async def look(term: Term) -> None:
    """Find out which topics are new, and begin their partitions."""
    partitions = await read_topics(term)
    if partitions:
        log.info("%d new partitions", len(partitions))
        await bring_online(term, partitions)


async def look_at(term: Term, name: str) -> None:
    """Find out whether a topic has grown, and begin what is new."""
    context = term.context
    topic = context.topics.get(name)
    if topic is None:
        # Its znode could not be read before, or is gone: `look` hears of the latter.
        await look(term)
        return
    assignment = await _read(term, name)
    if assignment is None:
        return
    if assignment.topic_id != topic.topic_id:
        log.error("Topic %s has another id than it had: it is taken for another topic", name)
        context.remove_topic(name)
        await look(term)
        return
    new = {index: replicas for index, replicas in of_topic(assignment).items() if index not in topic.partitions}
    if not new:
        return
    if context.is_deleted(name):
        log.warning("Topic %s grows while it is deleted: that is passed over", name)
        return
    async for index, replicas in paced(new.items()):
        context.assign((name, index), replicas)
    await bring_online(term, [(name, index) for index in new])
