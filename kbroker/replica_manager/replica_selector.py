"""From which replica a consumer is to read (KIP-392; Apache Kafka: RackAwareReplicaSelector).

Owns the choice alone. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class Readable(NamedTuple):
    """A follower that is in sync and has what is asked for; `caught_up_ms` is when it last had all."""

    broker: int
    end_offset: int
    caught_up_ms: int


def nearest(rack: str, leader_rack: str | None, followers: Iterable[Readable], racks: Mapping[int, str]) -> int | None:
    """Return the follower in the client's rack that is furthest; None: the leader, as there is none, or it is there."""
    if not rack or rack == leader_rack:
        return None
    near = [each for each in followers if racks.get(each.broker) == rack]
    best = max(near, key=lambda each: (each.end_offset, each.caught_up_ms, each.broker), default=None)
    return None if best is None else best.broker
