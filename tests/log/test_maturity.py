"""The mature end of a log with `delivery.delay.ms`: nothing comes early, and nothing waits longer than it has to."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.log import batch_scan, maturity
from kbroker.log.batch_scan import scan_headers
from kbroker.log.cleaner.cleanable import examine
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import whole
from kbroker.protocol.errors import ApiError
from kbroker.protocol.records import BatchHeader, parse_header
from kbroker.protocol.wire import Buffer
from tests.log.builders import HOUR, NOW, batch, committed, delete_due, open_log, read_all
from tests.tries import tries

DELAY = 1000
DELAYED = LogConfig(delivery_delay_ms=DELAY, message_timestamp_type="LogAppendTime", segment_bytes=600)
SIZE = len(batch())


def append(log: PartitionLog, now_ms: int, count: int = 1) -> None:
    log.append_as_leader(bytearray(batch(count)), 0, now_ms)
    committed(log)


def end_of(log: PartitionLog, now_ms: int) -> int:
    """Return the mature end after as many steps as it takes."""
    return whole(log.readable_end(now_ms))


def expected_end(log: PartitionLog, delay_ms: int, now_ms: int) -> int:
    """Return the mature end by reading every batch."""
    for segment in log.segments:
        for _, header in scan_headers(segment.handle, 0, segment.size):
            waits = header.timestamp_type and header.max_timestamp > now_ms - delay_ms
            if waits and header.last_offset >= log.log_start_offset:
                return max(header.base_offset, log.log_start_offset)
    return log.log_end_offset


def counted_headers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an element for each batch header that the log parses from now on."""
    parsed: list[int] = []

    def counting(buffer: Buffer, position: int = 0) -> BatchHeader:
        parsed.append(position)
        return parse_header(buffer, position)

    monkeypatch.setattr(batch_scan, "parse_header", counting)
    return parsed


def test_records_become_readable_in_order_after_the_delay(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=DELAYED)
    assert (end_of(log, NOW), log.ms_to_maturity(NOW)) == (0, None)
    for second in range(3):
        append(log, NOW + 100 * second, 2)
    assert [end_of(log, NOW + DELAY + ms) for ms in (-1, 0, 99, 100, 199, 200)] == [0, 2, 2, 4, 4, 6]
    assert log.ms_to_maturity(NOW + DELAY + 200) is None


def test_the_wait_is_until_the_next_batch_is_old_enough(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=DELAYED)
    append(log, NOW)
    append(log, NOW + 300)
    waits = []
    for ms in (0, 400, DELAY, DELAY + 1):
        end_of(log, NOW + ms)
        waits.append(log.ms_to_maturity(NOW + ms))
    assert waits == [DELAY, DELAY - 400, 300, 299]


def test_a_restart_and_a_follower_find_the_same_end(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=DELAYED)
    follower = open_log(tmp_path / "topic-1", config=DELAYED)
    for ms in range(0, 2000, 100):
        append(log, NOW + ms)
    for segment in log.segments:
        for place, header in scan_headers(segment.handle, 0, segment.size):
            follower.append_as_follower(memoryview(os.pread(segment.handle.fd, header.size, place)), NOW)
    committed(follower)
    assert len(log.segments) > 2
    log.close()
    again = committed(open_log(tmp_path / "topic-0", config=DELAYED))
    assert end_of(again, NOW + 1500) == end_of(follower, NOW + 1500) == 6


def test_a_longer_delay_does_not_take_records_back_and_a_shorter_one_counts_at_once(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=DELAYED)
    append(log, NOW)
    append(log, NOW + 500)
    assert end_of(log, NOW + DELAY) == 1
    log.update_config(replace(DELAYED, delivery_delay_ms=5 * DELAY))
    assert (end_of(log, NOW + 2 * DELAY), end_of(log, NOW + 5 * DELAY + 499)) == (1, 1)
    log.update_config(replace(DELAYED, delivery_delay_ms=DELAY))
    assert end_of(log, NOW + 2 * DELAY) == 2
    append(log, NOW + 3 * DELAY)
    log.update_config(replace(DELAYED, delivery_delay_ms=0))
    assert (end_of(log, NOW + 3 * DELAY), log.ms_to_maturity(NOW + 3 * DELAY)) == (3, None)


def test_a_new_delay_does_not_hide_what_consumers_may_have_read(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=replace(DELAYED, delivery_delay_ms=0))
    append(log, NOW)
    log.update_config(DELAYED)
    append(log, NOW)
    assert [end_of(log, NOW + ms) for ms in (0, DELAY)] == [1, 2]


