"""Writes the requests to create, extend and delete topics to ZooKeeper; the controller then carries them out.

Owns these writes, in Apache Kafka 3.9's order, and the conditions for their completion. Never waits for completion.
(AdminZkClient.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kbroker.cluster_state import PartitionState, TopicState
from kbroker.controller import znodes
from kbroker.controller.member.followed_nodes import AT_ONCE
from kbroker.controller.pacing import all_of
from kbroker.controller.tree.znode import Create, MetadataTree, Reason, Refused, SetData, ensure
from kbroker.controller.znodes import DELETE_TOPICS, TOPICS, Assignment, Unreadable, topic_path
from kbroker.protocol.errors import ApiError, ErrorCode

VIEWS_REPLICAS: Final[Mapping[int, tuple[int, ...]]] = {0: ()}
"""The replicas in a view's znode: none, because a view uses the partitions of its source."""
Holds = Callable[[TopicState | None], bool]
"""Returns whether a topic is in the expected state. A missing topic is None."""


async def partition_counts(tree: MetadataTree) -> dict[str, int]:
    """Return the number of partitions of each topic that is not being deleted, 0 for a view. Raises Unreachable."""
    names = sorted(set(await tree.children(TOPICS)) - set(await tree.children(DELETE_TOPICS)))
    found = await all_of(names, lambda name: tree.get(topic_path(name)), AT_ONCE)
    counts: dict[str, int] = {}
    for name, node in zip(names, found, strict=True):
        if node is not None:
            with contextlib.suppress(Unreadable):  # the controller reports the fault
                assignment = znodes.read(topic_path(name), node.data, Assignment.decode)
                counts[name] = sum(bool(replicas) for replicas in assignment.replicas.values())
    return counts


async def check_absent(tree: MetadataTree, name: str) -> None:
    """Raise ApiError if a topic of this name exists, or is being deleted. Raises Unreachable."""
    if await tree.get(f"{DELETE_TOPICS}/{name}") is not None:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is marked for deletion.")
    if await tree.get(topic_path(name)) is not None:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


async def create_topic(tree: MetadataTree, plan: TopicState) -> None:
    """Write a topic's configs, then its replicas. Raises Unreachable, or ApiError if the name exists."""
    await check_absent(tree, plan.name)
    path, data = f"{znodes.CONFIG}/topics/{plan.name}", znodes.encode_configs(plan.configs)
    try:
        await tree.commit([Create(path, data)])
    except Refused as refused:
        if refused.reason is not Reason.NODE_EXISTS:
            raise
        await tree.commit([SetData(path, data)])
    replicas = _replicas(plan.partitions) if plan.source is None else VIEWS_REPLICAS
    assignment = Assignment(replicas, plan.stored_id)
    try:
        await tree.commit([Create(topic_path(plan.name), assignment.encode())])
    except Refused as refused:
        if refused.reason is not Reason.NODE_EXISTS:
            raise
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{plan.name}' already exists.") from None


async def grow_topic(tree: MetadataTree, plan: TopicState) -> None:
    """Add a topic's missing partitions. Raises Unreachable, or ApiError if the topic has changed meanwhile."""
    path = topic_path(plan.name)
    node = await tree.get(path)
    if node is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{plan.name}' does not exist.")
    known = znodes.read(path, node.data, Assignment.decode)
    if known.adding or known.removing:
        text = f"A partition reassignment is in progress for the topic '{plan.name}'."
        raise ApiError(ErrorCode.REASSIGNMENT_IN_PROGRESS, text)
    if len(known.replicas) >= len(plan.partitions):
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {len(known.replicas)} partition(s).")
    grown = Assignment({**_replicas(plan.partitions), **known.replicas}, known.topic_id or plan.topic_id)
    try:
        await tree.commit([SetData(path, grown.encode(), node.stat.version)])
    except Refused as refused:
        if refused.reason not in (Reason.BAD_VERSION, Reason.NO_NODE):
            raise
        text = f"The topic '{plan.name}' was changed by somebody else meanwhile."
        raise ApiError(ErrorCode.INVALID_REQUEST, text) from None


async def delete_topic(tree: MetadataTree, name: str) -> None:
    """Request a topic's deletion, even if it is already requested. Raises Unreachable."""
    await ensure(tree, f"{DELETE_TOPICS}/{name}")


def led(count: int) -> Holds:
    """Return the condition for a created or extended topic: it has `count` partitions, each with a leader."""

    def holds(topic: TopicState | None) -> bool:
        return topic is not None and sum(each.leader >= 0 for each in topic.partitions) >= count

    return holds


def is_removed(topic_id: bytes) -> Holds:
    """Return the condition for a deleted topic. A new topic of the same name does not count."""
    return lambda topic: topic is None or topic.topic_id != topic_id


def _replicas(partitions: Sequence[PartitionState]) -> Mapping[int, tuple[int, ...]]:
    return {index: each.replicas for index, each in enumerate(partitions)}
