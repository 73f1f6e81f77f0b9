"""The assignor "uniform" for members that subscribe to different topics.

Owns this algorithm. Members keep their partitions of topics to which they still subscribe. The least loaded subscriber
gets each free partition; topics with the most partitions per subscriber are first. Then partitions of each topic move
from its most to its least loaded subscriber while this improves the balance, in at most 16 rounds over all topics.
"""

from __future__ import annotations

from kbroker.group_coordinator.assignment import Assignment, GroupSpec, copied, frozen

_MAX_ROUNDS = 16


class MixedUniform:
    """One assignment in progress. Members are numbered in the order of the spec."""

    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec
        self._ids = list(spec.members)
        self._load = [0] * len(self._ids)
        self._subscribers: dict[bytes, list[int]] = {}
        for number, member in enumerate(spec.members.values()):
            for topic_id in member.topics:
                self._subscribers.setdefault(topic_id, []).append(number)
        self._owners = {topic_id: [-1] * spec.partitions[topic_id] for topic_id in self._subscribers}

    def build(self) -> Assignment:
        """Return the assignment of every member; empty if no member subscribes to anything."""
        if not self._subscribers:
            return {}
        self._keep()
        self._assign_the_rest()
        self._balance()
        out = [copied({}) for _ in self._ids]
        for topic_id, owners in self._owners.items():
            for index, owner in enumerate(owners):
                if owner >= 0:
                    out[owner].setdefault(topic_id, set()).add(index)
        return {member_id: frozen(out[number]) for number, member_id in enumerate(self._ids)}

    def _keep(self) -> None:
        for number, member in enumerate(self._spec.members.values()):
            for topic_id, indexes in member.assigned.items():
                if topic_id in member.topics:
                    owners = self._owners[topic_id]
                    for index in indexes:
                        if 0 <= index < len(owners):
                            owners[index] = number
        for owners in self._owners.values():
            for owner in owners:
                if owner >= 0:
                    self._load[owner] += 1

    def _narrowest_first(self, topic_ids: list[bytes]) -> list[bytes]:
        """Sort topics by most partitions per subscriber, then by fewest subscribers, then by id in Kafka's order."""

        def rank(topic_id: bytes) -> tuple[float, int, int, int]:
            count = len(self._subscribers[topic_id])
            high = int.from_bytes(topic_id[:8], "big", signed=True)
            low = int.from_bytes(topic_id[8:], "big", signed=True)
            return -(self._spec.partitions[topic_id] / count), count, high, low

        return sorted(topic_ids, key=rank)

    def _assign_the_rest(self) -> None:
        for topic_id in self._narrowest_first([t for t, owners in self._owners.items() if -1 in owners]):
            balancer = _Balancer(self._load, self._subscribers[topic_id])
            owners = self._owners[topic_id]
            for index, owner in enumerate(owners):
                if owner < 0:
                    self._move(owners, index, balancer.next_least())

    def _move(self, owners: list[int], index: int, to: int) -> None:
        if owners[index] >= 0:
            self._load[owners[index]] -= 1
        owners[index] = to
        self._load[to] += 1

    def _balance(self) -> None:
        topics = self._narrowest_first([t for t, members in self._subscribers.items() if len(members) > 1])
        last = -1  # the last topic with a move; the loop ends after one round without a move
        for _ in range(_MAX_ROUNDS):
            for place, topic_id in enumerate(topics):
                if place == last:
                    return
                if self._balance_topic(topic_id) or last == -1:
                    last = place

    def _balance_topic(self, topic_id: bytes) -> int:
        """Move partitions of a topic from the most to the least loaded subscribers; return the number of moves."""
        balancer = _Balancer(self._load, self._subscribers[topic_id])
        if balancer.imbalance <= 1:
            return 0
        owners = self._owners[topic_id]
        owned: dict[int, list[int]] = {}
        for index, owner in enumerate(owners):
            owned.setdefault(owner, []).append(index)
        moved = 0
        while not balancer.is_balanced():
            giver = balancer.next_most()
            while giver >= 0 and not owned.get(giver):
                balancer.exclude_most()
                giver = balancer.next_most()
            if giver < 0:
                break
            index = owned[giver].pop()
            taker = balancer.next_least()
            if balancer.is_balanced():
                break
            self._move(owners, index, taker)
            moved += 1
        return moved


class _Balancer:
    """Returns the least loaded and the most loaded member of a set, repeatedly, while the loads change.

    The members are sorted by load. The range of the least loaded members is at the left end, and the range of the most
    loaded members is at the right end. Each call returns the next member of a range. After one pass over a range, the
    loads of its members have changed, and the range may grow by neighbours with the same load. Members that have no
    partitions to give are moved past the right end.
    """

    def __init__(self, load: list[int], members: list[int]) -> None:
        self._load = load
        self._sorted = sorted(members, key=lambda number: (load[number], number))
        count = len(members)
        least, most = load[self._sorted[0]], load[self._sorted[-1]]
        self.imbalance = most - least
        self._least_end, self._least_load, self._next_least = 0, least - 1, 0
        self._most_start, self._most_end, self._most_load, self._next_most = count, count, most + 1, count - 1

    def next_least(self) -> int:
        """Return the member that receives the next partition."""
        if self._next_least >= self._least_end:
            self._least_load += 1
            while self._least_end < len(self._sorted) and self._load[self._sorted[self._least_end]] == self._least_load:
                self._least_end += 1
            self._next_least = 0
        found = self._sorted[self._next_least]
        self._next_least += 1
        return found

    def next_most(self) -> int:
        """Return the member that gives the next partition away; -1 if no member has a partition."""
        if self._next_most < self._most_start:
            if self._most_end <= self._most_start and self._most_start > 0:
                self._most_load = self._load[self._sorted[self._most_start - 1]]
            else:
                self._most_load -= 1
            while self._most_start > 0 and self._load[self._sorted[self._most_start - 1]] == self._most_load:
                self._most_start -= 1
            self._next_most = self._most_end - 1
        if self._next_most < 0:
            return -1
        found = self._sorted[self._next_most]
        self._next_most -= 1
        return found

    def exclude_most(self) -> None:
        """Exclude a member from the range of the most loaded members: the last member that `next_most` returned."""
        place, last = self._next_most + 1, self._most_end - 1
        self._sorted[place], self._sorted[last] = self._sorted[last], self._sorted[place]
        self._most_end -= 1

    def is_balanced(self) -> bool:
        """Return whether no move would improve the balance."""
        return self._most_load - self._least_load <= 1
