"""Read the small files of a data directory strictly: content that a broker ignores is a finding here.

Owns the checks of checkpoints, of their consistency with the log beside them, of partition.metadata, meta.properties
and producer snapshots. Also compares the leader epochs of a partition's batches with each other and with its
leader-epoch-checkpoint; the reader of the log passes the epochs of the batches. Every parser raises ValueError with the
fault as its text; an absent file counts as empty.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from kbroker.log.checkpoints import LEADER_EPOCHS, entries_in
from kbroker.log.directories.meta_properties import check_properties, parse_lines
from kbroker.log.files import offset_of
from kbroker.log.offline.audit import Finding, read_bounded, read_text
from kbroker.log.producers.producer_snapshots import decode_snapshot
from kbroker.protocol.records import BatchHeader
from kbroker.protocol.wire import parse_uuid

_LONG_MAX: Final = 2**63 - 1


def checkpoint_lines(path: str) -> list[str]:
    """Return the entries of a checkpoint of version 0."""
    text = read_text(path)
    return [] if text is None else entries_in(text)


def number(text: str, line: str) -> int:
    """Return the number in a checkpoint's line. Raises ValueError if it is invalid."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= _LONG_MAX):
        raise ValueError(f"broken entry {line[:300]!r}")
    return int(text)


def parse_offsets(path: str) -> dict[tuple[str, int], int]:
    """Read a checkpoint with the lines `topic partition offset`."""
    found: dict[tuple[str, int], int] = {}
    for line in checkpoint_lines(path):
        parts = line.split(" ")
        if len(parts) != 3 or not parts[0]:
            raise ValueError(f"broken entry {line[:300]!r}")
        key = parts[0], number(parts[1], line)
        if key in found:
            raise ValueError(f"two entries for {key[0]}-{key[1]}")
        found[key] = number(parts[2], line)
    return found


def parse_topic_id(path: str) -> bytes | None:
    """Read the topic id of a partition.metadata; None if the file is absent."""
    text = read_text(path)
    if text is None:
        return None
    fields = dict(line.partition(": ")[::2] for line in text.splitlines() if line)
    if fields.get("version") != "0":
        raise ValueError(f"version {fields.get('version', '')[:20]!r} is not 0")
    topic_id = parse_uuid(fields.get("topic_id", ""))
    if not any(topic_id):
        raise ValueError("the topic id is zero")
    return topic_id


def parse_properties(path: str) -> Iterator[Finding]:
    """Check a meta.properties: version 0 (ZooKeeper) or 1 (KRaft), and the node id."""
    try:
        text = read_text(path)
    except ValueError as error:
        yield Finding(path, None, str(error))
        return
    if text is None:
        yield Finding(path, None, "is missing")
        return
    try:
        check_properties(parse_lines(text))
    except ValueError as error:
        yield Finding(path, None, str(error))


def check_snapshot(path: str, log_end_offset: int, *, recovery: bool) -> Iterator[Finding]:
    """Check a producer snapshot: its version, checksum and length.

    All offsets in it must be before the snapshot's own offset.
    """
    offset = offset_of(path.rpartition("/")[2]) or 0
    if offset > log_end_offset:
        yield Finding(path, None, f"is of an offset behind the log's end {log_end_offset}", recovery)
        return
    try:
        producers = decode_snapshot(read_bounded(path) or b"")
    except ValueError as error:
        yield Finding(path, None, str(error), recovery)
        return
    for producer in producers:
        last = producer.batches[-1].last_offset if producer.batches else -1
        latest = max(last, producer.current_txn_first_offset)
        if latest >= offset:
            what = f"producer {producer.producer_id} has offset {latest}, which is not below the snapshot's"
            yield Finding(path, None, what, recovery)


def offsets_in_order(
    path: str, log_start: int, end: int, high_watermark: int | None, recovery_point: int | None, *, clean: bool
) -> Iterator[Finding]:
    """Check that log start <= high watermark <= end, and that the recovery point is not after the end."""
    if log_start > end:
        yield Finding(path, None, f"the log start {log_start} lies behind the log's end {end}")
    elif high_watermark is not None and high_watermark > end:
        yield Finding(path, None, f"the high watermark {high_watermark} lies behind the log's end {end}")
    elif high_watermark is not None and high_watermark < log_start and clean:
        yield Finding(path, None, f"the high watermark {high_watermark} lies before the log start {log_start}")
    if recovery_point is not None and recovery_point > end:
        yield Finding(path, None, f"the recovery point {recovery_point} lies behind the log's end {end}")


def parse_epochs(path: str) -> list[tuple[int, int]]:
    """Read a leader-epoch-checkpoint; epochs and offsets must increase."""
    found: list[tuple[int, int]] = []
    for line in checkpoint_lines(path):
        parts = line.split(" ")
        if len(parts) != 2:
            raise ValueError(f"broken entry {line[:300]!r}")
        entry = number(parts[0], line), number(parts[1], line)
        if found and (entry[0] <= found[-1][0] or entry[1] <= found[-1][1]):
            raise ValueError(f"epoch {entry[0]} at offset {entry[1]} is not beyond {found[-1][0]} at {found[-1][1]}")
        found.append(entry)
    return found


class EpochCheck:
    """Checks the epochs of one partition in the order of offsets."""

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{LEADER_EPOCHS}"
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._from = 0
        self._last = -1

    def read(self) -> Iterator[Finding]:
        """Read the checkpoint."""
        try:
            for epoch, start in parse_epochs(self._path):
                self._epochs.append(epoch)
                self._starts.append(start)
        except ValueError as error:
            yield Finding(self._path, None, str(error))

    def begin(self, log_start: int, *, clean: bool) -> None:
        """Set the log start. The checkpoint does not need epochs that end before the log start.

        A deletion of records removes epochs immediately, and writes the log start some time later. So after an unclean
        stop, the first epoch can begin after the written log start.
        """
        self._from = log_start if clean or not self._starts else max(log_start, self._starts[0])

    def batch(self, path: str, position: int, header: BatchHeader, recovers: bool) -> Iterator[Finding]:
        """Check the next batch of the log, at `position` in the file `path`."""
        epoch = header.leader_epoch
        if epoch < 0:
            return
        if epoch < self._last:
            yield Finding(path, position, f"leader epoch {epoch} follows epoch {self._last}")
        if epoch > self._last and header.last_offset >= self._from:
            offset = max(header.base_offset, self._from)
            index = bisect_right(self._starts, offset) - 1
            if index < 0 or self._epochs[index] != epoch:
                known = f"epoch {self._epochs[index]}" if index >= 0 else "nothing"
                what = f"leader epoch {epoch} at offset {offset}, where the leader-epoch-checkpoint says {known}"
                yield Finding(path, position, what, recovers and epoch > max(self._epochs, default=-1))
        self._last = max(epoch, self._last)

    def end(self, log_end: int, *, clean: bool) -> Iterator[Finding]:
        """Finish the checks at the end of the log."""
        if self._starts and self._starts[-1] > log_end:
            what = f"epoch {self._epochs[-1]} begins with offset {self._starts[-1]}, behind the log's end {log_end}"
            yield Finding(self._path, None, what, not clean)
