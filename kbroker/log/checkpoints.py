"""The small text files of a log directory and of a partition.

Owns their formats, and the order of writes to a file: the last requested write wins. Never decides when to write. An
unreadable file counts as absent, as in Kafka: the content only saves work, or recovery can derive it again.

    *-offset-checkpoint       0 / count / `topic partition offset` per line
    leader-epoch-checkpoint   0 / count / `epoch start_offset` per line
    partition.metadata        version: 0 / topic_id: <base64 UUID>
    .kafka_cleanshutdown      {"version":0,"brokerEpoch":n}
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future

from kbroker.log.files import read_optional, write_atomically
from kbroker.protocol.wire import parse_uuid, uuid_text

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

Offsets = Mapping[tuple[str, int], int]

logger = logging.getLogger(__name__)


def entries_in(text: str) -> list[str]:
    """Return the entry lines of a checkpoint's text. Raises ValueError for an invalid text."""
    lines = text.split("\n")
    if lines[0] != "0":
        raise ValueError(f"version {lines[0][:20]!r} is not 0")
    if lines[-1] == "":
        lines.pop()
    if len(lines) < 2 or not lines[1].isascii() or not lines[1].isdigit():
        raise ValueError("the second line is not a number of entries")
    if len(lines) - 2 != int(lines[1][:20]):
        raise ValueError(f"{len(lines) - 2} entries, but the second line says {lines[1][:20]}")
    return lines[2:]


def _read_lines(path: str) -> list[list[str]]:
    """Return the entries, split at spaces; return an empty list if the file is absent or not of version 0."""
    content = read_optional(path)
    try:
        return [] if content is None else [line.split(" ") for line in entries_in(content.decode())]
    except ValueError as error:
        logger.warning("%s cannot be read and is ignored: %s", path, error)
        return []


def write_lines(path: str, lines: list[str], *, sync: bool = True) -> None:
    """Write entries to a checkpoint file."""
    write_atomically(path, "\n".join(["0", str(len(lines)), *lines, ""]).encode(), sync=sync)


def read_offsets(path: str) -> dict[tuple[str, int], int]:
    """Read the offset of each (topic, partition); skip invalid entries."""
    offsets = {}
    for entry in _read_lines(path):
        try:
            topic, partition, offset = entry
            if int(offset) >= 0:
                offsets[topic, int(partition)] = int(offset)
        except ValueError:
            logger.warning("%s has a broken entry: %s", path, " ".join(entry))
    return offsets


def is_whole(path: str, offsets: Offsets) -> bool:
    """Whether `offsets`, which were read from the file, contain all of the file's entries. True for an absent file."""
    content = read_optional(path)
    return content is None or content.split(b"\n")[:2] == [b"0", b"%d" % len(offsets)]


def write_offsets(path: str, offsets: Offsets, *, sync: bool = True) -> None:
    """Write the offset of each (topic, partition)."""
    write_lines(path, [offset_line(key, offset) for key, offset in offsets.items()], sync=sync)


def offset_line(key: tuple[str, int], offset: int) -> str:
    """Return the entry of one partition."""
    return f"{key[0]} {key[1]} {offset}"


def read_epochs(path: str) -> list[tuple[int, int]]:
    """Read (epoch, start offset) pairs; an empty list if any entry is invalid."""
    try:
        return [(int(epoch), int(start)) for epoch, start in _read_lines(path)]
    except ValueError as error:
        logger.warning("%s cannot be read and is ignored: %s", path, error)
        return []


def write_epochs(path: str, epochs: Iterable[tuple[int, int]], *, sync: bool = True) -> None:
    """Write (epoch, start offset) pairs."""
    write_lines(path, [f"{epoch} {start}" for epoch, start in epochs], sync=sync)


def read_topic_id(directory: str) -> uuid.UUID | None:
    """Read a partition's topic id; None if the file is absent or broken."""
    content = read_optional(f"{directory}/{PARTITION_METADATA}")
    if content is None:
        return None
    try:
        fields = dict(line.split(": ", 1) for line in content.decode().splitlines() if line)
        return uuid.UUID(bytes=parse_uuid(fields["topic_id"]))
    except (ValueError, KeyError) as error:
        logger.warning("%s/%s cannot be read: %s", directory, PARTITION_METADATA, error)
        return None


def write_topic_id(directory: str, topic_id: uuid.UUID) -> None:
    """Write a partition's topic id without fsync: if it is lost, it is written again from the cluster's metadata."""
    text = f"version: 0\ntopic_id: {uuid_text(topic_id.bytes)}"
    write_atomically(f"{directory}/{PARTITION_METADATA}", text.encode(), sync=False)


def write_clean_shutdown(directory: str, broker_epoch: int) -> None:
    """Write the mark of a clean stop: all data in the directory has been flushed."""
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_atomically(f"{directory}/{CLEAN_SHUTDOWN}", content.encode())


class CheckpointFile:
    """One `*-offset-checkpoint` file, written by the caller or by a thread.

    An fsync of even a small file may wait for all recent writes of clients, so the event loop never writes the periodic
    checkpoints itself.
    """

    __slots__ = ("_asked", "_lock", "_pending", "_written", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._asked = 0
        self._written = 0
        self._pending: Future[None] | None = None

    def write(self, offsets: Offsets, *, sync: bool = True) -> None:
        """Write immediately, after any running write. Raises OSError if this fails.

        Without `sync`, the content survives a crash of the process, but not a power loss.
        """
        self._asked += 1
        self.put(self._asked, [offset_line(key, offset) for key, offset in offsets.items()], sync=sync)

    @property
    def is_busy(self) -> bool:
        """Whether a thread has not yet finished the last requested write."""
        return self._pending is not None and not self._pending.done()

    def begin(self) -> int:
        """Return the number of a new write whose entries the caller collects from now on, in pieces.

        If another write is done in the meantime, the other write counts as newer, and this write is skipped. An entry
        that was collected earlier may belong to a partition that has been deleted and created again.
        """
        self._asked += 1
        return self._asked

    def write_by(self, pool: Executor, lines: list[str], number: int | None = None) -> Future[None]:
        """Write entries on a thread. Raises the OSError of the previous write. `number` is from `begin`."""
        pending, self._pending = self._pending, None
        if pending is not None and pending.done():
            pending.result()
        self._pending = pool.submit(self.put, self.begin() if number is None else number, lines)
        return self._pending

    def put(self, number: int, lines: list[str], *, sync: bool = True) -> None:
        """Write entries, on any thread, if no write with a higher number has been done. Raises OSError on failure."""
        with self._lock:
            if number > self._written:
                write_lines(self.path, lines, sync=sync)
                self._written = number
