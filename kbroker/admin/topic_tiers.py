"""The two tiers of topics in any cluster: the offsets and bytes on the brokers' disks and in remote storage (KIP-405).

Owns the reading of `__remote_log_metadata`, in which brokers record each remote segment. Each call reads all records
in those partitions of `__remote_log_metadata` that concern the requested topics. A call needs some 200 bytes of memory
for each segment of the requested topics. Never asks the store itself, and never prints.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kafka.errors import KafkaError

from kbroker.admin.cluster_view import TopicView, cluster_view
from kbroker.admin.configs import topic_config
from kbroker.admin.did_you_mean import no_such_topic
from kbroker.admin.errors import AdminError
from kbroker.admin.fetching import UnreadableBatch
from kbroker.admin.log_dirs import log_dirs
from kbroker.admin.partition_offsets import SPECIAL, offsets_at
from kbroker.admin.partition_reader import PartitionReader
from kbroker.admin.placement import Key
from kbroker.cluster_state import REMOTE_LOG_METADATA_TOPIC, VIEW_SOURCE
from kbroker.protocol.errors import Malformed
from kbroker.protocol.messages.remote_log_records import (
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataSnapshotRecord,
    RemotePartitionDeleteMetadataRecord,
)
from kbroker.remote.metadata_records import decode_record, metadata_partition
from kbroker.remote.segment import DeleteState, SegmentState, may_become

ENABLE: Final = "remote.storage.enable"
_TIMES: Final = ("earliest", "earliest-local", "latest-tiered", "latest")
_READABLE: Final = SegmentState.COPY_SEGMENT_FINISHED
_Owner = tuple[bytes, int]
"""A topic id and a partition."""


@dataclass(frozen=True, slots=True)
class PartitionTiers:
    """A partition's offsets and bytes in both tiers. Unknown values are None."""

    topic: str
    partition: int
    start: int | None
    """The log start offset."""
    local_start: int | None
    """The first offset on the leader's disk."""
    latest_tiered: int | None
    """The last offset in remote storage; None if remote storage has no record."""
    end: int | None
    """The high watermark."""
    local_bytes: int | None
    """The bytes of the leader's replica."""
    remote_bytes: int | None
    """The bytes of the segments that can be read from remote storage."""
    remote_segments: int | None
    """The number of segments that can be read from remote storage."""
    unfinished: int | None
    """The number of segments whose copy or deletion has begun and not ended."""


@dataclass(slots=True)
class Tiers:
    """The tiers of several topics' partitions, and the reasons why some of them are unknown."""

    partitions: list[PartitionTiers] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """The reasons why some offsets or bytes are unknown."""


