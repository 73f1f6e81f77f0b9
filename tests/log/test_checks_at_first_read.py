"""Fields outside the CRC are checked against the log before use: offsets, epochs, transaction indexes (S3, S4)."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.log import checks_at_first_read as links
from kbroker.log.append_info import COORDINATOR
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.log.segment.found_file import Link, Spans
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.records import build_marker, iter_batches, parse_header
from tests.log.builders import NOW, batch, committed, first_at, offsets_of, open_log, read_all, read_served

SMALL = LogConfig(segment_bytes=1500, index_interval_bytes=150)
BASE, EPOCH = struct.Struct(">q"), struct.Struct(">i")


def filled(directory: Path, count: int = 40, config: LogConfig = SMALL) -> PartitionLog:
    log = open_log(directory, config=config)
    for number in range(count):
        log.append_as_leader(batch(2, timestamp=NOW + 10 * number), number * 4 // count, NOW)
    return committed(log)


def reopened(log: PartitionLog, config: LogConfig = SMALL, **known: int) -> PartitionLog:
    directory, end = Path(log.directory), log.log_end_offset
    return committed(open_log(directory, config=config, high_watermark=end, **{"recovery_point": end, **known}))


def alter(log: PartitionLog, offset: int, change: Callable[[bytearray, int], None]) -> None:
    """Change bytes of the batch that contains `offset`; `log` is closed."""
    for path in sorted(Path(log.directory).glob("*.log")):
        content = bytearray(path.read_bytes())
        for position, header in iter_batches(content):
            if header.base_offset <= offset <= header.last_offset:
                change(content, position)
                path.write_bytes(content)
                return
    raise AssertionError(f"no batch holds {offset}")


def moved_by(distance: int) -> Callable[[bytearray, int], None]:
    return lambda content, at: BASE.pack_into(content, at, BASE.unpack_from(content, at)[0] + distance)


def of_epoch(epoch: int) -> Callable[[bytearray, int], None]:
    return lambda content, at: EPOCH.pack_into(content, at + 12, epoch)


def readable(log: PartitionLog) -> tuple[list[int], bool]:
    """Return the offsets that a reader of the complete log receives, and whether it reached the end."""
    records, whole = read_served(log)
    return offsets_of(records), whole


@pytest.mark.parametrize("distance", [1, -1, 2, -2, 64, 1 << 40, -(1 << 40)])
@pytest.mark.parametrize("offset", [0, 20, 41, 79])
def test_s4_a_batch_with_another_offset_is_not_served(tmp_path: Path, offset: int, distance: int) -> None:
    log = filled(tmp_path / "topic-0")
    log.close()
    alter(log, offset, moved_by(distance))
    log = reopened(log)
    assert log.log_end_offset == 80
    found, whole = readable(log)
    assert not whole
    assert found == list(range(len(found)))
    assert len(found) in (offset // 2 * 2, offset // 2 * 2 - 2)
    with pytest.raises(ApiError, match="CORRUPT_MESSAGE"):
        first_at(log, NOW + offset // 2 * 10)


@pytest.mark.parametrize("epoch", [-1, 0, 2, 9])
def test_s4_a_batch_of_another_leader_epoch_is_not_served(tmp_path: Path, epoch: int) -> None:
    log = filled(tmp_path / "topic-0")
    log.close()
    alter(log, 31, of_epoch(epoch))  # in epoch 1, like its neighbours
    found, whole = readable(reopened(log))
    assert not whole
    assert found == list(range(len(found)))
    assert len(found) in (28, 30)


@pytest.mark.parametrize("change", [*map(moved_by, (1, -1, 2, -2, 64, -64)), of_epoch(-1), of_epoch(9)])
def test_s4_wherever_a_reader_begins_it_gets_that_offset_or_none(
    tmp_path: Path, change: Callable[[bytearray, int], None]
) -> None:
    """Even if the index points directly to the damaged batch, and the reader has seen no batch before it."""
    log = filled(tmp_path / "topic-0")
    firsts = [segment.base_offset for segment in log.segments]
    log.close()
    for damaged in (*firsts, 4, 20, 78):
        copy = tmp_path / f"{damaged}"
        shutil.copytree(tmp_path / "topic-0", copy)
        log.directory = str(copy)
        alter(log, damaged, change)
        for offset in range(max(damaged - 2, 0), min(damaged + 4, 80)):
            found = reopened(log)
            try:
                header = parse_header(found.read(offset, 1, 80, min_one=True).view())
            except ApiError as error:
                if error.code != ErrorCode.CORRUPT_MESSAGE:
                    raise
            else:
                assert header.base_offset <= offset <= header.last_offset, (damaged, offset)
                # There is no earlier batch left to compare an older epoch at the very beginning of the log with.
                assert header.leader_epoch == offset // 20 or damaged == 0 == header.base_offset, (damaged, offset)
            found.segments.release_idle(force=True)


def test_s4_a_segment_that_ends_early_is_not_passed_over(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic-0")
    log.close()
    first = Path(log.segments[0].path())
    batches = list(iter_batches(first.read_bytes()))
    first.write_bytes(first.read_bytes()[: batches[-1][0]])
    log = reopened(log)
    found, whole = readable(log)
    assert not whole
    assert found == list(range(len(found)))
    with pytest.raises(ApiError, match="CORRUPT_MESSAGE"):
        first_at(log, NOW + 390)


def test_a_log_that_lost_its_last_batches_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = filled(tmp_path / "topic-0")
    log.close()
    last = Path(log.segments.active.path())
    batches = list(iter_batches(last.read_bytes()))
    last.write_bytes(last.read_bytes()[: batches[-1][0]])
    assert reopened(log).log_end_offset == 78
    assert "ends at 78, where a clean stop had left 80" in caplog.text


def test_holes_are_what_compaction_leaves(tmp_path: Path) -> None:
    """Whatever the policy is now, a batch that fits between its neighbours is served."""
    log = filled(tmp_path / "topic-0", 8)
    log.close()
    path = Path(log.segments.active.path())
    content = path.read_bytes()
    path.write_bytes(b"".join(content[p : p + h.size] for p, h in iter_batches(content) if h.base_offset % 4 == 2))
    log = reopened(log)
    assert readable(log) == ([2, 3, 6, 7, 10, 11, 14, 15], True)


def test_what_was_written_here_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path / "topic-0")
    monkeypatch.setattr(links, "scan_headers", None)
    assert readable(log) == (list(range(80)), True)
    assert [segment.found.unproven for segment in log.segments] == [0] * len(log.segments)


def test_what_a_start_found_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path / "topic-0")
    log.close()
    log = reopened(log)
    assert all(segment.found.unproven for segment in log.segments)
    assert readable(log) == (list(range(80)), True)
    assert [segment.found.unproven for segment in log.segments] == [0] * len(log.segments)
    monkeypatch.setattr(links, "scan_headers", None)
    assert readable(log) == (list(range(80)), True)
    log.append_as_leader(batch(2), 3, NOW)
    assert readable(committed(log)) == (list(range(82)), True)


def test_one_read_looks_at_so_many_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LogConfig(index_interval_bytes=150)
    log = filled(tmp_path / "topic-0", 60, config)
    log.close()
    log = reopened(log, config)
    monkeypatch.setattr(links, "HEADERS_AT_ONCE", 10)
    piece = log.read(0, 1 << 20, 120, min_one=True)
    assert [header.base_offset for _, header in iter_batches(piece.view())] == list(range(0, 20, 2))
    assert piece.cut_short
    assert not log.read(0, 100, 120, min_one=True).cut_short
    assert readable(log) == (list(range(120)), True)


def test_s4_the_end_of_a_clean_log_is_where_its_stop_said(tmp_path: Path) -> None:
    """The offset of the last batch is damaged; nevertheless appends continue after the recorded end."""
    log = filled(tmp_path / "topic-0")
    log.close()
    alter(log, 79, moved_by(1 << 20))
    log = reopened(log)
    assert log.append_as_leader(batch(2), 3, NOW).base_offset == 80
    assert offsets_of(read_all(committed(log), 80)) == [80, 81]


@pytest.mark.parametrize("recovery_point", [10, 66, 78])
def test_s6_a_wrong_recovery_point_gives_no_offset_twice(tmp_path: Path, recovery_point: int) -> None:
    """Not even if the last batch is damaged too, so that its own offsets prove nothing."""
    log = filled(tmp_path / "topic-0")
    log.close()
    path = Path(log.segments.active.path())
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert reopened(log, recovery_point=recovery_point).log_end_offset == 80


@pytest.mark.parametrize("content", [None, b"", b"0\n1\n0 0\n", b"0\n4\n0 0\n1 22\n2 40\n3 60\n", b"0\n2\n0 0\n7 20\n"])
def test_s3_s6_epochs_are_those_of_the_log(tmp_path: Path, content: bytes | None) -> None:
    log = filled(tmp_path / "topic-0")
    right = log.leader_epochs.entries
    assert right == [(0, 0), (1, 20), (2, 40), (3, 60)]
    log.close()
    path = Path(log.directory) / "leader-epoch-checkpoint"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    log = reopened(log)
    log.leader_epochs.assign(4, log.log_end_offset)
    assert log.proven_epochs().entries == [*right, (4, 80)]
    log.close()
    assert reopened(log).leader_epochs.entries == right


def test_a_damaged_batch_says_nothing_of_epochs(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic-0")
    log.close()
    alter(log, 20, of_epoch(1 << 20))
    assert reopened(log).proven_epochs().entries == [(0, 0), (1, 20), (2, 40), (3, 60)]


@pytest.mark.parametrize("field", range(1, 5))
def test_s3_a_transaction_index_is_held_against_the_log(tmp_path: Path, field: int) -> None:
    log = open_log(tmp_path / "topic-0")
    for number in range(4):
        producer = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
        log.append_as_leader(batch(2, base_sequence=number * 2, **producer), 0, NOW)
        marker = build_marker(producer_id=5, producer_epoch=0, commit=number == 1, coordinator_epoch=0, timestamp=NOW)
        log.append_as_leader(marker, 0, NOW, origin=COORDINATOR)
    right = [(5, 0), (5, 6), (5, 9)]
    assert committed(log).aborted_transactions(0, 12) == right
    log.close()
    path = Path(log.segments.active.path(".txnindex"))
    rows = list(struct.iter_unpack(">hqqqq", path.read_bytes()))
    for change in (1, -1, 3, 1 << 40):
        altered = [list(row) for row in rows]
        altered[1][field] += change
        path.write_bytes(b"".join(struct.pack(">hqqqq", *row) for row in altered))
        log = reopened(log, LogConfig())
        assert log.aborted_transactions(0, 12) == right, change
        log.close()


def test_spans_join_and_stay_few() -> None:
    spans = Spans()
    spans.add(0, 10, Link(1, 0))
    spans.add(20, 30, Link(3, 0))
    assert spans.around(15) is None
    assert spans.around(10) == (10, Link(1, 0))
    spans.add(10, 20, Link(2, 0))
    assert spans.around(0) == (30, Link(3, 0))
    for number in range(1000):
        spans.add(100 * number + 100, 100 * number + 150, Link(number, 0))
    assert spans.around(100 * 999 + 120) == (100 * 999 + 150, Link(999, 0))
    assert sum(spans.around(100 * number + 100) is not None for number in range(1000)) <= 256
