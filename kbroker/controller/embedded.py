"""The metadata store of a single node: a journal and a snapshot in the data directory.

Owns `__metadata.journal` and `__metadata.snapshot`. Never interprets a value.

    journal    one line a batch: crc32c (8 hex digits), space, JSON [["put", path, value] | ["delete", path], ...]
    snapshot   the same line, with one "load" entry: {path: [version, value]}

A batch is durable (fsync) before `write` returns, or, once `sync_by_thread` was called, before what `stored` returns is
done: the process goes on with it at once, but nobody who asked for the change is told. A batch that is written while
others before it are not on disk yet says so: ["synced", size] tells how much of the journal was.

What a crash of the process leaves is a beginning of the last line, without its newline: it was never acknowledged and
is cut off at the next start. A loss of power may also leave the file's new length without all of its bytes, and then
zeros stand in their place, in any line that was not on disk. JSON in ASCII has no zero byte, so a line with one, behind
which no line says that it was on disk, is torn as well, and all behind it was never acknowledged. Any other complete
but wrong line was acknowledged and is damaged now: the start stops, as cutting it off would silently forget topics.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from kbroker.controller.journal_sync import JournalSync
from kbroker.controller.store import ANY_VERSION, Change, Node, Put, VersionConflict
from kbroker.failpoints import passed
from kbroker.protocol.checksum import crc32c

log = logging.getLogger(__name__)

JOURNAL = "__metadata.journal"
SNAPSHOT = "__metadata.snapshot"
_COMPACT_BYTES = 4 * 1024 * 1024


class CorruptMetadata(Exception):  # noqa: N818
    """The stored metadata cannot be read; the message names the file."""


class EmbeddedStore:
    """A MetadataStore in two files of `directory`."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._nodes: dict[str, Node] = {}
        self._children: dict[str, set[str]] = {}
        self._compact_at = _COMPACT_BYTES
        self._sync: JournalSync | None = None
        self._load_snapshot()
        if self._nodes and not os.path.exists(self._path(JOURNAL)):
            text = "put it back, or an empty file in its place, which gives up all changes since the snapshot"
            raise CorruptMetadata(f"{self._path(JOURNAL)} is missing, although there is {SNAPSHOT}: {text}")
        self._fd = os.open(self._path(JOURNAL), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._size = self._replay_journal()
            os.ftruncate(self._fd, self._size)
            _sync_directory(directory)
        except BaseException:
            self.close()
            raise

    def get(self, path: str) -> Node | None:
        """Return what stands at `path`."""
        return self._nodes.get(path)

    def children(self, path: str) -> list[str]:
        """Return the names directly below `path`, sorted."""
        return sorted(self._children.get(path, ()))

    def sync_by_thread(self, loop: asyncio.AbstractEventLoop, failed: Callable[[OSError], None]) -> None:
        """Let no `write` wait for the disk from now on; `failed` hears that it cannot be written to any more."""
        self._sync = JournalSync(loop, self._fd, self._size, failed)

    def stored(self) -> asyncio.Future[None] | None:
        """Return what is done once all that was written is on disk, None if it is; raises OSError, then or now."""
        return self._sync.waiting() if self._sync is not None else None

    def settle(self) -> None:
        """Wait until all that was written is on disk; raises OSError."""
        if self._sync is not None:
            self._sync.settle()

    def write(self, changes: Sequence[Change]) -> None:
        """Journal and apply `changes`. Raises VersionConflict, or OSError with nothing applied."""
        if self._sync is not None:
            self._sync.check()
        for change in changes:
            if isinstance(change, Put) and change.version != ANY_VERSION:
                node = self._nodes.get(change.path)
                if (node.version if node else 0) != change.version:
                    raise VersionConflict(change.path)
        entries: list[list[Any]] = [
            ["put", c.path, dict(c.value)] if isinstance(c, Put) else ["delete", c.path] for c in changes
        ]
        synced = self._size if self._sync is None else self._sync.size_on_disk(self._size)
        line = _line(entries if synced == self._size else [["synced", synced], *entries])
        try:
            written = os.pwrite(self._fd, line, self._size)
            if written != len(line):
                raise OSError("the metadata journal was written in part")
            passed("journal.written")
            if self._sync is None:
                os.fdatasync(self._fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(line)
        if self._sync is not None:
            self._sync.ask(self._size)
        self._apply(entries)
        if self._size > self._compact_at:
            try:
                self._compact()
            except OSError as err:
                # What was asked for is stored. The journal goes on growing, and is tried again some way further.
                self._compact_at = self._size + _COMPACT_BYTES
                log.error("the metadata journal cannot be compacted: %s", err)

    def close(self) -> None:
        """Close the journal; raises OSError if its end could not be brought to the disk."""
        if self._fd >= 0:
            try:
                if self._sync is not None:
                    self._sync.close()
            finally:
                os.close(self._fd)
                self._fd = -1

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _load_snapshot(self) -> None:
        try:
            with open(self._path(SNAPSHOT), "rb") as file:
                entries = parse_line(file.read().rstrip(b"\n"))
        except FileNotFoundError:
            return
        if entries is None:
            raise CorruptMetadata(f"{self._path(SNAPSHOT)} is damaged")
        for path, (version, value) in entries[0][1].items():
            self._set(path, Node(value, version))

    def _replay_journal(self) -> int:
        """Apply every whole line; return where the next one goes."""
        with open(self._path(JOURNAL), "rb") as file:
            lines = file.read().split(b"\n")
        position = 0
        for i, line in enumerate(lines[:-1]):
            entries = parse_line(line)
            if entries is None:
                if b"\0" not in line or not _never_synced(position, position + len(line) + 1, lines[i + 1 :]):
                    raise CorruptMetadata(f"{self._path(JOURNAL)} is damaged at byte {position}")
                break
            self._apply(entries)
            position += len(line) + 1
        return position

    def _apply(self, entries: list[list[Any]]) -> None:
        for entry in entries:
            if entry[0] == "put":
                old = self._nodes.get(entry[1])
                self._set(entry[1], Node(entry[2], old.version + 1 if old else 1))
            elif entry[0] == "delete":
                self._remove(entry[1])

    def _set(self, path: str, node: Node) -> None:
        self._nodes[path] = node
        while path:
            parent, _, name = path.rpartition("/")
            names = self._children.setdefault(parent, set())
            if name in names:
                break
            names.add(name)
            path = parent

    def _remove(self, path: str) -> None:
        for name in list(self._children.get(path, ())):
            self._remove(f"{path}/{name}")
        self._nodes.pop(path, None)
        self._children.pop(path, None)
        parent, _, name = path.rpartition("/")
        self._children.get(parent, set()).discard(name)

    def _compact(self) -> None:
        """Write a snapshot, then empty the journal; a crash between the two replays the journal onto the snapshot."""
        temporary = self._path(SNAPSHOT + ".tmp")
        with open(temporary, "wb") as file:
            file.write(_line([["load", {p: [n.version, dict(n.value)] for p, n in self._nodes.items()}]]))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path(SNAPSHOT))
        _sync_directory(self._directory)
        passed("journal.compacted")
        os.ftruncate(self._fd, 0)
        self._size = 0  # also if what follows fails: the next line must not stand behind a hole
        self._compact_at = _COMPACT_BYTES
        if self._sync is not None:
            self._sync.emptied()
        os.fdatasync(self._fd)


def _never_synced(torn: int, position: int, lines: list[bytes]) -> bool:
    """Whether no line behind a torn one tells that it was on disk; the first of `lines` begins at `position`.

    A last line without its newline was not whole in any case.
    """
    for line in lines[:-1]:
        entries = parse_line(line)
        if entries is None:
            if b"\0" not in line:
                return False
        elif (entries[0][1] if entries and entries[0][0] == "synced" else position) > torn:
            return False
        position += len(line) + 1
    return True


def _line(entries: list[list[Any]]) -> bytes:
    body = json.dumps(entries, separators=(",", ":"), ensure_ascii=True).encode()
    return b"%08x %s\n" % (crc32c(body), body)


def parse_line(line: bytes) -> list[Any] | None:
    """Return the entries of a line without its newline, None when it is not whole."""
    try:
        if line[8:9] != b" " or int(line[:8], 16) != crc32c(line[9:]):
            return None
        entries: list[Any] = json.loads(line[9:])
    except ValueError:
        return None
    return entries


def _sync_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
