"""The restore of a snapshot: replaces the content of an embedded broker with that of the snapshot.

Owns the order of the steps, during which requests wait at the gate. First, files are created under temporary names, in
a thread. Then all changes are deleted, as in a reset, and the snapshot's logs replace the current logs. Never changes a
snapshot.

Epochs and ids that clients remember never decrease. Leader epochs increase with each restore, as after the election of
a leader that lacks some records. So consumers detect the truncation. Producer ids are never reused, and each
transactional id keeps its current epoch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

from kbroker.broker.node import BrokerNode
from kbroker.cluster_state import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC, ClusterState, TopicState
from kbroker.log import checkpoints
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.directories.partition_dir_names import (
    DELETE_SUFFIX,
    Key,
    MadeAhead,
    NewPartition,
    new_name,
    partition_path,
)
from kbroker.log.files import LOG_SUFFIX, SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX, offset_name
from kbroker.log.producers.producer_snapshots import write_snapshot
from kbroker.long_work import whole
from kbroker.testing.reset import delete_ownerless, reset
from kbroker.testing.snapshot import KeptFile, KeptLog, Snapshot, link_or_copy, segments_of
from kbroker.testing.waiting import until

_UNSCANNED: Final = 1 << 20
"""Logs larger than this, in bytes, get a producer snapshot, so that they are not scanned for producers."""
_PIECE: Final = 1 << 20


# --- files, in any thread


def make_files(node: BrokerNode, logs: Iterable[KeptLog], state: ClusterState, made: dict[Key, MadeAhead]) -> None:
    """Create the files of kept logs beside the current files. Add each file to `made` first, in case of an OSError."""
    online = [manager.directory for manager in node.logs.online]
    for kept in logs:
        topic, index = kept.key
        directory = kept.directory if kept.directory in online else online[0]
        topic_id = UUID(bytes=state.topics[topic].topic_id)
        path = f"{directory}/{new_name(topic, index, DELETE_SUFFIX)}"
        made[kept.key] = MadeAhead(NewPartition(kept.key, topic_id), directory, path)
        os.mkdir(path)
        _fill(path, kept, topic_id)


def remove_files(made: Mapping[Key, MadeAhead]) -> None:
    """Remove files that were created but are not needed."""
    for each in made.values():
        shutil.rmtree(each.path, ignore_errors=True)


def _fill(path: str, kept: KeptLog, topic_id: UUID) -> None:
    for file in kept.files:
        target = offset_name(path, file.base_offset, file.suffix)
        if file.grows or not file.size or file.suffix != LOG_SUFFIX:  # indexes are modified in use
            _copy(file, target)
        else:
            link_or_copy(file.path, target)
    active = kept.files[-1].base_offset
    for suffix in SEGMENT_SUFFIXES:
        with open(offset_name(path, active, suffix), "ab"):
            pass  # missing files are created empty, as in a new segment
    checkpoints.write_topic_id(path, topic_id)
    if kept.epochs:
        checkpoints.write_epochs(f"{path}/{checkpoints.LEADER_EPOCHS}", kept.epochs, sync=False)
    if kept.had_producers or sum(file.size for file in kept.files) > _UNSCANNED:
        write_snapshot(offset_name(path, kept.end_offset, SNAPSHOT_SUFFIX), kept.open_producers, sync=False)


def _copy(file: KeptFile, target: str) -> None:
    left = file.size
    with open(target, "wb") as out:
        if not left:
            return
        with open(file.path, "rb") as source:
            while left:
                piece = source.read(min(left, _PIECE))
                if not piece:
                    raise OSError(f"{file.path} is shorter than it was")
                out.write(piece)
                left -= len(piece)


# --- in the broker's loop, while requests wait


def changed_logs(node: BrokerNode, snapshot: Snapshot) -> list[KeptLog]:
    """Return the kept logs of those topics that have changed since the snapshot."""
    same = {name for name, topic in snapshot.state.topics.items() if _is_same(node.controller.decided, name, topic)}
    same -= {kept.key[0] for kept in snapshot.logs if not _is_as_it_was(node, snapshot, kept)}
    return [kept for kept in snapshot.logs if kept.key[0] not in same]


def _is_same(state: ClusterState, name: str, topic: TopicState) -> bool:
    """Whether a topic still exists unchanged. False for a coordinator's topic, because its content is loaded again."""
    now = state.topics.get(name)
    if now is None or name in (OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC):
        return False
    as_then = now.topic_id == topic.topic_id and now.configs == topic.configs
    return as_then and len(now.partitions) == len(topic.partitions)


