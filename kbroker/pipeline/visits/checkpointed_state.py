"""The state of a stream of visits between its batches, in the files of its checkpoint.

Owns the form of the state, and the order in which the state is written: `<batch>/events` and `<batch>/totals` first,
then `<batch>.json`, which commits the batch. Never decides the content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from kbroker.failpoints import passed
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.tasks import small_frame
from kbroker.pipeline.storage.files import Files
from kbroker.pipeline.visits.rules import Clock

EVENTS: Final = "visitor string, id string, time bigint, begins boolean, organisation string"
TOTALS: Final = "organisation string, day date, visits bigint, events bigint, late bigint, final boolean"


@dataclass(slots=True)
class VisitsState:
    """The result of the batches so far, except for the rows in the batch's files."""

    batch: int = -1
    query: str = ""
    topic_id: str = ""
    lookup: str = ""
    rules: dict[str, Any] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    """The exclusive end of the counted offsets, for each existing partition."""
    clocks: dict[str, int] = field(default_factory=dict)
    """The largest timestamp so far, in ms, by partition."""
    set_clocks: list[Clock] = field(default_factory=list)
    """The clocks that were set without a record, for idle partitions and for partitions that were added later."""
    counts: dict[str, int] = field(default_factory=dict)

    def slowest(self) -> int | None:
        """Return the clock of the slowest partition, in ms. Return None while a partition has no clock."""
        return min(self.clocks.values(), default=None) if self.ends.keys() <= self.clocks.keys() else None

    def newcomers(self, ends: Mapping[str, int]) -> list[Clock]:
        """Return the initial clocks of new partitions: the slowest clock, because earlier events are forgotten."""
        slowest = self.slowest()
        return [] if slowest is None else [(int(n), 0, slowest) for n in ends if n not in self.clocks]


def joined(clocks: Iterable[Clock]) -> list[Clock]:
    """Return the latest clock for each partition and offset. An idle partition has several clocks at an offset."""
    latest: dict[tuple[int, int], int] = {}
    for partition, offset, clock in clocks:
        latest[partition, offset] = max(clock, latest.get((partition, offset), clock))
    return [(partition, offset, clock) for (partition, offset), clock in latest.items()]


class Idle:
    """The idle partitions that were read to the end and delay the final results. The stream sets their clocks."""

    def __init__(self, kept_ms: int, idle_s: float) -> None:
        self._kept_ms = kept_ms
        self._idle_s = idle_s
        self._since: dict[int, tuple[int, float]] = {}
        """By partition: the end offset, and the time when the stream first noticed that it had read up to there."""

    def set_clocks(
        self, ends: Mapping[str, int], clocks: Mapping[str, int], last: Callable[[], Mapping[int, int]], now: float
    ) -> list[Clock]:
        """Return the clocks to set after a batch with these `ends` and `clocks`.

        `last()` requests the current end offsets.
        """
        least = max(clocks.values(), default=0) - self._kept_ms
        behind = {int(n): end for n, end in ends.items() if n not in clocks or clocks[n] < least} if clocks else {}
        found = last() if behind else {}
        before = self._since
        self._since = {
            n: before[n] if n in before and before[n][0] == end else (end, now)
            for n, end in behind.items()
            if end >= found.get(n, 0)
        }
        return [(n, end, least) for n, (end, since) in self._since.items() if now - since >= self._idle_s]


class StateFiles:
    """The folder of the state."""

    def __init__(self, session: Any, root: str) -> None:
        self._session = session
        self.files = Files(session, root)

    def load(self) -> VisitsState:
        """Return the newest state, or an empty state if there is none.

        Raises PipelineError if the newest state is damaged.
        """
        names = (each.name.removesuffix(".json") for each in self.files.listing() if each.name.endswith(".json"))
        found = [int(name) for name in names if name.isdecimal()]
        if not found:
            return VisitsState()
        text = self.files.read(f"{max(found)}.json")
        try:
            fields = json.loads(text)
            fields["set_clocks"] = [(p, offset, ms) for p, offset, ms in fields["set_clocks"]]
            return VisitsState(**fields)
        except (ValueError, TypeError, KeyError) as err:
            raise PipelineError(f"the state {self.files.root} is damaged: {err!r}") from err

    def frame(self, batch: int, name: str, schema: str) -> Any:
        """Return the rows of a batch's state."""
        if batch < 0:
            return small_frame(self._session, [], schema)
        return self._session.read.schema(schema).parquet(self.files.url(f"{batch}/{name}"))

    def commit(self, state: VisitsState) -> None:
        """Commit a batch. Delete states that are older than the previous state."""
        self.files.sync(each.name for each in self.files.walk(str(state.batch)))
        passed("visits.written")
        self.files.write(f"{state.batch}.json", json.dumps(asdict(state), indent=1) + "\n")
        passed("visits.committed")
        for each in self.files.listing():
            number = each.name.removesuffix(".json")
            old = number.isdecimal() and int(number) < state.batch - 1
            if old or number.startswith("."):  # an incomplete state: its writer was killed
                self.files.delete(each.name)
