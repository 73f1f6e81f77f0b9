"""A log against a list: whatever is done to it, and however it is stopped, it holds what was appended."""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_right
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from tests.log.builders import NOW, batch, open_log, read_all

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=100, file_delete_delay_ms=0)
SUFFIXES = (".index", ".timeindex", ".txnindex", ".snapshot")


class LogMachine(RuleBasedStateMachine):
    """The model: a list of (offset, value, timestamp), batch by batch, and the log's start."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="kbroker-model-"))
        self.log: PartitionLog = open_log(self.root / "topic-0", config=CONFIG)
        self.batches: list[list[tuple[int, bytes, int]]] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.sequences: dict[int, int] = {}

    @initialize(base=st.sampled_from([0, 1000]))
    def begin(self, base: int) -> None:
        self.log.truncate_fully(base)
        self.start = self.end = base

    @rule(
        count=st.integers(1, 4), time=st.integers(-3, 50), size=st.integers(0, 180), codec=st.sampled_from([0, 0, 1, 4])
    )
    def append(self, count: int, time: int, size: int, codec: int) -> None:
        value = bytes([self.end % 256]) * size
        records = batch(count, value=value, timestamp=NOW + time * 10, codec=codec)
        info = self.log.append_as_leader(bytearray(records), self.epoch, NOW)
        assert (info.base_offset, info.last_offset) == (self.end, self.end + count - 1)
        self.batches.append([(self.end + i, value, NOW + time * 10 + i) for i in range(count)])
        self.end += count

    @rule(producer=st.integers(1, 3), repeat=st.booleans())
    def produce(self, producer: int, repeat: bool) -> None:
        sequence = self.sequences.get(producer, 0)
        for _ in range(2 if repeat else 1):
            records = batch(producer_id=producer, producer_epoch=0, base_sequence=sequence)
            assert self.log.append_as_leader(records, self.epoch, NOW).base_offset == self.end
        self.batches.append([(self.end, b"value", NOW)])
        self.sequences[producer] = sequence + 1
        self.end += 1

    @rule()
    def commit(self) -> None:
        self.log.set_high_watermark(self.end)

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW)

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule()
    def next_epoch(self) -> None:
        self.epoch += 1
        self.log.leader_epochs.assign(self.epoch, self.end)

    @precondition(lambda self: self.end > self.start)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        self.log.truncate_to(offset)
        while self.batches and self.batches[-1][-1][0] >= offset:
            self.batches.pop()
        self.end = self.batches[-1][-1][0] + 1 if self.batches else min(self.end, offset, self.log.log_end_offset)
        self.start = min(self.start, self.end)
        self.epoch += 1
        self.sequences = {e.producer_id: e.last_sequence + 1 for e in self.log.active_producers()}

    @precondition(lambda self: self.log.high_watermark > self.start)
    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.log.high_watermark))
        self.log.advance_log_start(offset)
        self.start = offset
        self.batches = [rows for rows in self.batches if rows[-1][0] >= self.log.bases[0]]
        self.log.purge_deleted(NOW)

    @rule()
    def close_idle_files(self) -> None:
        self.log.release_idle()

    @rule(clean=st.booleans(), lost=st.sets(st.sampled_from(SUFFIXES)), garbage=st.booleans(), keep_point=st.booleans())
    def restart(self, clean: bool, lost: set[str], garbage: bool, keep_point: bool) -> None:
        kept = {
            "log_start_offset": self.log.log_start_offset,
            "high_watermark": self.log.high_watermark,
            "recovery_point": self.log.recovery_point if keep_point else 0,
        }
        if clean:
            self.log.close()
        active = self.log.active.path()
        self.log = None  # type: ignore[assignment]
        for path in (self.root / "topic-0").iterdir():
            if path.suffix in lost:
                path.unlink()
        if garbage:
            with open(active, "ab") as file:
                file.write(b"\x00" * 70)
        self.log = open_log(self.root / "topic-0", clean=clean, config=CONFIG, **kept)
        assert self.log.high_watermark == kept["high_watermark"]

    @invariant()
    def holds_what_was_appended(self) -> None:
        log = self.log
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
        rows = [row for rows in self.batches for row in rows if row[0] >= self.start]
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert [(r.offset, r.value, r.timestamp) for r in read_all(log, max_bytes=300)] == rows
        for offset in range(self.start, self.end, 5):
            index = bisect_right([row[0] for row in rows], offset)
            assert read_all(log, offset, max_bytes=1) == read_all(log)[index - 1 :]

    @invariant()
    def finds_timestamps(self) -> None:
        rows = [row for rows in self.batches for row in rows if row[0] >= self.start]
        for wanted in (0, NOW, NOW + 11, NOW + 250, NOW + 490):
            expected = next((row[0] for row in rows if row[2] >= wanted), None)
            found = self.log.offset_for_timestamp(wanted)
            assert (found and found[0]) == expected

    @invariant()
    def knows_its_producers(self) -> None:
        known = {entry.producer_id: entry.last_sequence + 1 for entry in self.log.active_producers()}
        assert known.items() >= {k: v for k, v in self.sequences.items() if k in known}.items()

    def teardown(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


LogMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestLog = LogMachine.TestCase
