"""Builds the cluster's state from the controller's UpdateMetadata requests.

Owns the effect of a request on the known state. Pure. Never decides whether a request is valid. (Apache Kafka 3.9:
ZkMetadataCache.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from kbroker.cluster_state import (
    NO_LEADER,
    VIEW_SOURCE,
    BrokerEndpoint,
    ClusterState,
    PartitionState,
    TopicState,
    derived_views,
)
from kbroker.long_work import turn
from kbroker.protocol.messages.inter_broker import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from kbroker.topic_names import MAX_NAME_LENGTH, topic_name_fault

LEADER_DURING_DELETE = -2
_MOST_UNKNOWN = 1_000_000
"""The maximum number of partitions that one request may add, including gaps.

Partition N implies all partitions below it.
"""
log = logging.getLogger(__name__)
_UNKNOWN = PartitionState(replicas=(), isr=(), leader=NO_LEADER, leader_epoch=-1)


async def updated(
    state: ClusterState, request: UpdateMetadataRequest, configs_of: Callable[[str], Mapping[str, str]]
) -> ClusterState:
    """Return the state after a request.

    The request's brokers replace the known brokers, and its partitions update the known partitions. `configs_of`
    returns the configs of an unknown topic. A topic without remaining partitions is removed.
    """
    topics, names = dict(state.topics), dict(state.topic_names)
    unknown, impossible = _MOST_UNKNOWN, ""
    changed: list[str] = []
    for topic in request.topic_states:
        if topic_name_fault(topic.topic_name) is not None:
            impossible = repr(topic.topic_name[:MAX_NAME_LENGTH])
            continue
        known = topics.get(topic.topic_name)
        configs = known.configs if known is not None else configs_of(topic.topic_name)
        changed.append(topic.topic_name)
        if configs.get(VIEW_SOURCE):
            _learn_view(topic, configs, topics, names)
            continue
        partitions = list(known.partitions) if known is not None else []
        for each in topic.partition_states:
            await turn
            missing = max(each.partition_index + 1 - len(partitions), 0)
            if each.partition_index < 0 or missing > unknown:
                impossible = f"{topic.topic_name}-{each.partition_index}"
                continue
            unknown -= missing
            partitions += [_UNKNOWN] * missing
            partitions[each.partition_index] = _partition(each)
        if known is not None:
            names.pop(known.topic_id, None)
        if not any(each is not _UNKNOWN for each in partitions):
            topics.pop(topic.topic_name, None)
            continue
        topics[topic.topic_name] = TopicState(topic.topic_name, topic.topic_id, tuple(partitions), configs)
        names[topic.topic_id] = topic.topic_name
        await turn
    if impossible:
        log.warning("UpdateMetadata names %s, which is passed over: there can be no such partition", impossible)
    views = derived_views(state.views, state.topics, topics, names, changed)
    brokers = {}
    for broker in request.live_brokers:
        brokers[broker.id] = await _broker(broker)
        await turn
    return replace(
        state,
        version=state.version + 1,
        controller_id=max(request.controller_id, NO_LEADER),
        brokers=brokers,
        topics=topics if request.topic_states else state.topics,
        topic_names=names if request.topic_states else state.topic_names,
        views=views,
    )


def _learn_view(
    sent: UpdateMetadataTopicState, configs: Mapping[str, str], topics: dict[str, TopicState], names: dict[bytes, str]
) -> None:
    """Add or remove a view. The controller sends one partition without replicas; the source has the partitions."""
    known = topics.pop(sent.topic_name, None)
    if known is not None:
        names.pop(known.topic_id, None)
    if not any(each.leader == LEADER_DURING_DELETE for each in sent.partition_states):
        topics[sent.topic_name] = TopicState(sent.topic_name, sent.topic_id, (), configs)


def _partition(sent: UpdateMetadataPartitionState) -> PartitionState:
    if sent.leader == LEADER_DURING_DELETE:
        return _UNKNOWN
    return PartitionState(
        replicas=tuple(sent.replicas),
        isr=tuple(sent.isr),
        leader=sent.leader,
        leader_epoch=sent.leader_epoch,
        partition_epoch=sent.zk_version,
        offline=tuple(sent.offline_replicas),
    )


async def _broker(sent: UpdateMetadataBroker) -> BrokerEndpoint:
    listeners = {}
    for each in sent.endpoints:
        listeners[each.listener] = (each.host, each.port)
        await turn
    host, port = next(iter(listeners.values()), ("", -1))
    return BrokerEndpoint(sent.id, host, port, sent.rack, listeners)
