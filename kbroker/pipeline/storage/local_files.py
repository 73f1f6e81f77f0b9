"""Files below a folder of this machine, by plain system calls.

Owns operations that Hadoop's local file system lacks. A file is replaced atomically, and only one of several writers
can create it. When a call returns, the file and all folders above it are on the disk. Files that are written here have
no checksum file (`.<name>.crc`). Spark's files have one, which is moved, synced and deleted with its file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

_PATIENCE_S: Final = 5.0
_CHECK_S: Final = 0.01
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class Found(NamedTuple):
    """A file or folder in a listing."""

    name: str
    is_folder: bool
    size: int


class LocalFiles:
    """The files below `root`, which need not exist yet. Raises OSError."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._above_is_synced = False

    def exists(self, relative: str) -> bool:
        return self._at(relative).exists()

    def listing(self, relative: str) -> list[Found]:
        found = []
        for path in self._at(relative).iterdir():
            if path.name.startswith(".") and path.name.endswith(".crc"):
                continue
            with contextlib.suppress(FileNotFoundError):  # another process may delete it meanwhile
                found.append(Found(path.name, path.is_dir(), path.stat().st_size))
        return sorted(found)

    def read(self, relative: str) -> str:
        return self._at(relative).read_bytes().decode(errors="replace")

    def modified(self, relative: str) -> float:
        """Return the time at which a file was last written, in seconds since 1970."""
        return self._at(relative).stat().st_mtime

    def write(self, relative: str, text: str) -> None:
        """Write a file that appears atomically. Raises FileExistsError if the file exists."""
        if not self._make(relative, text):
            target = self._at(relative)
            if target.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            scratch = self._scratch(target, text)
            os.replace(scratch, target)
            self._sync_folders(target.parent)

    def claim(self, relative: str, text: str) -> None:
        """Write a file that must not exist. Of several writers, all except one get FileExistsError.

        The file appears atomically if the file system has hard links, and otherwise is empty at first.
        """
        if not self._make(relative, text):
            target = self._at(relative)
            _write(target, text)
            self._sync_folders(target.parent)

    def sync(self, paths: Iterable[str]) -> None:
        """Sync files to the disk, with their checksum files and all folders above them."""
        folders = set()
        for relative in paths:
            path = self._at(relative)
            _sync(path)
            with contextlib.suppress(FileNotFoundError):
                _sync(_checksum(path))
            folders.add(path.parent)
        self._sync_folders(*folders)

    def move(self, source: str, target: str) -> None:
        """Move a file to its place. Create the folder of the place if it is missing."""
        here, goal = self._at(source), self._at(target)
        goal.parent.mkdir(parents=True, exist_ok=True)
        _checksum(goal).unlink(missing_ok=True)
        os.rename(here, goal)  # a file is readable without a checksum, but not with another file's checksum
        with contextlib.suppress(FileNotFoundError):
            os.rename(_checksum(here), _checksum(goal))

    def replace(self, source: str, target: str) -> None:
        """Sync a file, and replace another file with it atomically. Delete the replaced file's checksum file."""
        here, goal = self._at(source), self._at(target)
        goal.parent.mkdir(parents=True, exist_ok=True)
        _sync(here)
        _checksum(goal).unlink(missing_ok=True)
        os.replace(here, goal)
        _checksum(here).unlink(missing_ok=True)
        self._sync_folders(goal.parent)

    def delete(self, relative: str) -> None:
        path = self._at(relative)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, onerror=_unless_missing)
        else:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                _checksum(path).unlink(missing_ok=True)
                path.unlink()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder against other processes on this machine in a `with` block, if the file system has flock."""
        self._root.mkdir(parents=True, exist_ok=True)
        place = os.open(self._root, os.O_RDONLY)
        try:
            give_up = time.monotonic() + _PATIENCE_S
            while not _locked(place) and time.monotonic() < give_up:
                time.sleep(_CHECK_S)
            yield
        finally:
            os.close(place)

    def _make(self, relative: str, text: str) -> bool:
        """Create a file atomically unless it exists. Return False if there are no hard links."""
        target = self._at(relative)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._scratch(target, text)
        try:
            os.link(scratch, target)
        except OSError as err:
            if err.errno not in _NO_LINKS:
                raise
            return False
        finally:
            scratch.unlink()
        self._sync_folders(target.parent)
        return True

    def _scratch(self, target: Path, text: str) -> Path:
        """Write a file's content into a temporary file in the same folder."""
        if not target.exists():
            _checksum(target).unlink(missing_ok=True)  # the checksum of an older file with that name
        scratch = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        _write(scratch, text)
        return scratch

    def _sync_folders(self, *folders: Path) -> None:
        """Sync folders up to the root.

        Sync the folders above the root once: another process may just have created them.
        """
        below = {each for folder in folders for each in (folder, *folder.parents) if each.is_relative_to(self._root)}
        for folder in sorted(below, reverse=True):
            _sync(folder)
        if not self._above_is_synced:
            for folder in self._root.parents:
                with contextlib.suppress(OSError):  # this user cannot read the file, so this process did not create it
                    _sync(folder)
            self._above_is_synced = True

    def _at(self, relative: str) -> Path:
        return self._root / relative if relative else self._root


def _checksum(path: Path) -> Path:
    """Return the path of the file with Hadoop's checksums for a file."""
    return path.with_name(f".{path.name}.crc")


def _write(path: Path, text: str) -> None:
    with path.open("xb") as out:
        out.write(text.encode())
        out.flush()
        os.fsync(out.fileno())


def _sync(path: Path) -> None:
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def _locked(place: int) -> bool:
    """Try to lock. Return True also if locking is not supported."""
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _unless_missing(function: Any, path: str, info: Any) -> None:
    del function, path
    if not isinstance(info[1], FileNotFoundError):
        raise info[1]
