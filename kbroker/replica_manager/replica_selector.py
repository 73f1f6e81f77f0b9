"""The choice of a consumer's replica (KIP-392; Apache Kafka: RackAwareReplicaSelector).

Owns only the choice. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class Readable(NamedTuple):
    """An in-sync follower that has the requested offset; `caught_up_ms` is when it last had everything."""

    broker: int
    end_offset: int
    caught_up_ms: int


def nearest(rack: str, leader_rack: str | None, followers: Iterable[Readable], racks: Mapping[int, str]) -> int | None:
    """Return the most advanced follower in the client's rack; None for the leader, if there is none or it is there."""
    if not rack or rack == leader_rack:
        return None
    near = [each for each in followers if racks.get(each.broker) == rack]
    best = max(near, key=lambda each: (each.end_offset, each.caught_up_ms, each.broker), default=None)
    return None if best is None else best.broker
