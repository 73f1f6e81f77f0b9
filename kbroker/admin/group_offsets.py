"""The offsets of groups: reading and resetting committed offsets.

Owns the choice of the offsets that a reset commits, and the rule that nobody can reset a group with members. Never
prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import kafka.errors
from kafka.admin import OffsetSpec
from kafka.structs import OffsetAndMetadata, TopicPartition

from kbroker.admin.connection import patiently
from kbroker.admin.did_you_mean import no_such_topic
from kbroker.admin.errors import AdminError, Failures, WrongInput, error_text
from kbroker.admin.partition_offsets import retried_offsets_at
from kbroker.admin.share_groups import alter_share_offsets, share_offsets
from kbroker.changes import partitions_by_topic

WITHOUT_MEMBERS: Final = ("Empty", "Dead", None)
"""The states in which an administrator may set offsets: the group has no members, or (None) does not exist."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a reset: exactly one field is set."""

    earliest: bool = False
    latest: bool = False
    offset: int | None = None
    time_ms: int | None = None
    shift: int | None = None
    current: bool = False
    listed: Mapping[TopicPartition, int] | None = None

    @property
    def is_one(self) -> bool:
        """Whether exactly one target was chosen."""
        given = (self.offset, self.time_ms, self.shift, self.listed)
        return sum([self.earliest, self.latest, self.current, *(v is not None for v in given)]) == 1


def committed_offsets(admin: Any, name: str) -> dict[TopicPartition, int]:
    """Return the offsets that a group has committed."""
    found = patiently(lambda: admin.list_group_offsets({name: None}))[name]
    return {partition: at.offset for partition, at in found.items() if at.offset >= 0}


class PartitionOffsets:
    """Finds offsets of existing partitions; leaves out a partition if its leader does not know the offset."""

    def __init__(self, admin: Any, partitions: Iterable[TopicPartition]) -> None:
        self._admin = admin
        partitions = list(partitions)
        topics = admin.describe_topics(sorted({each.topic for each in partitions})) if partitions else []
        led = {
            TopicPartition(topic["name"], p["partition_index"]): p["leader_id"]
            for topic in topics
            for p in topic["partitions"]
            if p["leader_id"] >= 0
        }
        self.partitions = [each for each in partitions if each in led]
        self._led = {each: led[each] for each in self.partitions}

    def of(self, spec: int) -> dict[TopicPartition, int]:
        """Return each partition's offset for `spec`: an OffsetSpec, or a time in ms."""
        return retried_offsets_at(self._admin, self._led, spec)


def named_partitions(admin: Any, wanted: Sequence[str]) -> list[TopicPartition]:
    """Return the partitions for texts like "orders" and "orders:0,2"."""
    try:
        requested = partitions_by_topic(wanted)
    except ValueError as error:
        raise WrongInput(str(error)) from None
    found = []
    known = {topic["name"]: topic for topic in admin.describe_topics(sorted(requested)) if not topic["error_code"]}
    for topic, chosen in requested.items():
        if topic not in known:
            raise AdminError(no_such_topic(admin, topic))
        there = {p["partition_index"] for p in known[topic]["partitions"]}
        for number in sorted((chosen or set()) - there):
            raise AdminError(f"topic {topic} has no partition {number}")
        found += [TopicPartition(topic, number) for number in chosen or there]
    return sorted(found)


def new_offsets(
    admin: Any, partitions: list[TopicPartition], committed: Mapping[TopicPartition, int], target: Target
) -> dict[TopicPartition, int]:
    """Return each partition's offset after a reset, limited to the partition's bounds. Raises AdminError."""
    offsets = PartitionOffsets(admin, partitions)
    for each in partitions:
        if each not in offsets.partitions:
            raise AdminError(f"partition {each.partition} of {each.topic} is gone, or has no leader")
        if (target.shift is not None or target.current) and each not in committed:
            what = "stay" if target.current else "be shifted"
            raise AdminError(f"{each.topic}-{each.partition} has no committed offset, so the offset cannot {what}")
    earliest, latest = offsets.of(OffsetSpec.EARLIEST), offsets.of(OffsetSpec.LATEST)
    for each in partitions:
        if each not in earliest or each not in latest:
            raise AdminError(f"the leader of {each.topic}-{each.partition} does not know the end offset yet")
    at_time = {} if target.time_ms is None else offsets.of(target.time_ms)
    new = {}
    for each in partitions:
        if target.earliest:
            wanted = earliest[each]
        elif target.offset is not None:
            wanted = target.offset
        elif target.shift is not None or target.current:
            wanted = committed[each] + (target.shift or 0)
        elif target.listed is not None:
            wanted = target.listed[each]
        elif at_time.get(each, -1) >= 0:
            wanted = at_time[each]
        else:
            wanted = latest[each]
        new[each] = min(max(wanted, earliest[each]), latest[each])
    return new


def offsets_of(admin: Any, name: str, kind: str | None) -> dict[TopicPartition, int]:
    """Return the offsets that a reset may change: for a share group the start offsets, else the committed offsets."""
    if kind != "share":
        return committed_offsets(admin, name)
    found = share_offsets(admin, name)
    return {place: each.start_offset for place, each in found.items() if each.start_offset is not None}


def set_offsets(admin: Any, name: str, kind: str | None, new: Mapping[TopicPartition, int]) -> None:
    """Set the offsets of a group without members; `kind` is its type. Raises Failures, AdminError."""
    if kind == "share":
        alter_share_offsets(admin, name, new)
        return
    requested = {each: OffsetAndMetadata(offset, "", None) for each, offset in new.items()}
    result = patiently(lambda: admin.alter_group_offsets(name, requested))
    failed = {each: error for each, error in result.items() if error is not kafka.errors.NoError}
    if failed:
        raise Failures([f"cannot reset {p.topic} {p.partition}: {error_text(e)}" for p, e in sorted(failed.items())])
