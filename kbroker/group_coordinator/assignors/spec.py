"""What an assignor is given (`GroupSpec`) and gives back (`Assignment`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kbroker.group_coordinator.partitions import Partitions


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """One member: the ids of the topics it subscribes to, what its target gives it so far, who and where it is."""

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
    """How many partitions each subscribed topic has."""


Assignment = dict[str, Partitions]
Assign = Callable[[GroupSpec], Assignment]