def test_records_with_the_producers_time_do_not_wait(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=LogConfig())
    log.append_as_leader(bytearray(batch(3, timestamp=NOW + HOUR // 2)), 0, NOW)
    log.close()
    again = committed(open_log(tmp_path / "topic-0", config=DELAYED))
    append(again, NOW)
    assert end_of(again, NOW) == 3
    again.update_config(replace(DELAYED, delivery_delay_ms=2**63 - 1))
    assert end_of(again, NOW + 100 * HOUR) == 3


def test_a_changed_default_of_the_timestamp_type_lets_no_record_come_early(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=replace(DELAYED, message_timestamp_type="CreateTime"))
    append(log, NOW + HOUR)
    assert [end_of(log, NOW + HOUR + ms) for ms in (DELAY - 1, DELAY)] == [0, 1]


def test_a_truncation_makes_the_batches_behind_it_wait(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=DELAYED)
    for _ in range(4):
        append(log, NOW)
    assert end_of(log, NOW + DELAY) == 4
    log.truncate_to(2)
    append(log, NOW + DELAY)
    append(log, NOW + DELAY)
    assert (end_of(log, NOW + DELAY), end_of(log, NOW + 2 * DELAY)) == (2, 4)
    log.truncate_fully(10)
    append(log, NOW + 2 * DELAY)
    assert (end_of(log, NOW + 2 * DELAY), end_of(log, NOW + 3 * DELAY)) == (10, 11)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_was_wrong_holds_records_for_one_delay(tmp_path: Path, restarts: bool) -> None:
    log = open_log(tmp_path / "topic-0", config=DELAYED)
    for _ in range(8):
        append(log, NOW + 9 * HOUR)  # then somebody corrects the clock
    if restarts:
        log.close()
        log = committed(open_log(tmp_path / "topic-0", config=DELAYED))
    assert (end_of(log, NOW), log.ms_to_maturity(NOW)) == (0, DELAY)
    append(log, NOW + 500)
    assert [end_of(log, NOW + ms) for ms in (DELAY - 1, DELAY, DELAY + 499, DELAY + 500)] == [0, 8, 8, 9]


def test_retention_keeps_what_nobody_could_read_yet(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=replace(DELAYED, retention_bytes=0, retention_ms=10))
    for _ in range(30):
        append(log, NOW)
    assert delete_due(log, NOW + DELAY - 1) == 0
    assert delete_due(log, NOW + DELAY) == 5
    assert log.log_start_offset == log.log_end_offset == 30


def test_compaction_keeps_what_nobody_could_read_yet(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=replace(DELAYED, cleanup_policy=("compact",)))
    for _ in range(30):
        append(log, NOW)
    end_of(log, NOW + DELAY - 1)
    assert examine(log, None, NOW + DELAY - 1).upper == 0
    end_of(log, NOW + DELAY)
    assert examine(log, None, NOW + DELAY).upper == log.segments.active.base_offset > 0


def damage(log: PartitionLog, number: int, at: int = 16) -> None:
    """Change the magic byte, or another one, of a batch in the first segment."""
    os.pwrite(log.segments[0].handle.fd, b"c", number * SIZE + at)


def test_a_damaged_batch_is_an_error_for_readers_and_no_wait_without_end(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=replace(DELAYED, segment_bytes=1 << 20))
    for ms in range(6):
        append(log, NOW + ms)
    log.close()
    log = committed(open_log(tmp_path / "topic-0", config=replace(DELAYED, segment_bytes=1 << 20)))
    damage(log, 3)
    assert [end_of(log, NOW + DELAY + ms) for ms in (1, 2, 2, 4)] == [2, 4, 4, 4]
    assert log.ms_to_maturity(NOW + DELAY + 4) == 1, "the rest of the segment waits as its last batch"
    assert len(read_all(log, 0, 3)) == 3
    with pytest.raises(ApiError):
        log.read(3, 1 << 20, 4, min_one=True)
    append(log, NOW + DELAY)
    assert [end_of(log, NOW + DELAY + ms) for ms in (5, DELAY)] == [4, 7]


def test_a_batch_with_a_damaged_offset_shows_nothing_early(tmp_path: Path) -> None:
    for at in (5, 7):  # of the base offset, which no CRC covers
        log = open_log(tmp_path / f"topic-{at}", config=DELAYED)
        for ms in range(20):
            append(log, NOW + ms)
        damage(log, 3, at)
        for ms in range(20):
            assert end_of(log, NOW + DELAY + ms) <= max(ms + 1, 4)
        assert end_of(log, NOW + DELAY + 20) == 20


def test_retention_goes_on_behind_a_damaged_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=replace(DELAYED, retention_ms=10 * DELAY))
    for _ in range(30):
        append(log, NOW)
    damage(log, 3)
    delete_due(log, NOW + 11 * DELAY)
    assert log.log_start_offset == 30


def test_records_behind_deleted_damage_become_readable(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=replace(DELAYED, index_interval_bytes=SIZE))
    for _ in range(6):
        append(log, NOW)
    append(log, NOW + DELAY)
    damage(log, 3)
    assert end_of(log, NOW + DELAY) == 6
    log.advance_log_start(4)
    assert [end_of(log, NOW + DELAY * many) for many in (1, 2)] == [6, 7]


@pytest.mark.parametrize("has_damage", [False, True])
def test_an_offset_that_is_not_in_the_file_is_passed_without_an_index(tmp_path: Path, has_damage: bool) -> None:
    config = replace(DELAYED, segment_bytes=1 << 20, index_interval_bytes=1 << 20, cleanup_policy=("compact",))
    source = open_log(tmp_path / "topic-0", config=config)
    many = 3 * maturity.AT_ONCE
    for _ in range(many + 20):
        append(source, NOW)
    log = open_log(tmp_path / "topic-1", config=config)
    for place, header in scan_headers(source.segments[0].handle, 0, source.segments[0].size):
        if not many <= header.base_offset < many + 10:  # as after a compaction
            if header.base_offset == many + 10:
                log.roll(NOW)
            log.append_as_follower(memoryview(os.pread(source.segments[0].handle.fd, header.size, place)), NOW)
    log.close()
    log = committed(open_log(tmp_path / "topic-1", config=config))
    if has_damage:
        damage(log, many - 10)
    log.advance_log_start(many + 5 - 10 * has_damage)
    assert [log.mature_end(NOW + DELAY) for _ in range(2)][-1] == log.log_end_offset


def test_one_step_examines_a_bounded_number_of_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(DELAYED, segment_bytes=1 << 20)
    log = open_log(tmp_path / "topic-0", config=config)
    for _ in range(3 * maturity.AT_ONCE):
        append(log, NOW)
    parsed = counted_headers(monkeypatch)
    ends: list[int] = []
    while len(ends) < 10 and (log.maturity is None or log.maturity.is_behind):
        before = len(parsed)
        ends.append(log.mature_end(NOW + DELAY))
        assert len(parsed) - before < 2 * maturity.AT_ONCE
    assert len(ends) > 2
    assert ends[-1] == log.log_end_offset


def test_a_log_without_index_entries_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(DELAYED, segment_bytes=1 << 20, index_interval_bytes=1 << 20)
    log = open_log(tmp_path / "topic-0", config=config)
    count = 10 * maturity.AT_ONCE
    for _ in range(count):
        append(log, NOW)
    log.close()
    again = committed(open_log(tmp_path / "topic-0", config=config))
    parsed = counted_headers(monkeypatch)
    assert end_of(again, NOW + DELAY) == count
    assert len(parsed) < 3 * count


def test_a_log_of_old_segments_is_passed_over_by_its_time_indexes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path / "topic-0", config=replace(DELAYED, segment_bytes=1 << 17, index_interval_bytes=500))
    for number in range(5000):
        append(log, NOW + number)
    log.close()
    again = committed(open_log(tmp_path / "topic-0", config=DELAYED))
    parsed = counted_headers(monkeypatch)
    assert end_of(again, NOW + DELAY + 4800) == 4801
    assert len(parsed) < 1000


STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.just("append as sent"), st.integers(-2000, 2000)),
    st.tuples(st.just("time"), st.integers(0, 700)),
    st.tuples(st.just("delay"), st.sampled_from([1, 400, 1500])),
    st.tuples(st.just("truncate"), st.integers(0, 5)),
    st.tuples(st.just("delete"), st.integers(0, 5)),
    st.tuples(st.just("roll"), st.just(0)),
    st.tuples(st.just("restart"), st.just(0)),
)


