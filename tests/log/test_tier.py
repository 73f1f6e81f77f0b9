"""A log whose closed segments are copied to remote storage: what leaves the disk, and what readers may ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.log.leader_epochs import LeaderEpochCache
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.log.tier import Tier
from kbroker.protocol.errors import ApiError, ErrorCode
from tests.log.builders import HOUR, NOW, batch, committed, delete_due, offsets_of, open_log, read_all

SIZE = len(batch())
TIERED = LogConfig(segment_bytes=SIZE * 2, local_retention_bytes=SIZE * 4, remote_storage_enable=True)


def append(log: PartitionLog, count: int = 1, epoch: int = 0) -> None:
    for _ in range(count):
        log.append_as_leader(batch(), epoch, NOW)


def tier_of(log: PartitionLog) -> Tier:
    assert log.tier is not None
    return log.tier


def error_at(log: PartitionLog, offset: int) -> ErrorCode:
    with pytest.raises(ApiError) as failed:
        log.read(offset, 1000, log.log_end_offset, min_one=True)
    return failed.value.code


@pytest.mark.parametrize("limit", [{"local_retention_bytes": SIZE * 4}, {"local_retention_ms": 1}])
def test_only_what_is_copied_leaves_the_disk(tmp_path: Path, limit: dict[str, int]) -> None:
    log = open_log(tmp_path / "topic-0", config=replace(TIERED, **{"local_retention_bytes": -1, **limit}))
    append(log, 12)
    assert delete_due(committed(log), NOW + HOUR) == 0
    tier_of(log).end_offset = 6
    assert delete_due(log, NOW + HOUR) == 3
    assert (log.earliest_offset, log.log_start_offset) == (0, 6)
    assert error_at(log, 5) is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    assert error_at(log, -1) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert offsets_of(read_all(log)) == [6, 7, 8, 9, 10, 11]


def test_the_last_segment_is_closed_so_that_it_can_be_copied(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=replace(TIERED, local_retention_bytes=-2, local_retention_ms=1000))
    append(log, 3)
    assert delete_due(committed(log), NOW + 500) == 0
    assert log.segments.bases == [0, 2]
    assert delete_due(log, NOW + 1001) == 0
    assert log.segments.bases == [0, 2, 3]
    tier_of(log).end_offset = 3
    assert delete_due(log, NOW + 1001) == 2
    assert (log.earliest_offset, log.log_start_offset, log.segments.bases) == (0, 3, [3])


@pytest.mark.parametrize(("copied_to", "earliest"), [(0, 8), (4, 8), (8, 0), (10, 0)])
def test_without_copying_the_disk_is_limited_as_usual(tmp_path: Path, copied_to: int, earliest: int) -> None:
    log = open_log(tmp_path / "topic-0", config=replace(TIERED, remote_log_copy_disable=True))
    append(log, 12)
    assert delete_due(committed(log), NOW) == 0, "until it is known where remote storage ends"
    tier_of(log).end_offset = copied_to
    assert delete_due(log, NOW) == 4
    assert (log.earliest_offset, log.log_start_offset) == (earliest, 8), "nobody reads on behind a gap"


def test_the_last_segment_stays_open_while_it_may_stay(tmp_path: Path) -> None:
    config = replace(TIERED, local_retention_bytes=SIZE, local_retention_ms=1000)
    log = open_log(tmp_path / "topic-0", config=config)
    append(log, 3)
    delete_due(committed(log), NOW + 500)
    assert log.segments.bases == [0, 2], "it is larger than the disk may keep, but not old"
    log.update_config(replace(config, local_retention_bytes=0))
    log.set_high_watermark(0)
    append(log)
    delete_due(log, NOW + 500)
    assert log.segments.bases == [0, 2], "nobody can read its records yet"
    delete_due(committed(log), NOW + 500)
    assert log.segments.bases == [0, 2, 4]
    delete_due(log, NOW + HOUR)
    assert log.segments.bases == [0, 2, 4], "an empty segment stays open"


def test_an_epoch_that_begins_too_late_is_mended_beside_remote_ones(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=TIERED)
    append(log, 4, 1)
    append(log, 4, 2)
    log.close()
    path = tmp_path / "topic-0" / "leader-epoch-checkpoint"
    path.write_text(path.read_text().replace("1 0", "1 2"))
    log = open_log(tmp_path / "topic-0", config=TIERED)
    assert log.proven_epochs().entries == [(1, 0), (2, 4)]


@pytest.mark.parametrize(
    ("local", "entries"),
    [
        ([], [(1, 0), (3, 4), (5, 12)]),
        ([(3, 6), (5, 9)], [(1, 0), (3, 4), (5, 9)]),
        ([(4, 6), (5, 9)], [(1, 0), (3, 4), (4, 6), (5, 9)]),
    ],
)
def test_epochs_of_remote_records_go_before_the_others(
    tmp_path: Path, local: list[tuple[int, int]], entries: list[tuple[int, int]]
) -> None:
    epochs = LeaderEpochCache(str(tmp_path))
    for each in local:
        epochs.assign(*each)
    epochs.prepend([(1, 0), (2, 8), (3, 4), (5, 12)])  # the log has lost what was copied of epoch 2
    assert epochs.entries == LeaderEpochCache(str(tmp_path)).entries == entries


def test_records_in_remote_storage_are_deleted_by_their_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=TIERED)
    for epoch in range(6):
        append(log, 2, epoch)
    tier_of(log).end_offset = 10
    assert delete_due(committed(log), NOW) == 4
    assert log.leader_epochs.entries == [(epoch, 2 * epoch) for epoch in range(6)], "needed to find remote records"
    assert log.advance_log_start(3)
    assert not log.advance_log_start(2)
    assert (log.earliest_offset, log.log_start_offset) == (3, 8)
    assert error_at(log, 2) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.leader_epochs.entries[0] == (1, 3)
    assert log.advance_log_start(9)
    assert (log.earliest_offset, log.log_start_offset, log.leader_epochs.entries) == (9, 9, [(4, 9), (5, 10)])


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_knows_where_remote_records_begin(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path / "topic-0", config=TIERED)
    for epoch in range(6):
        append(log, 2, epoch)
    tier_of(log).end_offset = 10
    delete_due(committed(log), NOW)
    log.advance_log_start(3)
    log.close()
    log = open_log(tmp_path / "topic-0", config=TIERED, clean=clean, log_start_offset=3, high_watermark=12)
    assert (log.earliest_offset, log.log_start_offset) == (3, 8)
    assert log.leader_epochs.entries == [(1, 3), (2, 4), (3, 6), (4, 8), (5, 10)]
    assert log.proven_epochs().entries == log.leader_epochs.entries
    assert error_at(log, 3) is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    assert delete_due(log, NOW) == 0, "until it is known what is copied, nothing leaves the disk"


def test_wrong_epochs_of_local_records_are_mended_and_those_of_remote_ones_stay(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=TIERED)
    for epoch in range(6):
        append(log, 2, epoch)
    tier_of(log).end_offset = 10
    delete_due(committed(log), NOW)
    log.close()
    path = tmp_path / "topic-0" / "leader-epoch-checkpoint"
    path.write_text(path.read_text().replace("5 10", "5 9"))
    log = open_log(tmp_path / "topic-0", config=TIERED)
    assert log.proven_epochs().entries == [(epoch, 2 * epoch) for epoch in range(6)]
