"""A log against a list: after any operations and any kind of stop, it contains what was appended (S1-S4, S7-S9).

Its steps would find these bugs of other brokers: 6 (gaps), 7 (empty segments), 8 and 9 (truncation), 12 (holes in
offsets), 14 (a producer's last batch compacted away).
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from tests.figures import figure
from tests.log.builders import NOW, batch, first_at, open_log, purge, read_all
from tests.log.cleaner.context import clean
from tests.tries import tries

CONFIG = LogConfig(
    cleanup_policy=("compact", "delete"), segment_bytes=900, index_interval_bytes=100, file_delete_delay_ms=0
)
SUFFIXES = (".index", ".timeindex", ".txnindex", ".snapshot")
STEPS: Counter[str] = Counter()

Row = tuple[int, bytes, bytes | None, int]


@dataclass
class Batch:
    """The contents of one batch: its offset range, and (offset, key, value, timestamp) of each remaining record."""

    base: int
    last: int
    rows: list[Row]


def step(**strategies: Any) -> Callable[[Callable[..., None]], Any]:
    """Create a rule whose runs are counted by name."""

    def decorate(run: Callable[..., None]) -> Any:
        @functools.wraps(run)
        def counted(self: LogMachine, *args: Any, **kwargs: Any) -> None:
            STEPS[run.__name__] += 1
            run(self, *args, **kwargs)

        return rule(**strategies)(counted)

    return decorate


class LogMachine(RuleBasedStateMachine):
    """The model: batches, start and end, the clean offset (None: not cleaned), and whether holes are allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="kbroker-model-"))
        self.log: PartitionLog = open_log(self.root / "topic-0", config=CONFIG)
        self.batches: list[Batch] = []
        self.cleaned: int | None = None
        self.holes = False
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.sequences: dict[int, int] = {}

    @initialize(base=st.sampled_from([0, 1000]))
    def begin(self, base: int) -> None:
        self.log.truncate_fully(base)
        self.start = self.end = base

    @step(
        count=st.integers(1, 4),
        key=st.integers(0, 5),
        time=st.integers(-3, 50),
        size=st.integers(-1, 180),
        codec=st.sampled_from([0, 0, 1, 4]),
    )
    def append(self, count: int, key: int, time: int, size: int, codec: int) -> None:
        value = bytes([self.end % 256]) * size if size >= 0 else None
        name = b"key %d" % key
        records = batch(count, key=name, value=value, timestamp=NOW + time * 10, codec=codec)
        info = self.log.append_as_leader(bytearray(records), self.epoch, NOW)
        assert (info.base_offset, info.last_offset) == (self.end, self.end + count - 1)
        self.note([(self.end + i, name, value, NOW + time * 10 + i) for i in range(count)])

    def note(self, rows: list[Row]) -> None:
        self.batches.append(Batch(rows[0][0], rows[-1][0], rows))
        self.end = rows[-1][0] + 1

    @step(producer=st.integers(1, 3), repeat=st.booleans())
    def produce(self, producer: int, repeat: bool) -> None:
        sequence = self.sequences.get(producer, 0)
        for _ in range(2 if repeat else 1):
            records = batch(producer_id=producer, producer_epoch=0, base_sequence=sequence)
            assert self.log.append_as_leader(records, self.epoch, NOW).base_offset == self.end
        self.note([(self.end, b"key", b"value", NOW)])
        self.sequences[producer] = sequence + 1

    @step()
    def commit(self) -> None:
        self.log.set_high_watermark(self.end)

    @step()
    def roll(self) -> None:
        self.log.roll(NOW)

    @step()
    def flush(self) -> None:
        self.log.flush()

    @step()
    def next_epoch(self) -> None:
        self.epoch += 1
        self.log.leader_epochs.assign(self.epoch, self.end)

    @precondition(lambda self: self.end > self.start)
    @step(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        self.log.truncate_to(offset)
        while self.batches and self.batches[-1].last >= offset:
            self.batches.pop()
        end = self.log.log_end_offset
        if self.holes:
            # Compaction may have left a batch without records at the end, or have removed complete batches.
            assert (self.batches[-1].last if self.batches else -1) < end <= offset
        elif self.batches:
            assert end == self.batches[-1].last + 1
        self.end = min(self.end, offset, end)
        self.cleaned = None  # as the cleaner's manager does: what follows may extend beyond the clean part
        self.start = min(self.start, self.end)
        self.epoch += 1
        self.sequences = {e.producer_id: e.last_sequence + 1 for e in self.log.active_producers()}

    @precondition(lambda self: self.log.high_watermark > self.start)
    @step(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.log.high_watermark))
        self.log.advance_log_start(offset)
        self.start = offset
        self.batches = [batch for batch in self.batches if batch.last >= self.log.segments.bases[0]]
        purge(self.log, NOW)

    def cleanable_to(self) -> int:
        """Return the offset that a compaction may reach now; the log's start if there is nothing to clean."""
        limit = min(self.log.high_watermark, self.log.segments.active.base_offset)
        upper = self.log.segments.bases[max(bisect_right(self.log.segments.bases, limit) - 1, 0)]
        dirty = self.cleaned if self.cleaned is not None and self.start <= self.cleaned <= self.end else self.start
        return upper if dirty < upper else self.start

    @precondition(lambda self: self.end > self.start)
    @step()
    def commit_roll_and_compact(self) -> None:
        self.log.set_high_watermark(self.end)
        self.log.roll(NOW)
        if self.cleanable_to() > self.start:
            self.compact()

    @precondition(lambda self: self.cleanable_to() > self.start)
    @step()
    def compact(self) -> None:
        upper = self.cleanable_to()
        self.cleaned = clean(self.log, self.cleaned)
        assert self.cleaned == upper
        self.holes = True
        last = {row[1]: row[0] for batch in self.batches for row in batch.rows if row[0] < upper}
        for each in self.batches:
            each.rows = [row for row in each.rows if row[0] >= upper or row[0] == last[row[1]]]
        self.batches = [batch for batch in self.batches if batch.rows]

    @step()
    def close_idle_files(self) -> None:
        self.log.segments.release_idle(force=False)

    @step(clean=st.booleans(), lost=st.sets(st.sampled_from(SUFFIXES)), garbage=st.booleans(), keep_point=st.booleans())
    def restart(self, clean: bool, lost: set[str], garbage: bool, keep_point: bool) -> None:
        kept = {
            "log_start_offset": self.log.log_start_offset,
            "high_watermark": self.log.high_watermark,
            "recovery_point": self.log.recovery_point if keep_point else 0,
            "compacted": self.holes,
        }
        if clean:
            self.log.close()
        active = self.log.segments.active.path()
        self.log = None  # type: ignore[assignment]
        for path in (self.root / "topic-0").iterdir():
            if path.suffix in lost:
                path.unlink()
        if garbage:
            with open(active, "ab") as file:
                file.write(b"\x00" * 70)
        self.log = open_log(self.root / "topic-0", clean=clean, config=CONFIG, **kept)
        assert self.log.high_watermark == kept["high_watermark"]

    def rows(self) -> list[Row]:
        return [row for batch in self.batches for row in batch.rows if row[0] >= self.start]

    @invariant()
    def holds_what_was_appended(self) -> None:
        log = self.log
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
        rows = self.rows()
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert [(r.offset, r.key, r.value, r.timestamp) for r in read_all(log, max_bytes=300)] == rows
        for offset in range(self.start, self.end, 5):
            index = bisect_left([row[0] for row in rows], offset)
            assert read_all(log, offset, max_bytes=1) == read_all(log)[index:]

    @invariant()
    def finds_timestamps(self) -> None:
        rows = self.rows()
        for wanted in (0, NOW, NOW + 11, NOW + 250, NOW + 490):
            expected = next((row[0] for row in rows if row[3] >= wanted), None)
            found = first_at(self.log, wanted)
            assert (found and found[0]) == expected

    @invariant()
    def knows_its_producers(self) -> None:
        known = {entry.producer_id: entry.last_sequence + 1 for entry in self.log.active_producers()}
        assert known.items() >= {k: v for k, v in self.sequences.items() if k in known}.items()

    def teardown(self) -> None:
        figure("steps of the log against its model", f"{STEPS.total():,}: {dict(STEPS)}")
        shutil.rmtree(self.root, ignore_errors=True)


LogMachine.TestCase.settings = settings(max_examples=tries(400), stateful_step_count=30)
TestLog = pytest.mark.long(LogMachine.TestCase)