@given(st.lists(STEP, max_size=40), st.sampled_from([2, 5, 1000]))
@settings(max_examples=tries(60))
def test_after_any_operations_the_end_is_that_of_a_search_through_all_batches(
    steps: list[tuple[str, int]], at_once: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(maturity, "AT_ONCE", at_once)
        patch.setattr(maturity, "_FIRST", at_once)
        config, now, floor = replace(DELAYED, index_interval_bytes=100), NOW, 0
        log = open_log(Path(folder) / "topic-0", config=config)
        for action, number in steps:
            if action == "append":
                append(log, now, number)
            elif action == "append as sent":  # as before the topic had its delay
                kept = log.maturity
                log.update_config(replace(config, message_timestamp_type="CreateTime", delivery_delay_ms=0))
                log.append_as_leader(bytearray(batch(timestamp=now + number)), 0, now)
                log.update_config(config)
                log.maturity = kept
            elif action == "time":
                now += number
            elif action == "delay":
                config = replace(config, delivery_delay_ms=number)
                log.update_config(config)
            elif action == "truncate":
                log.truncate_to(max(log.log_end_offset - number, log.log_start_offset))
            elif action == "delete":
                log.advance_log_start(min(log.log_start_offset + number, log.high_watermark), now)
            elif action == "roll":
                log.roll(now)
            else:
                log.close()
                log, floor = open_log(Path(folder) / "topic-0", config=config, log_start_offset=log.log_start_offset), 0
            committed(log)
            end = end_of(log, now)
            expected = expected_end(log, config.delivery_delay_ms, now)
            floor = min(floor, log.log_end_offset)
            assert end == max(expected, floor)
            floor = end
            wait = log.ms_to_maturity(now)
            if wait is None:
                assert end == log.log_end_offset
            else:
                later = [max(expected_end(log, config.delivery_delay_ms, now + ms), end) for ms in (wait - 1, wait)]
                assert later[0] == end < later[1]
        log.close()
