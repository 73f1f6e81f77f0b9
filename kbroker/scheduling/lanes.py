"""The lanes of a partition at its leader: the state of each lane, and the partition of the target for its records.

Owns the times of the lanes, the pauses after failures, and the choice of a partition: the wanted partition, the key's
partition, or any free partition. Times are monotonic ms unless they are called `now_ms`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

from kbroker.cluster_state import TopicState
from kbroker.protocol.partitioner import partition_of
from kbroker.schedules.targets import is_schedule_topic
from kbroker.scheduling.index import Lane
from kbroker.scheduling.shared import BATCH_RECORDS

_FIRST_PAUSE_MS, _MOST_PAUSE_MS, _MOST_FAILS = 1_000, 300_000, 20
_FEW = 100
Target = tuple[bytes, int]
"""A topic id, and a partition."""


@dataclass(slots=True, eq=False)
class LaneState:
    """The state of a lane at this leader."""

    most: int = BATCH_RECORDS
    """The maximum number of records in a batch.

    After a refusal this number is smaller, so that the records that are not at fault are delivered.
    """
    not_before: float = 0.0
    """The monotonic time before which the lane is not tried again."""
    fails: int = 0
    error: str = ""
    """The reason for which the lane waits."""
    served: int = 0
    """The number of the turn in which the lane's last batch was built; all lanes share this counter."""
    next_partition: int = 0
    replaced: set[int] = field(default_factory=set)
    """The keys of records that were replaced or cancelled during the building of a batch."""
    cut: int = 0
    """The start of the log, if records were deleted meanwhile."""

    def put_off(self, error: str, monotonic: float, pause_ms: float | None = None) -> bool:
        """Let the lane wait after a failure, for `pause_ms` or, by default, longer after each further failure.

        Return whether the error is new.
        """
        is_new = self.error != error
        if pause_ms is None:
            pause_ms = pause_of(self.fails)
            self.fails = min(self.fails + 1, _MOST_FAILS)
        self.error = error
        self.not_before = monotonic + pause_ms
        return is_new

    def succeeded(self) -> None:
        """Forget earlier failures."""
        self.fails, self.error = 0, ""


class Times:
    """The earliest time of each lane, for very many lanes. Times are ms since 1970, of a clock that may go back."""

    def __init__(self) -> None:
        self._at: dict[int, int] = {}
        self._coming: list[tuple[int, int]] = []  # a heap, which also contains outdated times
        self._reached: dict[int, None] = {}

    def update(self, changed: Mapping[int, int | None]) -> None:
        """Set the times of some lanes; None for a lane without rows."""
        for lane, at_ms in changed.items():
            if self._at.get(lane) == at_ms:
                continue
            self._reached.pop(lane, None)
            if at_ms is None:
                self._at.pop(lane, None)
            else:
                self._at[lane] = at_ms
                heappush(self._coming, (at_ms, lane))
        if len(self._coming) > 4 * len(self._at) + _FEW:
            self._coming = [(at_ms, lane) for lane, at_ms in self._at.items() if lane not in self._reached]
            heapify(self._coming)

    def reached(self, now_ms: int) -> list[int]:
        """Return the lanes whose time is not later than `now_ms`."""
        coming, at = self._coming, self._at
        while coming and coming[0][0] <= now_ms:
            at_ms, lane = heappop(coming)
            if at.get(lane) == at_ms:
                self._reached[lane] = None
        for lane in [each for each in self._reached if at[each] > now_ms]:  # the clock has gone back
            del self._reached[lane]
            heappush(coming, (at[lane], lane))
        return list(self._reached)

    def first(self) -> int | None:
        """Return the earliest time of all lanes; None if no lane has a time."""
        found = [self._at[lane] for lane in self._reached]
        while self._coming and self._at.get(self._coming[0][1]) != self._coming[0][0]:
            heappop(self._coming)
        return min([*found, *(each[0] for each in self._coming[:1])], default=None)

    def next_coming(self) -> int | None:
        """Return the earliest time in the future; None if there is none."""
        while self._coming and self._at.get(self._coming[0][1]) != self._coming[0][0]:
            heappop(self._coming)
        return self._coming[0][0] if self._coming else None


MISSING: Final = -2


class Choice:
    """Chooses the partition of a target for the records of one batch.

    -1 stands for a record that cannot be sent now, and MISSING for a record whose partition does not exist.
    """

    def __init__(self, topic: TopicState, busy: Container[Target], state: LaneState) -> None:
        self._topic = topic
        self.count = len(topic.partitions)
        """The number of partitions."""
        self._busy = busy
        self._any = -1
        for step in range(self.count):
            partition = (state.next_partition + step) % self.count
            if topic.partitions[partition].leader >= 0 and (topic.topic_id, partition) not in busy:
                self._any = partition
                break
        state.next_partition = (self._any + 1) % self.count

    def __call__(self, key: bytes | None, wanted: int | None) -> int:
        if wanted is not None:
            partition = wanted if wanted < self.count else MISSING
        elif key is not None:
            partition = partition_of(key, self.count)
        else:
            return self._any
        return -1 if (self._topic.topic_id, partition) in self._busy else partition


def why_not(lane: Lane, topic: TopicState | None) -> str | None:
    """Return the reason why no record can be sent to a target now; None if records can be sent."""
    if topic is None or not topic.partitions:
        return f"the topic {lane.topic} does not exist"
    if is_schedule_topic(topic.configs):
        return f"the topic {lane.topic} is a schedule topic itself"
    if topic.source is not None:
        return f"the topic {lane.topic} is a view, which takes no records"
    return None


def pause_of(tries: int) -> int:
    """Return the pause, in ms, after this number of earlier failures."""
    return int(min(_FIRST_PAUSE_MS * 2 ** min(tries, _MOST_FAILS), _MOST_PAUSE_MS))
