"""The input of an assignor (`GroupSpec`) and its result (`Assignment`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kbroker.group_coordinator.partitions import Partitions


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """One member: the ids of its subscribed topics, its current target, its instance id and its rack."""

    topics: frozenset[bytes]
    assigned: Partitions
    instance_id: str | None = None
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group: its members, in Java's order, and whether all subscribe to the same topics."""

    members: Mapping[str, MemberSpec]
    homogeneous: bool
    partitions: Mapping[bytes, int]
    """The number of partitions of each subscribed topic."""


Assignment = dict[str, Partitions]
Assign = Callable[[GroupSpec], Assignment]