def _is_as_it_was(node: BrokerNode, snapshot: Snapshot, kept: KeptLog) -> bool:
    """Whether a log is unchanged: its leader epoch, offsets and segments are equal."""
    partition, (topic, index) = node.replicas.get(kept.key), kept.key
    if partition is None or not partition.leading:
        return False
    then = snapshot.state.topics[topic].partitions[index].leader_epoch
    if partition.leader_epoch not in (then, snapshot.restored_in.get(kept.key)):
        return False
    log = partition.log
    offsets = log.log_start_offset == kept.start_offset and log.log_end_offset == kept.end_offset
    return offsets and not kept.open_producers and segments_of(log) == kept.segments


async def put_back(node: BrokerNode, snapshot: Snapshot, made: dict[Key, MadeAhead], epoch: int) -> None:
    """Restore a broker's content from a snapshot. Changed logs get this leader epoch. Clears `made`.

    After a failure, every remaining log belongs to a topic.
    """
    try:
        await _put_logs_back(node, snapshot, made, epoch)
    except BaseException:
        delete_ownerless(node)
        raise
    await until(lambda: node.replicas.has_hosted_all, "the broker has not made all its partitions")
    loaded = (node.groups, node.transactions, node.shares)
    await until(lambda: all(each.is_loaded for each in loaded), "the coordinators have not read their topics")


async def _put_logs_back(node: BrokerNode, snapshot: Snapshot, made: dict[Key, MadeAhead], epoch: int) -> None:
    logs = changed_logs(node, snapshot)
    make_files(node, (each for each in logs if each.key not in made), snapshot.state, made)
    names = {each.key[0] for each in logs}
    decided = node.controller.decided
    views = (topic for topic in snapshot.state.topics.values() if topic.source is not None)  # views have no logs
    names |= {each.name for each in views if not _is_same(decided, each.name, each)}
    kept = snapshot.state.topics.keys() - names
    await reset(node, snapshot.state, kept)
    while node.controller.decided.topics.keys() - kept:  # a running request has created a topic
        await reset(node, snapshot.state, kept)
    _put_tokens_back(node, snapshot.state)
    topics = [_in_epoch(each, epoch) for each in snapshot.state.topics.values() if each.name in names]
    by_name = {each.name: each for each in topics}
    for each in logs:
        _put_log_back(node, each, made.pop(each.key), by_name[each.key[0]], epoch)
        snapshot.restored_in[each.key] = epoch
    node.controller.put_topics(topics)
    settled = node.controller.published()
    if settled is not None:
        await settled


def _in_epoch(topic: TopicState, epoch: int) -> TopicState:
    return replace(topic, partitions=tuple(replace(each, leader_epoch=epoch) for each in topic.partitions))


def highest_epoch(*states: ClusterState) -> int:
    """Return the highest leader epoch of any partition."""
    return max(
        (each.leader_epoch for state in states for topic in state.topics.values() for each in topic.partitions),
        default=-1,
    )


def _put_tokens_back(node: BrokerNode, state: ClusterState) -> None:
    for token in state.tokens:
        if node.controller.decided.tokens.get(token.info.token_id) != token:
            whole(node.controller.change_token(token.info.token_id, lambda _, token=token: token))  # type: ignore[misc]


def _put_log_back(node: BrokerNode, kept: KeptLog, made: MadeAhead, topic: TopicState, epoch: int) -> None:
    """Open a partition's log from the files that were created for it."""
    now_ms = node.clock.now_ms()
    home = _home(node, made)
    if not home.takes(made):
        raise OSError(f"{made.path} could not take the place of {kept.key[0]}-{kept.key[1]}")
    config = node.replicas.settings_of(topic)
    try:
        log = home.get_or_create(*kept.key, made.new.topic_id, config, now_ms)
    except BaseException:
        os.rename(partition_path(home.directory, *kept.key), made.path)
        home.discard(made.path, now_ms)
        raise
    if log.log_end_offset != kept.end_offset:
        raise OSError(f"{kept.key[0]}-{kept.key[1]} ends at {log.log_end_offset}, not at {kept.end_offset}")
    log.may_have_holes |= kept.may_have_holes
    log.leader_epochs.assign(epoch, log.log_end_offset, sync=False)
    log.set_high_watermark(log.log_end_offset)
    log.advance_log_start(kept.start_offset, now_ms)
    log.recovery_point = log.segments.bases[0]
    if kept.cleaned_to is not None:
        home.cleaner.note(kept.key, kept.cleaned_to)


def _home(node: BrokerNode, made: MadeAhead) -> LogDirectory:
    return next(each for each in node.logs.online if each.directory == made.directory)
