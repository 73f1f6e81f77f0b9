"""Files of a log directory: their names, their descriptors, and crash-safe writes.

Owns this package's basic operations on the file system. Never interprets the bytes.

A file's name is the segment's base offset as `%020d` and a suffix. `.deleted` is appended to the name of a file that
will be removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Protocol

from kbroker.failpoints import passed
from kbroker.log.open_files import retried

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
HEADERS_SUFFIX = ".headers"
"""The index of headers (header_indexing.py). The file is kbroker's own, and is built again if it is missing."""
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
SCHEDULES = "schedules.sqlite"
"""The file with the pending schedules of a partition of a schedule topic (kbroker/scheduling/index.py)."""
SCHEDULES_FILES = (SCHEDULES, f"{SCHEDULES}-wal", f"{SCHEDULES}-shm", f"{SCHEDULES}-journal")
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def offset_name(directory: str, offset: int, suffix: str) -> str:
    """Return the path of a file of one segment."""
    return f"{directory}/{offset:020d}{suffix}"


def offset_of(name: str) -> int | None:
    """Return the offset in a file's name; None if the name contains no offset."""
    digits = name.split(".", 1)[0]
    return int(digits) if len(digits) == 20 and digits.isdecimal() else None


def open_descriptor(path: str, flags: int) -> int:
    """Open a file. If no descriptor is left, close files of segments, and try again. Raises OSError."""
    return retried(lambda: os.open(path, flags | os.O_CLOEXEC, 0o644))


class OpenFile(Protocol):
    """A readable file. Readers keep the object: after a close, the descriptor's number may belong to another file."""

    @property
    def fd(self) -> int: ...


class FileHandle:
    """An open descriptor that is closed when the last reference to it is removed.

    A slice that is being sent keeps its file readable by a reference to the handle, even if the file is renamed or
    removed.
    """

    __slots__ = ("__weakref__", "fd")

    def __init__(self, path: str, flags: int = os.O_RDWR | os.O_CREAT) -> None:
        self.fd = open_descriptor(path, flags)

    def __del__(self) -> None:
        fd = getattr(self, "fd", -1)
        if fd >= 0:
            self.fd = -1
            with contextlib.suppress(OSError):
                os.close(fd)


def write_all(fd: int, data: bytes, position: int) -> None:
    """Write all of `data` at `position`. Raises OSError if only a part could be written."""
    written = os.pwrite(fd, data, position)
    if written != len(data):
        raise OSError(errno.ENOSPC, f"no space left on the device: wrote {written} of {len(data)} bytes")


def read_at(fd: int, size: int, position: int) -> bytes:
    """Read `size` bytes, or fewer at the end of the file."""
    data = os.pread(fd, size, position)
    if len(data) == size or not data:
        return data
    parts = [data]
    got = len(data)
    while got < size:
        part = os.pread(fd, size - got, position + got)
        if not part:
            break
        parts.append(part)
        got += len(part)
    return b"".join(parts)


def write_atomically(path: str, data: bytes, *, sync: bool = True) -> None:
    """Replace a file so that after a crash it contains either the old or the new content, never a mixture."""
    temporary = path + ".tmp"
    fd = open_descriptor(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(fd, data, 0)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    passed("atomic.written")
    os.replace(temporary, path)
    passed("atomic.renamed")
    if sync:
        sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Sync a directory, so that creations, renames and removals in it survive a power loss."""
    sync_file(path, os.O_DIRECTORY)


def sync_file(path: str, flags: int = 0) -> None:
    """Sync a file, so that its content survives a power loss."""
    fd = open_descriptor(path, os.O_RDONLY | flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_optional(path: str) -> bytes | None:
    """Return a file's content; None if it does not exist."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def remove_quietly(path: str) -> None:
    """Remove a file if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
