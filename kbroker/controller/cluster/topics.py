"""Finds new, grown and removed topics.

Owns the reading of /brokers/topics and of each topic's znode, with the watches on them, and assigns missing topic ids
(KIP-516). A broker that creates or extends a topic writes only the topic's znode; the controller creates the partitions
(KafkaController.processTopicChange, processPartitionModifications).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from kbroker.controller.cluster.assigned_replicas import of_topic
from kbroker.controller.cluster.context import Partition
from kbroker.controller.cluster.partitions import bring_online
from kbroker.controller.cluster.term import Term
from kbroker.controller.pacing import all_of, paced
from kbroker.controller.tree.znode import Changed
from kbroker.controller.znodes import TOPICS, Assignment, Unreadable, read, topic_path
from kbroker.protocol.wire import new_uuid

log = logging.getLogger(__name__)


async def read_topics(term: Term) -> list[Partition]:
    """Read and watch all topics: add unknown topics, and forget removed topics. Return the new partitions."""
    context = term.context
    names = await term.tree.children(TOPICS, lambda: term.put("topics", lambda: check(term)))
    missing = context.topics.keys() - names
    for name in missing:
        log.error("The znode of topic %s was removed without a deletion: the topic is forgotten", name)
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
    """Read and watch a topic's znode, and add a missing id. If this is impossible, log the reason and return None.

    A tool that does not know topic ids writes the znode without the id. The topic then keeps the id that its logs
    contain.
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
            log.error("%s: the topic is ignored", error)
            return None
        if assignment.topic_id is not None:
            return assignment
        known = term.context.topics.get(name)
        assignment = replace(assignment, topic_id=new_uuid() if known is None else known.topic_id)
        if await term.tree.set(path, assignment.encode(), found.stat.version) is not None:
            await term.tree.get(path, watch)
            return assignment


def _watch(term: Term, name: str) -> Changed:
    def changed() -> None:
        term.context.changed_topics.add(name)
        term.put("changed topics", lambda: check_changed(term))

    return changed


async def check(term: Term) -> None:
    """Find new topics, and create their partitions."""
    partitions = await read_topics(term)
    if partitions:
        log.info("%d new partitions", len(partitions))
        await bring_online(term, partitions)


async def check_changed(term: Term) -> None:
    """Find grown topics, and create their new partitions. After a lost connection any topic may have grown."""
    context = term.context
    names, context.changed_topics = sorted(context.changed_topics), set()
    known = [name for name in names if name in context.topics]
    assignments = await all_of(known, lambda name: _read(term, name))
    # An unknown topic was removed, or could not be read before.
    find_new = len(known) < len(names)
    grown: list[Partition] = []
    for name, assignment in zip(known, assignments, strict=True):
        if assignment is None:
            continue
        if assignment.topic_id != context.topics[name].topic_id:
            log.error("The id of topic %s has changed: it is a new topic of the same name", name)
            context.remove_topic(name)
            find_new = True
            continue
        grown += await _grown(term, name, assignment)
    if grown:
        await bring_online(term, grown)
    if find_new:
        await check(term)


async def _grown(term: Term, name: str, assignment: Assignment) -> list[Partition]:
    """Add a topic's unknown partitions, and return them."""
    context = term.context
    held = context.topics[name].partitions
    new = {index: replicas for index, replicas in of_topic(assignment).items() if index not in held}
    if new and context.is_deleted(name):
        log.warning("Topic %s was extended while it is being deleted: the extension is ignored", name)
        return []
    async for index, replicas in paced(new.items()):
        context.assign((name, index), replicas)
    return [(name, index) for index in new]
