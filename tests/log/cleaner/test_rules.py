"""S9: which records compaction keeps and which it drops, rule by rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.cleaner.cleanable import examine
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.compression import GZIP, LZ4, ZSTD
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import iter_batches
from tests.log.bombs import MINIMAL, numbered, one_record, sealed
from tests.log.builders import HOUR, NOW, first_at, largest, open_log
from tests.log.cleaner.context import COMPACT, clean, cleaning, committed_view, contents, end_txn, put, reopened, swap

DAY = 24 * HOUR


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_log(tmp_path / "topic-0", config=COMPACT)


def offsets(log: PartitionLog) -> list[int]:
    return [record.offset for _, record in contents(log)]


def headers(log: PartitionLog) -> list[tuple[int, int, int]]:
    """Return (base offset, last offset, record count) of each batch."""
    found = []
    for segment in log.segments:
        data = Path(segment.path()).read_bytes()
        found += [(h.base_offset, h.last_offset, h.record_count) for _, h in iter_batches(data)]
    return found


def test_the_last_record_of_each_key_stays_where_it_was(log: PartitionLog) -> None:
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    put(log, (b"c", b"1"))
    put(log, (b"b", b"2"))
    log.roll(NOW)
    put(log, (b"c", b"active"))
    before = {record.offset: record for _, record in contents(log)}
    assert clean(log) == 5
    assert offsets(log) == [2, 3, 4, 5]
    assert all(before[record.offset] == record for _, record in contents(log))
    assert headers(log) == [(0, 2, 1), (3, 3, 1), (4, 4, 1), (5, 5, 1)]


def test_nothing_at_or_above_the_high_watermark_is_touched(log: PartitionLog) -> None:
    """KAFKA-13194."""
    put(log, (b"a", b"1"))
    log.roll(NOW)
    put(log, (b"a", b"2"))
    log.roll(NOW)
    put(log, (b"a", b"3"))
    log.high_watermark = 1
    assert clean(log) == 1
    assert offsets(log) == [0, 1, 2]


def test_nothing_at_or_above_an_open_transaction_is_touched(log: PartitionLog) -> None:
    put(log, (b"a", b"1"))
    log.roll(NOW)
    put(log, (b"a", b"2"))
    put(log, (b"a", b"3"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.roll(NOW)
    put(log, (b"a", b"4"))
    log.roll(NOW)
    assert log.last_stable_offset == 2
    assert clean(log) == 1
    assert offsets(log) == [0, 1, 2, 3]
    end_txn(log, 7, commit=False)
    log.roll(NOW)
    assert clean(log, 1) == 5
    # Its record is gone; the marker and the batch with the producer's sequence stay.
    assert offsets(log) == [3, 4]
    assert [record.value for record in committed_view(log)] == [b"4"]


def test_tombstones_go_in_two_steps(log: PartitionLog) -> None:
    """KIP-534: the first pass sets the time, a pass after it drops them."""
    log.update_config(LogConfig(cleanup_policy=("compact",), delete_retention_ms=1000))
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", None))
    log.roll(NOW)
    put(log, (b"x", b"1"))
    log.roll(NOW)
    put(log, (b"end", b""))
    assert clean(log, None, NOW) == 4
    assert offsets(log) == [1, 2, 3, 4]
    first = next(iter_batches(Path(log.segments[0].path()).read_bytes()))[1]
    assert (first.attributes & 0x40, first.base_timestamp, first.max_timestamp) == (0x40, NOW + 1000, NOW + 2)
    assert [record.timestamp for _, record in contents(log)][:2] == [NOW + 1, NOW + 2]
    assert clean(log, None, NOW + 999) == 4
    assert offsets(log) == [1, 2, 3, 4]
    assert clean(log, None, NOW + 1000) == 4
    assert offsets(log) == [1, 3, 4]
    again = next(iter_batches(Path(log.segments[0].path()).read_bytes()))[1]
    assert (again.base_timestamp, again.max_timestamp) == (NOW + 1000, NOW + 1)


def test_markers_go_after_their_records_and_their_time(log: PartitionLog) -> None:
    """KAFKA-6854, 8351: a transaction over three segments.

    The records go first, then the index entry, then the marker.
    """
    producer = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    put(log, (b"a", b"old"))
    for sequence in range(3):
        put(log, (b"a", b"aborted"), base_sequence=sequence, **producer)
        log.roll(NOW)
    end_txn(log, 7, commit=False)
    put(log, (b"b", b"1"), base_sequence=3, **producer)
    end_txn(log, 7, commit=True)
    log.expire_producers(NOW + DAY, 1)  # otherwise a batch is kept for the producer
    log.roll(NOW)
    put(log, (b"end", b""))
    log.roll(NOW)
    assert clean(log) == 8
    assert [(control, record.offset) for control, record in contents(log)] == [
        (False, 0), (True, 4), (False, 5), (True, 6), (False, 7),
    ]  # fmt: skip
    assert [txn.first_offset for segment in log.segments for txn in segment.txns.entries] == [1]
    assert clean(log) == 8  # the aborted transaction has no records left: its marker gets a time
    assert [txn for segment in log.segments for txn in segment.txns.entries] == []
    assert len([1 for control, _ in contents(log) if control]) == 2
    assert clean(log, None, NOW + DAY) == 8
    assert [(control, record.offset) for control, record in contents(log)] == [
        (False, 0),
        (False, 5),
        (True, 6),
        (False, 7),
    ]
    assert [record.offset for record in committed_view(log)] == [0, 5, 7]


def test_the_last_batch_of_a_live_producer_stays(log: PartitionLog) -> None:
    """KAFKA-5490: the batch is emptied but keeps its sequence: the producer can continue without snapshots."""
    put(log, (b"a", b"1"), (b"a", b"2"), producer_id=5, producer_epoch=3, base_sequence=10)
    put(log, (b"a", b"3"))
    log.roll(NOW)
    put(log, (b"a", b"4"))
    log.roll(NOW)
    clean(log)
    assert headers(log) == [(0, 1, 0), (3, 3, 1)]
    for snapshot in Path(log.directory).glob("*.snapshot"):
        snapshot.unlink()
    log = reopened(log, clean=False)
    assert log.producers.entries[5].last_sequence == 11
    put(log, (b"a", b"5"), producer_id=5, producer_epoch=3, base_sequence=12)
    log.expire_producers(NOW + DAY, 1)
    log.roll(NOW)
    clean(log)
    assert headers(log) == [(4, 4, 1)]


def test_the_end_of_a_round_keeps_its_offset(log: PartitionLog) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", None))
    log.roll(NOW)
    log.update_config(LogConfig(cleanup_policy=("compact",), delete_retention_ms=0))
    clean(log)
    clean(log, None, NOW + 1)
    assert headers(log) == [(1, 1, 0)]
    log = reopened(log)
    assert log.log_end_offset == 2
    assert log.read(0, 1000, 2, min_one=True).size == 61


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_keeps_its_codec_and_headers(log: PartitionLog, codec: int) -> None:
    log.update_config(LogConfig(cleanup_policy=("compact",)))
    put(log, *[(b"key-%d" % (index % 7), b"value" * index) for index in range(200)], codec=codec)
    before = {record.offset: record for _, record in contents(log)}
    log.roll(NOW)
    put(log, (b"end", b""))
    clean(log)
    header = next(iter_batches(Path(log.segments[0].path()).read_bytes()))[1]
    assert (header.codec, header.record_count, header.last_offset_delta) == (codec, 7, 199)
    assert offsets(log) == [*range(193, 200), 200]
    assert all(before[record.offset] == record for _, record in contents(log)[:-1])


@pytest.mark.long
def test_a_small_table_cleans_up_to_where_it_is_full(log: PartitionLog) -> None:
    for index in range(400):
        put(log, *[(b"key-%04d" % (index * 10 + i), b"v") for i in range(10)])
    for index in range(400):
        put(log, *[(b"key-%04d" % (index * 10 + i), b"w") for i in range(10)])
    log.roll(NOW)
    expected = [(record.offset, record.key) for record in committed_view(log)][4000:]
    rounds, end = 0, None
    while end != log.log_end_offset:
        reached = clean(log, end, NOW, 1 << 17)
        assert end is None or reached > end
        end, rounds = reached, rounds + 1
    assert rounds > 2
    assert [(record.offset, record.key) for record in committed_view(log)] == expected


def test_records_without_a_key_go(log: PartitionLog) -> None:
    log.update_config(LogConfig())
    put(log, (None, b"x"), (b"a", b"1"))
    log.roll(NOW)
    log.update_config(COMPACT)
    clean(log)
    assert offsets(log) == [1]


def test_a_hole_larger_than_a_relative_offset_divides_groups(log: PartitionLog) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"b", b"1"))
    log.log_end_offset = 2**31 + 5  # as compaction of everything between would leave it
    for _ in range(3):
        put(log, (b"a", b"1"))
        log.roll(NOW)
    put(log, (b"c", b"1"))
    assert clean(log) == 2**31 + 8
    assert log.segments.bases == [0, 2**31 + 5, 2**31 + 8]
    assert offsets(log) == [1, 2**31 + 7, 2**31 + 8]


def test_cleaned_segments_are_merged_up_to_the_size_of_a_segment(log: PartitionLog) -> None:
    for index in range(200):
        put(log, (b"key-%d" % (index % 5), b"v" * 100))
    log.roll(NOW)
    end = None
    for _ in range(3):
        clean(log, end)
    assert len(log.segments) == 2
    assert offsets(log) == list(range(195, 200))
    log = reopened(log)
    assert offsets(log) == list(range(195, 200))
    assert log.log_end_offset == 200


def test_a_batch_with_a_wrong_crc_ends_the_round_and_stays(log: PartitionLog) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    log.roll(NOW)
    path = Path(log.segments[0].path())
    broken = bytearray(path.read_bytes())
    broken[-1] ^= 1
    path.write_bytes(broken)
    with pytest.raises(Malformed, match="CRC"):
        clean(log)
    assert path.read_bytes() == broken
    assert not list(path.parent.glob("*.cleaned"))


@pytest.mark.parametrize("cut", [1, 30, 70])
def test_a_segment_that_ends_in_half_a_batch_ends_the_round(log: PartitionLog, cut: int) -> None:
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    log.roll(NOW)
    segment = log.segments[0]
    with open(segment.path(), "r+b") as file:
        file.truncate(segment.size - cut)
    segment.size -= cut
    with pytest.raises(Malformed):
        clean(log)


def test_a_log_that_starts_inside_its_active_segment_has_nothing_to_clean(log: PartitionLog) -> None:
    """KAFKA-8764, 9133: the log starts inside its active segment after DeleteRecords."""
    put(log, (b"a", b"1"))
    log.roll(NOW)
    for _ in range(3):
        put(log, (b"a", b"2"))
    log.advance_log_start(3)
    found = examine(log, 1, NOW)
    assert (found.first_dirty, found.dirty_bytes, found.is_due) == (3, 0, False)


def test_timestamps_are_found_after_compaction(log: PartitionLog) -> None:
    for index in range(100):
        put(log, (b"key-%d" % (index % 10), b"v" * 50), timestamp=NOW + index * 10)
    put(log, (b"key-9", None), timestamp=NOW + 5000)
    log.roll(NOW)
    put(log, (b"key-9", b""), timestamp=NOW)
    log.roll(NOW)
    clean(log)
    log = reopened(log)
    assert first_at(log, NOW) == (90, NOW + 900, 0)
    assert first_at(log, NOW + 945) == (95, NOW + 950, 0)
    assert largest(log) == (98, NOW + 980, 0)


def test_records_that_got_their_time_from_the_broker_keep_it(log: PartitionLog) -> None:
    stamped = LogConfig(cleanup_policy=("compact",), message_timestamp_type="LogAppendTime", delete_retention_ms=10)
    log.update_config(stamped)
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", None))
    log.roll(NOW)
    put(log, (b"end", b""))
    before = {record.offset: record for _, record in contents(log)}
    clean(log)
    assert offsets(log) == [1, 2, 3]
    assert all(before[record.offset] == record for _, record in contents(log))
    clean(log, None, NOW + 10)
    assert offsets(log) == [1, 3]
    assert contents(log)[0][1] == before[1]


@pytest.mark.long
@pytest.mark.parametrize("records", ["many", "large"])
def test_what_could_not_be_produced_any_more_is_left_alone(tmp_path: Path, records: str) -> None:
    """Such a batch may date from before the topic was compacted, and decompress to more memory than there is."""
    log = open_log(tmp_path / "topic-0", config=LogConfig(record_validation="header"))
    bomb = numbered((1 << 20) + 1000) if records == "many" else one_record(110 << 20, GZIP)
    log.append_as_leader(bomb, 0, NOW)
    log.update_config(LogConfig(cleanup_policy=("compact",)))
    put(log, (b"k", b"v"))
    log.roll(NOW)
    put(log, (b"k", b"w"))
    log.roll(NOW)
    put(log, (b"end", b""))
    bomb_header, *_, active = headers(log)
    clean(log)
    assert headers(log) == [bomb_header, (bomb_header[1] + 2, bomb_header[1] + 2, 1), active]


LYING = {
    "a count too high": sealed(MINIMAL * 2, 3, 0),
    "a count too low": sealed(MINIMAL * 2, 1, 0),
    "garbage": sealed(b"no zstd frame", 2, ZSTD, compressed=True),
    "a record that ends early": sealed(MINIMAL[:-2], 1, LZ4),
}


@pytest.mark.parametrize("lying", LYING.values(), ids=LYING)
def test_a_batch_that_nobody_can_read_stays_and_the_rest_is_compacted(tmp_path: Path, lying: bytes) -> None:
    log = open_log(tmp_path / "topic-0", config=LogConfig(record_validation="header"))
    put(log, (b"k", b"1"))
    log.append_as_leader(lying, 0, NOW)
    put(log, (b"k", b"2"))
    log.update_config(COMPACT)
    log.roll(NOW)
    kept = headers(log)[1]
    put(log, (b"end", b""))
    end = clean(log)
    assert headers(log)[:2] == [kept, (kept[1] + 1, kept[1] + 1, 1)]
    log.roll(NOW)
    put(log, (b"k", b"3"))
    log.roll(NOW)
    put(log, (b"end", b""))
    with cleaning(log, end) as round_:  # now it is in the clean part
        for group in round_.run():
            swap(log, group)
    assert headers(log)[:2] == [kept, (kept[1] + 2, kept[1] + 2, 1)]
    assert Path(log.segments[0].path()).read_bytes()[16 : len(lying)] == lying[16:]
    assert (round_.unreadable_count, len(round_.unreadable)) == (1, 1)
    assert round_.unreadable[0].startswith("offset 1: ")
