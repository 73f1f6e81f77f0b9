"""Aborted transactions in logs of many segments."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kbroker.log.append_info import COORDINATOR
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.log.segment import transaction_index
from kbroker.protocol.records import build_marker
from tests.log.builders import NOW, batch, committed, open_log

SMALL = LogConfig(segment_bytes=200, file_delete_delay_ms=0)
SEED = 20261122


def transaction(log: PartitionLog, producer_id: int, *, commit: bool) -> None:
    producer = {"producer_id": producer_id, "producer_epoch": 0, "transactional": True}
    known = log.producers.entries.get(producer_id)
    begin = known.last_sequence + 1 if known else 0
    for sequence in (begin, begin + 1):
        log.append_as_leader(batch(base_sequence=sequence, **producer), 0, NOW)
    marker = build_marker(producer_id=producer_id, producer_epoch=0, commit=commit, coordinator_epoch=0, timestamp=NOW)
    log.append_as_leader(marker, 0, NOW, origin=COORDINATOR)


def test_segments_without_any_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path / "topic-0", config=SMALL)
    for number in range(100):
        transaction(log, 1, commit=number != 50)
    assert len(log.segments) > 100
    log.close()
    read = []
    found = transaction_index.read_optional
    monkeypatch.setattr(transaction_index, "read_optional", lambda path: read.append(path) or found(path))
    log = committed(open_log(tmp_path / "topic-0", config=SMALL))
    assert log.aborted_transactions(0, log.log_end_offset) == [(1, 150)]
    assert len(read) == 1


@pytest.mark.long
def test_none_is_left_out_whatever_happens_to_the_segments(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    log = open_log(tmp_path / "topic-0", config=SMALL)
    for _ in range(400):
        kind = rng.randrange(12)
        if kind < 8:
            transaction(log, rng.randrange(3), commit=rng.random() < 0.7)
            committed(log)
        elif kind == 8:
            log.advance_log_start(rng.randint(log.log_start_offset, log.log_end_offset), NOW)
        elif kind == 9:
            log.truncate_to(rng.randint(log.log_start_offset, log.log_end_offset), NOW)
        else:
            log.close(clean=kind == 10)
            log = committed(open_log(tmp_path / "topic-0", config=SMALL, clean=kind == 10))
        start = rng.randint(log.log_start_offset, log.log_end_offset)
        end = rng.randint(start, log.log_end_offset)
        every = [entry for segment in log.segments for entry in segment.txns.entries]
        expected = [(e.producer_id, e.first_offset) for e in every if e.last_offset >= start and e.first_offset < end]
        assert log.aborted_transactions(start, end) == expected
    log.close()
