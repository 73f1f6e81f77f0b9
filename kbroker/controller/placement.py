"""Where the replicas of new partitions go: spread over brokers, and over racks where these are known.

Owns the order of brokers and the walk over it, as Apache Kafka 3.9 has them (AdminUtils, KIP-36). Pure: where the walk
begins is given, at random for a new topic. Never looks at how full a broker is.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest


def place_replicas(
    racks: Mapping[int, str | None], factor: int, partitions: range, start: int, shift: int
) -> list[tuple[int, ...]]:
    """Return the replicas of each of `partitions`, the preferred leader first.

    `racks` has the brokers to choose from, `factor` of them at least. First replicas go round by `start`; the others
    follow at a distance that begins with `shift` and grows with every round. While there is a rack without a replica of
    a partition, none is used twice. Where not all racks are known, none counts.
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
    """Return the brokers in such an order that neighbours are in different racks, as far as that goes."""
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
