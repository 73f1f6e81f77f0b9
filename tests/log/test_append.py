"""What an append checks, what it returns, and what it writes."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbroker.log import append_validation, record_validation, record_walk
from kbroker.log.append_info import COORDINATOR, AppendError
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.compression import GZIP, LZ4, NONE, ZSTD
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import build_batch, build_marker, compute_crc, iter_batches, parse_header
from tests.log.builders import HOUR, NOW, batch, committed, first_at, open_log, read_all


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_log(tmp_path / "topic-0")


def refused(log: PartitionLog, records: bytes, **kw: Any) -> AppendError:
    before = (log.log_end_offset, log.size, log.leader_epochs.entries)
    with pytest.raises(AppendError) as caught:
        log.append_as_leader(records, 0, NOW, **kw)
    assert (log.log_end_offset, log.size, log.leader_epochs.entries) == before
    return caught.value


def resealed(records: bytes, place: int, content: bytes) -> bytes:
    changed = bytearray(records)
    changed[place : place + len(content)] = content
    struct.pack_into(">I", changed, 17, compute_crc(changed))
    return bytes(changed)


@pytest.mark.parametrize("writable", [True, False])
def test_offsets_and_epoch_are_written_outside_the_crc(log: PartitionLog, writable: bool) -> None:
    for count in (1, 3, 2):
        records = batch(count)
        info = log.append_as_leader(bytearray(records) if writable else records, 4, NOW)
        assert (info.last_offset - info.base_offset + 1, info.log_append_time_ms, info.duplicate) == (count, -1, False)
    view = log.read(0, 1 << 20, 6, min_one=True).view()
    headers = [header for _, header in iter_batches(view)]
    assert [header.base_offset for header in headers] == [0, 1, 4]
    assert {header.leader_epoch for header in headers} == {4}
    assert all(compute_crc(view[p : p + h.size]) == h.crc for p, h in iter_batches(view))
    assert log.leader_epochs.entries == [(4, 0)]
    assert [r.value for r in read_all(log)] == [b"value"] * 6


def test_headers_that_are_refused(log: PartitionLog) -> None:
    good = batch(2)
    invalid = ErrorCode.INVALID_RECORD
    cases = [
        (b"", invalid),
        (good[:11], invalid),
        (good[:30], invalid),
        (good[:-1], invalid),
        (good + good, invalid),
        (good[:16] + b"\x01" + good[17:], invalid),
        (good[:16] + b"\x03" + good[17:], ErrorCode.CORRUPT_MESSAGE),
        (good[:8] + struct.pack(">i", 3) + good[12:], ErrorCode.CORRUPT_MESSAGE),
        (good[:8] + struct.pack(">i", -1) + good[12:], ErrorCode.CORRUPT_MESSAGE),
        (good[:8] + struct.pack(">i", 40) + good[12:], ErrorCode.CORRUPT_MESSAGE),
        (good[:-1] + b"!", ErrorCode.CORRUPT_MESSAGE),
        (batch(1, base_offset=5), invalid),
        (resealed(good, 57, struct.pack(">i", 3)), invalid),
        (resealed(good, 57, struct.pack(">i", 0)), invalid),
        (resealed(good, 23, struct.pack(">i", -1)), invalid),
        (resealed(good, 23, struct.pack(">i", 2)), invalid),
        (resealed(good, 21, struct.pack(">h", 7)), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch(1, control=True), invalid),
        (batch(1, producer_id=3, producer_epoch=0), invalid),
    ]
    for records, code in cases:
        error = refused(log, records)
        assert (error.code, error.message, error.record_errors) == (code, None, []), records
    log.append_as_leader(good + good[:40], 0, NOW)
    assert log.log_end_offset == 2, "a partial batch behind the first is passed over, as in Kafka"
    assert log.size == len(good)


def test_zstd_needs_produce_version_7(log: PartitionLog) -> None:
    records = batch(1, codec=ZSTD)
    assert refused(log, records, request_version=6).code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    log.append_as_leader(records, 0, NOW, request_version=7)


def test_sizes(log: PartitionLog) -> None:
    records = batch(1, value=bytes(1000))
    log.update_config(replace(log.config, max_message_bytes=len(records)))
    log.append_as_leader(records, 0, NOW)
    log.update_config(replace(log.config, max_message_bytes=len(records) - 1))
    assert refused(log, records).code == ErrorCode.MESSAGE_TOO_LARGE
    log.update_config(LogConfig(segment_bytes=len(records) - 1))
    assert refused(log, records).code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_timestamps_out_of_range(log: PartitionLog) -> None:
    log.update_config(LogConfig(message_timestamp_before_max_ms=HOUR))
    log.append_as_leader(batch(2, timestamp=NOW + HOUR - 1), 0, NOW)
    log.append_as_leader(batch(1, timestamp=NOW - HOUR), 0, NOW)
    log.append_as_leader(batch(1, timestamp=-1), 0, NOW)
    error = refused(log, batch(3, timestamp=NOW + HOUR - 1))
    assert error.code == ErrorCode.INVALID_TIMESTAMP
    assert error.message == "One or more records have been rejected due to invalid timestamp"
    late = NOW + HOUR + 1
    assert error.record_errors == [
        (
            2,
            f"Timestamp {late} of message with offset 2 is out of range. "
            f"The timestamp should be within [{NOW - HOUR}, {NOW + HOUR}]",
        )
    ]
    assert [index for index, _ in refused(log, batch(2, timestamp=NOW - HOUR - 1)).record_errors] == [0]


HEADER_ONLY = LogConfig(record_validation="header")


def test_timestamps_hidden_from_the_header_are_found_in_the_records(log: PartitionLog) -> None:
    records = build_batch([(NOW, None, b"", ()), (NOW + 2 * HOUR, None, b"", ())])
    hiding = resealed(records, 35, struct.pack(">q", NOW))
    assert refused(log, hiding).code == ErrorCode.INVALID_TIMESTAMP
    lying = resealed(batch(2, timestamp=NOW), 35, struct.pack(">q", NOW + 50))
    info = log.append_as_leader(lying, 0, NOW)
    header = parse_header(log.read(info.base_offset, 1 << 20, log.log_end_offset, min_one=True).view())
    assert header.max_timestamp == NOW + 1, "the true one is written"
    log.update_config(HEADER_ONLY)
    log.append_as_leader(hiding, 0, NOW)


def test_producers_must_not_claim_log_append_time(log: PartitionLog) -> None:
    records = batch(1, timestamp=-1, timestamp_type=1)
    error = refused(log, records)
    assert error.code == ErrorCode.INVALID_TIMESTAMP
    assert error.record_errors == [
        (
            0,
            "Invalid timestamp type in message DefaultRecord(offset=0, timestamp=-1, key=3 bytes, value=5 bytes). "
            "Producer should not set timestamp type to LogAppendTime.",
        )
    ]
    log.append_as_leader(batch(1, timestamp_type=1), 0, NOW)
    header = parse_header(log.read(0, 1 << 20, 1, min_one=True).view())
    assert header.timestamp_type == 0, "on a CreateTime topic the bit is taken away"


@pytest.mark.parametrize("writable", [True, False])
def test_log_append_time(log: PartitionLog, writable: bool) -> None:
    log.update_config(LogConfig(message_timestamp_type="LogAppendTime"))
    records = batch(2, timestamp=5)
    info = log.append_as_leader(bytearray(records) if writable else records, 0, NOW)
    assert info.log_append_time_ms == NOW
    view = log.read(0, 1 << 20, 2, min_one=True).view()
    header = parse_header(view)
    assert (header.timestamp_type, header.max_timestamp, header.base_timestamp) == (1, NOW, 5)
    assert header.crc == compute_crc(view)
    assert [record.timestamp for record in read_all(log)] == [NOW, NOW]
    assert first_at(log, NOW) == (0, NOW, 0)


@pytest.mark.parametrize("target", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
@pytest.mark.parametrize("source", [NONE, GZIP, LZ4])
def test_the_topics_codec_wins(log: PartitionLog, source: int, target: str) -> None:
    log.update_config(LogConfig(compression_type=target, compression_gzip_level=1))
    records = batch(50, codec=source, producer_id=1, producer_epoch=0, base_sequence=0)
    log.append_as_leader(records, 0, NOW)
    header = parse_header(log.read(0, 1 << 20, 50, min_one=True).view())
    assert header.codec == ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(target)
    assert (header.producer_id, header.base_sequence, header.record_count) == (1, 0, 50)
    assert [(r.offset, r.timestamp) for r in read_all(log)] == [(i, NOW + i) for i in range(50)]


def test_recompressed_batches_are_measured_again(log: PartitionLog) -> None:
    records = batch(1, value=bytes(100_000), codec=GZIP)
    log.update_config(LogConfig(compression_type="uncompressed", max_message_bytes=50_000))
    assert refused(log, records).code == ErrorCode.MESSAGE_TOO_LARGE


def test_compacted_topics_want_keys(log: PartitionLog) -> None:
    log.update_config(LogConfig(cleanup_policy=("compact",)))
    log.append_as_leader(batch(2), 0, NOW)
    records = build_batch([(NOW, b"k", b"", ()), *[(NOW, None, b"", ())] * 4])
    error = refused(log, records)
    text = "Compacted topic cannot accept message without key in topic partition topic-0"
    assert error.code == ErrorCode.INVALID_RECORD
    assert error.record_errors == [(index, text) for index in (1, 2, 3, 4)]
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{text}')" for index in (1, 2, 3))
    assert error.message == (
        "One or more records have been rejected due to 4 record errors in total, "
        f"and only showing the first three errors at most: [{shown}]"
    )


@pytest.mark.parametrize("codec", range(5))
def test_records_are_looked_at_unless_the_header_is_to_be_enough(log: PartitionLog, codec: int) -> None:
    good = batch(3, codec=codec)
    log.append_as_leader(good, 0, NOW)
    broken = resealed(good, 61, b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
    # In Kafka's validator, a codec's error is not an expected one.
    expected = ErrorCode.UNKNOWN_SERVER_ERROR if codec else ErrorCode.INVALID_RECORD
    assert refused(log, broken).code == expected
    log.update_config(HEADER_ONLY)
    log.append_as_leader(broken, 0, NOW)


@pytest.mark.parametrize("codec", range(5))
def test_a_compressed_record_beyond_the_limit_is_refused(log: PartitionLog, codec: int) -> None:
    log.update_config(LogConfig(max_decompressed_message_bytes=1_006))
    records = [(NOW, None, bytes(size), ()) for size in (10, 999, 1_000)]
    log.append_as_leader(build_batch(records[:2], codec=codec), 0, NOW)
    whole = build_batch(records, codec=codec)
    if not codec:
        log.append_as_leader(whole, 0, NOW)
        return
    error = refused(log, whole)
    assert error.code == ErrorCode.INVALID_RECORD
    assert error.detail == "Invalid record size: 1007 exceeds the configured maximum record size of 1006."


def test_offsets_are_put_in_order(log: PartitionLog) -> None:
    wrong = resealed(build_batch([(NOW, None, b"a", ()), (NOW, None, b"b", ())]), 61 + 3, b"\x08")
    log.append_as_leader(wrong, 0, NOW)
    assert [(record.offset, record.value) for record in read_all(log)] == [(0, b"a"), (1, b"b")]


def test_coordinators_may_write_control_batches(log: PartitionLog) -> None:
    marker = build_marker(producer_id=1, producer_epoch=0, commit=True, coordinator_epoch=0, timestamp=NOW)
    assert refused(log, marker).code == ErrorCode.INVALID_RECORD
    log.update_config(LogConfig(cleanup_policy=("compact",), compression_type="gzip"))
    log.append_as_leader(marker, 0, NOW, origin=COORDINATOR)
    assert parse_header(log.read(0, 1 << 20, 1, min_one=True).view()).codec == NONE


def test_high_watermark_keeps_within_the_log(log: PartitionLog) -> None:
    log.append_as_leader(batch(5), 0, NOW)
    assert log.high_watermark == 0
    log.set_high_watermark(99)
    assert (log.high_watermark, log.last_stable_offset) == (5, 5)
    assert committed(log).high_watermark == 5


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_batches_of_own_coordinators_are_not_read_again(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """There is no CRC check and no record check; a client's batch beside them gets both."""
    log.update_config(LogConfig(cleanup_policy=(policy,)))
    looks: dict[str, int] = {}

    def counted(module: Any, name: str) -> None:
        inner = getattr(module, name)

        def call(*arguments: Any, **options: Any) -> Any:
            looks[name] = looks.get(name, 0) + 1
            return inner(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    counted(append_validation, "crc32c")
    counted(record_validation, "record_slices")
    monkeypatch.setattr(record_walk, "scan", None)  # so that `record_slices` is mostly not called
    marker = build_marker(producer_id=7, producer_epoch=0, commit=True, coordinator_epoch=0, timestamp=NOW)
    for records in (batch(3), batch(2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True), marker):
        log.append_as_leader(records, 0, NOW, origin=COORDINATOR)
    assert looks == {}
    assert [(p.producer_id, p.current_txn_first_offset) for p in log.active_producers()] == [(7, -1)]
    log.append_as_leader(batch(3), 0, NOW)
    assert looks == {"crc32c": 1, "record_slices": 1}


def test_batches_of_own_coordinators_keep_the_rules_of_size_codec_and_time(log: PartitionLog) -> None:
    log.update_config(LogConfig(max_message_bytes=100))
    assert refused(log, batch(5), origin=COORDINATOR).code == ErrorCode.MESSAGE_TOO_LARGE
    log.update_config(LogConfig(segment_bytes=100))
    assert refused(log, batch(5), origin=COORDINATOR).code == ErrorCode.RECORD_LIST_TOO_LARGE
    log.update_config(LogConfig(compression_type="gzip", message_timestamp_type="LogAppendTime"))
    log.append_as_leader(batch(5, timestamp=NOW - 1), 0, NOW, origin=COORDINATOR)
    header = parse_header(log.read(0, 1 << 20, 5, min_one=True).view())
    assert (header.codec, header.timestamp_type, header.max_timestamp) == (GZIP, 1, NOW)
