"""The history of leader epochs, and the end offset of each (KIP-101, KIP-279)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kbroker.log import log_state
from kbroker.log.append_info import AppendError
from kbroker.log.checkpoints import LEADER_EPOCHS
from kbroker.log.leader_epochs import LeaderEpochCache
from tests.log.builders import NOW, batch, open_log


def cache(directory: Path, *entries: tuple[int, int]) -> LeaderEpochCache:
    found = LeaderEpochCache(str(directory))
    for epoch, start in entries:
        found.assign(epoch, start)
    assert LeaderEpochCache(str(directory)).entries == found.entries, "every change is on disk"
    return found


def test_end_offsets(tmp_path: Path) -> None:
    epochs = cache(tmp_path, (2, 10), (4, 20), (7, 35))
    assert epochs.latest == 7
    expected = {
        -1: (-1, -1),
        0: (0, 10),
        1: (1, 10),
        2: (2, 20),
        3: (2, 20),
        4: (4, 35),
        5: (4, 35),
        6: (4, 35),
        7: (7, 99),
        8: (-1, -1),
    }
    assert {epoch: epochs.end_offset_for(epoch, 99) for epoch in expected} == expected
    assert cache(tmp_path / "..").end_offset_for(0, 5) == (-1, -1)


def test_epoch_for_offset(tmp_path: Path) -> None:
    epochs = cache(tmp_path, (2, 10), (4, 20))
    assert [epochs.epoch_for_offset(offset) for offset in (9, 10, 19, 20, 99)] == [-1, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("entry", "entries"),
    [
        ((4, 25), [(2, 10), (4, 20)]),
        ((4, 15), [(2, 10), (4, 15)]),
        ((5, 20), [(2, 10), (5, 20)]),
        ((5, 12), [(2, 10), (5, 12)]),
        ((3, 30), [(2, 10), (3, 30)]),
        ((1, 30), [(1, 30)]),
        ((9, 0), [(9, 0)]),
        ((-1, 30), [(2, 10), (4, 20)]),
    ],
)
def test_entries_that_contradict_a_new_one_go(
    tmp_path: Path, entry: tuple[int, int], entries: list[tuple[int, int]]
) -> None:
    epochs = cache(tmp_path, (2, 10), (4, 20), entry)
    assert epochs.entries == entries
    assert epochs.latest == entries[-1][0]


def test_truncation(tmp_path: Path) -> None:
    epochs = cache(tmp_path, (0, 0), (2, 10), (4, 20))
    epochs.truncate_from_start(15)
    assert epochs.entries == [(2, 15), (4, 20)]
    epochs.truncate_from_start(15)
    epochs.truncate_from_end(21)
    assert epochs.entries == [(2, 15), (4, 20)]
    epochs.truncate_from_end(20)
    assert epochs.entries == [(2, 15)]
    assert cache(tmp_path).entries == [(2, 15)]
    epochs.truncate_from_end(0)
    assert (epochs.entries, epochs.latest) == ([], -1)


def test_a_failed_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = cache(tmp_path, (2, 10))

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "full")

    with monkeypatch.context() as patch:
        patch.setattr("kbroker.log.leader_epochs.write_epochs", fail)
        with pytest.raises(OSError, match="full"):
            epochs.assign(3, 20)
    assert (epochs.entries, epochs.latest) == ([(2, 10)], 2)


def test_an_epoch_that_begins_is_written_by_the_next_who_notes_one(tmp_path: Path) -> None:
    epochs = cache(tmp_path, (2, 10))
    epochs.begin(3, 20)
    assert epochs.end_offset_for(2, 25) == (2, 20)
    assert epochs.end_offset_for(3, 25) == (3, 25)
    assert cache(tmp_path).entries == [(2, 10)]
    epochs.assign(4, 25)
    assert cache(tmp_path).entries == [(2, 10), (3, 20), (4, 25)]


def test_the_first_who_appends_writes_the_epoch_that_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise batches would have an epoch that a start does not find in the file, and it might trust the file."""
    log = open_log(tmp_path / "topic-0")
    log.append_as_leader(batch(2), 0, NOW)
    log.leader_epochs.begin(7, log.log_end_offset)

    def fail(*_: object, **__: object) -> None:
        raise OSError(24, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("kbroker.log.leader_epochs.write_epochs", fail)
        with pytest.raises(AppendError):
            log.append_as_leader(batch(2), 7, NOW)
    log.append_as_leader(batch(2), 7, NOW)
    assert LeaderEpochCache(log.directory).entries[-1] == (7, 2)


def test_a_proof_that_could_not_be_read_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path / "topic-0")
    log.append_as_leader(batch(2), 0, NOW)
    log.leader_epochs.proven = False

    def fail(*_: object, **__: object) -> None:
        raise OSError(24, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("kbroker.log.leader_epochs._agrees", fail)
        with pytest.raises(OSError, match="too many"):
            log.proven_epochs()
    assert not log.leader_epochs.proven
    log.proven_epochs()
    assert log.leader_epochs.proven


def test_a_broken_checkpoint_counts_as_absent(tmp_path: Path) -> None:
    (tmp_path / LEADER_EPOCHS).write_text("0\n1\nx y\n")
    assert LeaderEpochCache(str(tmp_path)).entries == []


def test_a_flush_brings_the_epochs_to_the_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(log_state, "sync_file", synced.append)
    log = open_log(tmp_path / "log")
    for epoch in (1, 1, 4):
        log.append_as_leader(batch(), epoch, NOW)
    for _ in range(2):
        log.flush(NOW)
    assert [os.path.basename(each) for each in synced] == [LEADER_EPOCHS]
    log.append_as_leader(batch(), 5, NOW)
    task = log.begin_flush()
    assert task is not None
    task.run()
    log.append_as_leader(batch(), 6, NOW)
    log.end_flush(task, NOW)
    log.flush(NOW)
    assert len(synced) == 3
