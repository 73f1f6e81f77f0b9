"""The metadata store of a single node: a journal and a snapshot in the data directory.

Owns `__metadata.journal`, `__metadata.journal.next` and `__metadata.snapshot`. Never interprets a value.

    journal    one line per batch: crc32c (8 hex digits), space, JSON [["put", path, value] | ["delete", path], ...]
    next       a journal that is written during a snapshot; its first line is ["follows", size], with the size of the
               first journal. It becomes the journal when the snapshot is on disk, and positions continue from there.
    snapshot   the same line, with one "load" entry: {path: [version, value]} (metadata_snapshot.py)

A batch is durable (fsync) before `write` returns. After `sync_by_thread`, a batch is durable when the future of
`stored` is done. The process uses the batch immediately, but answers the requester only when it is durable. If earlier
batches are not on disk yet, a new batch contains ["synced", size]. The size is the number of bytes of both journals
together that were on disk.

A crash of the process may leave a part of the last line, without its newline. Such a line was never acknowledged, and
the next start cuts it off. A power loss may also leave zeros in any line that was not on disk. JSON in ASCII has no
zero byte. So a line with a zero byte is torn as well, if no later line records that it was on disk. No torn line, and
no line after a torn line, was acknowledged. Any other complete but invalid line was acknowledged, and is damaged now.
The start then stops, because the removal of the line would silently lose topics. If the journal is torn, or shorter
than the size in the next journal, data are missing before the next journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from json.encoder import encode_basestring_ascii
from typing import Any

from kbroker.controller.journal_sync import JournalSync
from kbroker.controller.metadata_snapshot import Steps, sync_directory, write_snapshot
from kbroker.controller.store_interface import ANY_VERSION, Change, Node, Put, VersionConflict
from kbroker.failpoints import passed
from kbroker.long_work import for_a_while
from kbroker.protocol.checksum import crc32c

log = logging.getLogger(__name__)

JOURNAL = "__metadata.journal"
NEXT = "__metadata.journal.next"
SNAPSHOT = "__metadata.snapshot"
_MODE = 0o600
"""The file mode of the journals and snapshots, which contain keys of users."""
_COMPACT_BYTES = 4 * 1024 * 1024
_encode = partial(json.dumps, separators=(",", ":"), ensure_ascii=True)
_REMEDY = "move it and {} away, and let `kbroker log adopt` find the topics in their partitions"


class CorruptMetadata(Exception):  # noqa: N818
    """The stored metadata cannot be read; the message names the file."""


class EmbeddedStore:
    """A MetadataStore in the files of `directory`."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._nodes: dict[str, Node] = {}
        self._children: dict[str, set[str]] = {}
        self._compact_at = _COMPACT_BYTES
        self._sync: JournalSync | None = None
        self._compaction: Steps | None = None
        self._left: list[int] = []  # descriptors to close: former journals and their directory
        self._fd = -1
        self._load_snapshot()
        if self._nodes and not os.path.exists(self._path(JOURNAL)):
            text = "put it back, or an empty file in its place, which gives up all changes since the snapshot"
            raise CorruptMetadata(f"{self._path(JOURNAL)} is missing, although there is {SNAPSHOT}: {text}")
        try:
            self._replay()
            sync_directory(directory)
        except BaseException:
            self.close()
            raise

    def get(self, path: str) -> Node | None:
        """Return the node at `path`."""
        return self._nodes.get(path)

    def children(self, path: str) -> list[str]:
        """Return the names directly below `path`, sorted."""
        return sorted(self._children.get(path, ()))

    def nodes(self) -> dict[str, Node]:
        """Return all nodes by path. The result does not change later."""
        return dict(self._nodes)

    @property
    def written_bytes(self) -> int:
        """The number of bytes ever written to journals. It grows with each change."""
        return self._size

    def sync_by_thread(self, loop: asyncio.AbstractEventLoop, failed: Callable[[OSError], None]) -> None:
        """Let `write` return without waiting for the disk.

        `failed` is called when the disk cannot be written any more.
        """
        self._sync = JournalSync(loop, self._fd, self._size, failed)

    def stored(self) -> asyncio.Future[None] | None:
        """Return a future that is done when all writes are on disk; None if they already are.

        Raises OSError, or sets it on the future.
        """
        return self._sync.waiting() if self._sync is not None else None

    def settle(self) -> None:
        """Wait until all writes are on disk. Raises OSError."""
        if self._sync is not None:
            self._sync.settle()

    def write(self, changes: Sequence[Change]) -> None:
        """Write `changes` to the journal and apply them.

        If this raises VersionConflict or OSError, nothing is applied.
        """
        if self._sync is not None:
            self._sync.check()
        for change in changes:
            if isinstance(change, Put) and change.version != ANY_VERSION:
                node = self._nodes.get(change.path)
                if (node.version if node else 0) != change.version:
                    raise VersionConflict(change.path)
        entries: list[list[Any]] = [
            ["put", c.path, c.value] if isinstance(c, Put) else ["delete", c.path] for c in changes
        ]
        synced = self._size if self._sync is None else self._sync.size_on_disk(self._size)
        position = self._size - self._base
        if synced != self._size:
            entries.insert(0, ["synced", synced])
        line = _line(entries)
        try:
            written = os.pwrite(self._fd, line, position)
            if written != len(line):
                raise OSError("the metadata journal was written in part")
            passed("journal.written")
            if self._sync is None:
                os.fdatasync(self._fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, position)
            raise
        self._size += len(line)
        if self._sync is not None:
            self._sync.ask(self._size)
        self._apply(entries)
        if self._size - self._base > self._compact_at and self._compaction is None:
            self._compact()

    def close(self) -> None:
        """Close the journal. Raises OSError if its end could not be synced."""
        if self._fd < 0:
            return
        work, self._compaction = self._compaction, None
        try:
            if self._sync is not None:
                self._sync.close()
        finally:
            if work is not None:
                work.close()
            for fd in (*self._left, self._fd):
                os.close(fd)
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
            raise CorruptMetadata(f"{self._path(SNAPSHOT)} is damaged: {_REMEDY.format(JOURNAL)}")
        for path, (version, value) in entries[0][1].items():
            self._set(path, Node(value, version))

    def _replay(self) -> None:
        """Apply every complete line of both journals, cut off a torn end, and prepare for appending."""
        first = _lines_of(self._path(JOURNAL))
        begin, end = _numbered(first, 0)
        old_base, old_end = (begin[0][0] if begin else 0), end
        self._following = os.path.exists(self._path(NEXT))
        if self._following:
            behind, _ = _numbered(_lines_of(self._path(NEXT)), end)
            begin += behind
        end = old_base
        for i, (position, line) in enumerate(begin):
            entries = parse_line(line) if position == end else None
            if entries is None:
                may_be_torn = position > end or (position == end and b"\0" in line)
                if not may_be_torn or not _never_synced(end, begin[i + (position == end) :]):
                    where = f"{self._path(JOURNAL)} is damaged at byte {end - old_base}"
                    raise CorruptMetadata(f"{where}: {_REMEDY.format(SNAPSHOT)}")
                break
            self._apply(entries)
            end += len(line) + 1
        self._size, self._base = end, old_base
        self._fd = os.open(self._path(JOURNAL), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        with contextlib.suppress(PermissionError):  # The file may have another owner.
            os.fchmod(self._fd, _MODE)  # Earlier versions created the file readable for all.
        os.ftruncate(self._fd, min(end, old_end) - old_base)
        if self._following:
            self._left.append(self._fd)
            os.fdatasync(self._fd)  # sync data that a crash left unsynced: no later sync covers this file
            self._base = min(end, old_end)
            self._fd = os.open(self._path(NEXT), os.O_RDWR | os.O_CLOEXEC)
            os.ftruncate(self._fd, end - self._base)
            if end == self._base:
                self._size += _begin_behind(self._fd, end)
            self._compact_at = 0

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

    # -- compaction

    def _compact(self) -> None:
        """Write a snapshot: immediately, or step by step if `sync_by_thread` was called."""
        self._compaction = self.compacting()
        if self._sync is not None:
            self._sync.loop.call_soon(self._go_on)
            return
        error = None
        while self._compaction is not None:
            waits = self._step(error)
            error = None
            if waits is not None:
                try:
                    waits()
                except OSError as err:
                    error = err

    def _go_on(self, error: BaseException | None = None) -> None:
        """Continue the compaction for one slice of time."""
        sync = self._sync
        if self._compaction is None or sync is None:
            return

        def go_on() -> bool:
            nonlocal error
            waits = self._step(error)
            error = None
            if waits is not None:
                sync.run(waits, self._go_on)
            return waits is None and self._compaction is not None

        if for_a_while(go_on):
            sync.loop.call_soon(self._go_on)

    def _step(self, error: BaseException | None) -> Callable[[], object] | None:
        """Run a step of the compaction; return the function to call before the next step."""
        work = self._compaction
        assert work is not None
        try:
            return work.throw(error) if error is not None else next(work)
        except StopIteration:
            self._compaction = None
            self._compact_at = _COMPACT_BYTES
        except OSError as err:
            # The requested change is stored. The journal keeps growing, and the compaction is retried at a larger size.
            self._compaction = None
            self._compact_at = self._size - self._base + _COMPACT_BYTES
            log.error("the metadata journal cannot be compacted: %s", err)
        return None

    def compacting(self) -> Steps:
        """Write a snapshot of the current nodes, and start a new journal for later writes.

        After a crash the files are the old or the new snapshot with both journals, or the new snapshot with only the
        new journal. A start may apply a batch twice without harm, because it applies all batches in order.
        """
        nodes = dict(self._nodes)
        if not self._following:
            self._follow()
        yield from write_snapshot(self._path(SNAPSHOT), nodes)
        passed("journal.compacted")
        try:
            yield partial(os.fdatasync, self._fd)  # this makes the first line of the new journal durable
        except OSError as error:
            if self._sync is not None:
                self._sync.fail(error)
            raise
        os.replace(self._path(NEXT), self._path(JOURNAL))
        self._following = False
        yield partial(sync_directory, self._directory)
        left, self._left = self._left, []
        if self._sync is not None:
            self._sync.forget_before()
            for fd in left:
                self._sync.run(partial(os.close, fd), lambda _error: None)
        else:
            for fd in left:
                os.close(fd)

    def _follow(self) -> None:
        """Write to a second journal from now on."""
        opened: list[int] = []
        try:
            # Open the directory now. If there are no free descriptors, the compaction is retried here; in the thread,
            # the same error would end the broker.
            names = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
            opened.append(names)
            fd = os.open(self._path(NEXT), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
            opened.append(fd)
            if self._sync is None:
                os.fsync(names)
            # Do this last. If a later step failed, the first journal would continue to grow, and the next journal would
            # follow the middle of the first journal.
            size = _begin_behind(fd, self._size)
            if self._sync is not None:
                self._sync.go_on_in(fd, partial(_sync_file_and_names, self._fd, names))
        except BaseException:
            for each in opened:
                os.close(each)
            raise
        self._left += [self._fd, names]
        self._fd, self._base, self._following = fd, self._size, True
        self._size += size


def _begin_behind(fd: int, size: int) -> int:
    """Write the first line of a journal that follows a journal of `size` bytes; return the line's length.

    Raises OSError.
    """
    line = _line([["follows", size]])
    if os.pwrite(fd, line, 0) != len(line):
        raise OSError("the metadata journal was written in part")
    return len(line)


def _sync_file_and_names(fd: int, directory: int) -> None:
    os.fdatasync(fd)
    os.fsync(directory)


def _lines_of(path: str) -> list[bytes]:
    """Return the complete lines of a journal, which end with a newline."""
    try:
        with open(path, "rb") as file:
            return file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return []


def _numbered(lines: list[bytes], base: int) -> tuple[list[tuple[int, bytes]], int]:
    """Return lines with their positions, and the position at which the last line ends.

    The first line may contain its own position. Otherwise the first line is at `base`.
    """
    first = parse_line(lines[0]) if lines else None
    if first and first[0][0] == "follows":
        base = first[0][1]
    numbered = []
    for line in lines:
        numbered.append((base, line))
        base += len(line) + 1
    return numbered, base


def _never_synced(torn: int, lines: list[tuple[int, bytes]]) -> bool:
    """Whether a torn line was possibly never on disk: no later line records that it was.

    A journal's first line never records this.
    """
    for position, line in lines:
        entries = parse_line(line)
        if entries is None:
            if b"\0" not in line:
                return False
            continue
        kind, value = entries[0][:2] if entries else ("", 0)
        if kind != "follows" and (value if kind == "synced" else position) > torn:
            return False
    return True


def _line(entries: list[list[Any]]) -> bytes:
    body = f"[{','.join(_texts(entries))}]".encode()
    return b"%08x %s\n" % (crc32c(body), body)


def _texts(entries: list[list[Any]]) -> Iterator[str]:
    """Yield the JSON of each entry. A value that many entries share, such as a partition state, is encoded once."""
    known: dict[int, str] = {}
    for entry in entries:
        if entry[0] != "put":
            yield _encode(entry)
            continue
        value = entry[2]
        text = known.get(id(value))
        if text is None:
            text = known[id(value)] = _encode(value)
        yield f'["put",{encode_basestring_ascii(entry[1])},{text}]'


def parse_line(line: bytes) -> list[Any] | None:
    """Return the entries of a line, which is passed without its newline; None if the line is invalid."""
    try:
        if line[8:9] != b" " or int(line[:8], 16) != crc32c(line[9:]):
            return None
        entries: list[Any] = json.loads(line[9:])
    except ValueError:
        return None
    return entries
