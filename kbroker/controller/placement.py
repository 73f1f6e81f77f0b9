"""The placement of new replicas: spread over brokers, and over racks if these are known.

Owns the order of brokers and the walk over it, as in Apache Kafka 3.9 (AdminUtils, KIP-36). Pure: the start of the walk
is an argument, random for a new topic. Never considers how full a broker is.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest


def place_replicas(
    racks: Mapping[int, str | None], factor: int, partitions: range, start: int, shift: int
) -> list[tuple[int, ...]]:
    """Return the replicas of each of `partitions`, the preferred leader first.

    `racks` contains the brokers to choose from, at least `factor` of them. The first replicas rotate from `start`; the
    others follow at a distance that begins with `shift` and grows with every round. As long as a rack has no replica of
    a partition, no other rack gets a second one. If any rack is unknown, racks are ignored.
    """
    known = {broker: rack for broker, rack in racks.items() if rack is not None}
    rack_of = known if len(known) == len(racks) else dict.fromkeys(racks, "")
    order = alternated(rack_of)
    distance = shift
    placed = []
    for index in partitions:
        if index > 0 and index % len(order) == 0:
            distance += 1
        placed.append(_replicas(order, rack_of, factor, (index + start) % len(order), distance))
    return placed


def alternated(rack_of: Mapping[int, str]) -> list[int]:
    """Return the brokers in an order where neighbours are in different racks, as far as possible."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(rack_of):
        by_rack.setdefault(rack_of[broker], []).append(broker)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for each in rounds for broker in each if broker is not None]


def _replicas(order: list[int], rack_of: Mapping[int, str], factor: int, first: int, distance: int) -> tuple[int, ...]:
    chosen = [order[first]]
    used = {rack_of[order[first]]}
    all_racks = len(set(rack_of.values()))
    step = distance * all_racks
    while len(chosen) < factor:
        broker = order[(first + 1 + step % (len(order) - 1)) % len(order)]
        step += 1
        if broker not in chosen and (rack_of[broker] not in used or len(used) == all_racks):
            chosen.append(broker)
            used.add(rack_of[broker])
    return tuple(chosen)