class _Segments:
    """The remote segments of one partition by id: state and bytes."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[SegmentState, int]] = {}

    def begin(self, segment_id: bytes, size: int) -> None:
        self._known.setdefault(segment_id, (SegmentState.COPY_SEGMENT_STARTED, size))

    def advance(self, segment_id: bytes, state: SegmentState) -> None:
        known = self._known.get(segment_id)
        if known is None or not may_become(known[0], state):
            return
        if state is SegmentState.DELETE_SEGMENT_FINISHED:
            del self._known[segment_id]
        else:
            self._known[segment_id] = state, known[1]

    def clear(self) -> None:
        self._known.clear()

    @property
    def totals(self) -> tuple[int, int, int]:
        """The bytes and the number of readable segments, and the number of segments that are not readable."""
        sizes = [size for state, size in self._known.values() if state is _READABLE]
        return sum(sizes), len(sizes), len(self._known) - len(sizes)


def tiered_topics(admin: Any) -> list[str]:
    """Return the topics with remote storage that the user may describe, by name."""
    names = sorted(cluster_view(admin).topics)
    enabled = topic_config(admin, names, ENABLE) if names else {}
    return [name for name in names if enabled.get(name) == "true"]


def topic_tiers(admin: Any, names: Sequence[str], *, most_s: float = math.inf) -> Tiers:
    """Return the tiers of topics' partitions. A partition without a leader is named in `troubles`, and raises no error.

    The remote segments stay unknown if they cannot be read within `most_s` seconds. Raises AdminError for views, and
    for unknown topics.
    """
    found, until = Tiers(), time.monotonic() + most_s
    if not names:
        return found
    topics = _described(admin, names)
    led = {(name, each.partition_index): each.leader_id for name in topics for each in topics[name].partitions}
    found.troubles += [f"{name}-{index} has no leader" for (name, index), leader in led.items() if leader < 0]
    led = {key: leader for key, leader in led.items() if leader >= 0}
    offsets = _offsets(admin, led, found.troubles)
    local = _local(admin, led, found.troubles)
    owners = {key: (bytes(topics[key[0]].topic_id), key[1]) for key in led}
    try:
        remote = _remote(PartitionReader(admin), set(owners.values()), found.troubles, until)
    except AdminError as error:
        found.troubles.append(f"the remote segments are unknown: {error}")
        remote = None
    for key in sorted(led):
        start, local_start, tiered, end = (offsets[name].get(key) for name in _TIMES)
        totals = (None, None, None) if remote is None else remote[owners[key]].totals
        found.partitions.append(PartitionTiers(*key, start, local_start, tiered, end, local.get(key), *totals))
    return found


def _described(admin: Any, names: Sequence[str]) -> dict[str, TopicView]:
    views = topic_config(admin, names, VIEW_SOURCE)
    topics = cluster_view(admin, names).topics
    for name in names:
        if name not in topics:
            raise AdminError(no_such_topic(admin, name))
        if views.get(name):
            raise AdminError(f"topic {name} is a view, which stores nothing: ask for its source {views[name]}")
    return {name: topics[name] for name in names}


def _offsets(admin: Any, led: dict[Key, int], troubles: list[str]) -> dict[str, dict[Key, int]]:
    found: dict[str, dict[Key, int]] = {name: {} for name in _TIMES}
    refused: dict[str, None] = {}
    for name in _TIMES:
        try:
            at, errors = offsets_at(admin, led, *SPECIAL[name])
        except (AdminError, KafkaError) as error:
            at, errors = {}, [f"the offsets {name} are unknown: {error}"]
        found[name] = {key: offset for key, (offset, _) in at.items() if offset >= 0}
        refused |= dict.fromkeys(errors)
    troubles += refused
    return found


def _local(admin: Any, led: dict[Key, int], troubles: list[str]) -> dict[Key, int]:
    dirs = log_dirs(admin, sorted(set(led.values())), list(dict.fromkeys(name for name, _ in led)))
    found = {key: size for each in dirs for key, size in each.replicas.items() if led.get(key) == each.broker}
    if found.keys() != led.keys():
        why = "a leader does not answer, or the user has no right to describe the cluster"
        troubles.append(f"the bytes on the disks are not known for all partitions: {why}")
    return found


def _remote(
    reader: PartitionReader, owners: Collection[_Owner], troubles: list[str], until: float
) -> dict[_Owner, _Segments]:
    """Return the remote segments of partitions. Raises AdminError if the topic that names them cannot be read."""
    found = {owner: _Segments() for owner in owners}
    view = reader.topic(REMOTE_LOG_METADATA_TOPIC)
    if view is None:
        return found
    count = len(view.partitions)
    wanted = tuple(sorted({metadata_partition(*owner, count) for owner in owners}))
    bounds = reader.bounds(REMOTE_LOG_METADATA_TOPIC, wanted) if wanted else {}
    unreadable = sum(_replay(reader, index, bounds[index], found, until) for index in wanted)
    if unreadable:
        troubles.append(f"{unreadable} records or batches of {REMOTE_LOG_METADATA_TOPIC} cannot be read")
    return found


def _replay(
    reader: PartitionReader, index: int, bounds: tuple[int, int], found: dict[_Owner, _Segments], until: float
) -> int:
    """Replay a partition of the topic; return the number of records and batches that cannot be read."""
    unreadable = 0
    at, end = bounds
    while at < end:
        if time.monotonic() >= until:
            raise AdminError(f"{REMOTE_LOG_METADATA_TOPIC} cannot be read to its end in time: use kbroker topic tiers")
        try:
            piece = reader.fetch((REMOTE_LOG_METADATA_TOPIC, index), at)
        except UnreadableBatch as error:
            unreadable += 1
            at = max(error.next_offset, at + 1)
            continue
        for record in piece.records:
            try:
                _apply(record.value, found)
            except Malformed:
                unreadable += 1
        if piece.next_offset <= at:
            raise AdminError(f"{REMOTE_LOG_METADATA_TOPIC}-{index} cannot be read beyond offset {at} now")
        at = piece.next_offset
    return unreadable


def _apply(value: bytes | None, found: dict[_Owner, _Segments]) -> None:
    record = None if value is None else decode_record(value)
    if record is None or isinstance(record, RemoteLogSegmentMetadataSnapshotRecord):
        return
    if isinstance(record, RemotePartitionDeleteMetadataRecord):
        entry = record.topic_id_partition
        segments = found.get((bytes(entry.id), entry.partition))
        if segments is not None and record.remote_partition_delete_state == DeleteState.DELETE_PARTITION_FINISHED:
            segments.clear()
        return
    entry = record.remote_log_segment_id.topic_id_partition
    segments = found.get((bytes(entry.id), entry.partition))
    if segments is None:
        return
    if isinstance(record, RemoteLogSegmentMetadataRecord):
        segments.begin(record.remote_log_segment_id.id, record.segment_size_in_bytes)
    else:
        segments.advance(record.remote_log_segment_id.id, SegmentState(record.remote_log_segment_state))
