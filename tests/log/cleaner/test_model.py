"""Tests S9 against a model, a list of records: any mixture of keys, tombstones, producers, transactions and codecs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.log.cleaner.cleanable import examine
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.records import Record
from tests.log.builders import NOW, open_log
from tests.log.cleaner.context import clean, committed_view, contents, end_txn, put, reopened
from tests.tries import tries

RETENTION_MS = 1000
CONFIG = LogConfig(
    cleanup_policy=("compact",), segment_bytes=20_000, index_interval_bytes=200, delete_retention_ms=RETENTION_MS
)

keys = st.integers(0, 6).map(lambda n: b"k" * (n % 3) + b"%d" % n)
values = st.none() | st.integers(0, 3).map(lambda n: b"v" * n * 25)
pairs = st.lists(st.tuples(keys, values), min_size=1, max_size=8) | st.tuples(keys, values, st.integers(1, 140)).map(
    lambda one: [(one[0], one[1])] * one[2]
)
produce = st.tuples(
    st.just("produce"), st.sampled_from([None, 1, 2, 3]), pairs, st.integers(0, 4), st.integers(0, 9000)
)
ending = st.tuples(st.just("end"), st.sampled_from([2, 3]), st.booleans())
other = st.sampled_from([("roll",), ("clean", 0), ("clean", RETENTION_MS), ("clean small", 0), ("reopen",)])
steps = st.lists(produce | produce | ending | other, min_size=5, max_size=30)


class Model:
    """The records that the log may contain: every committed record ever written.

    And those that compaction must keep.
    """

    def __init__(self) -> None:
        self.written: dict[int, Record] = {}

    def check(self, log: PartitionLog, end: int, before: list[Record]) -> None:
        """Check the log after a round that ended at `end`, against the committed records before it."""
        after = committed_view(log)
        assert [record for record in after if record.offset >= end] == [r for r in before if r.offset >= end]
        last = {record.key: record for record in before if record.offset < end}
        left = [record for record in after if record.offset < end]
        assert len({record.key for record in left}) == len(left)
        assert all(last[record.key] == record for record in left)
        missing = last.keys() - {record.key for record in left}
        assert all(last[key].value is None for key in missing)


def sequences(log: PartitionLog) -> dict[int, tuple[int, int, int]]:
    return {
        producer_id: (entry.producer_epoch, entry.last_sequence, entry.current_txn_first_offset)
        for producer_id, entry in log.producers.entries.items()
    }


@settings(max_examples=tries(150))
@given(steps)
def test_any_history(history: Sequence[tuple]) -> None:  # type: ignore[type-arg]
    with tempfile.TemporaryDirectory() as directory:
        run(Path(directory) / "topic-0", history)


def run(directory: Path, history: Sequence[tuple]) -> None:  # type: ignore[type-arg]
    log = open_log(directory, config=CONFIG)
    model = Model()
    sequence = dict.fromkeys((1, 2, 3), 0)
    now, end = NOW, None
    for kind, *arguments in [*history, ("end", 2, True), ("end", 3, False), ("roll",), ("clean", 0), ("reopen",)]:
        if kind == "produce":
            producer, batch, codec, later = arguments
            producer_fields = {}
            if producer is not None:
                producer_fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence[producer]}
                producer_fields["transactional"] = producer != 1
                sequence[producer] += len(batch)
            put(log, *batch, codec=codec, timestamp=NOW + later, **producer_fields)
        elif kind == "end":
            if arguments[0] in log.producers.entries:
                end_txn(log, arguments[0], commit=arguments[1])
        elif kind == "roll":
            log.roll(NOW)
        elif kind == "reopen":
            known = sequences(log)
            for snapshot in Path(log.directory).glob("*.snapshot"):
                snapshot.unlink()
            log._snapshots.offsets.clear()
            view, everything = committed_view(log), contents(log)
            log = reopened(log, clean=False)
            assert (committed_view(log), contents(log)) == (view, everything)
            assert sequences(log) == known
        else:
            now += arguments[0]
            before, old = committed_view(log), contents(log)
            upper = examine(log, end, now).upper
            end = clean(log, end, now, (1 << 24) if kind == "clean" else 2000)
            model.check(log, end, before)
            assert [entry for entry in contents(log) if entry not in old] == []
            assert [e for e in contents(log) if e[1].offset >= upper] == [e for e in old if e[1].offset >= upper]
    log.close()
