"""Files below a folder of this machine, by plain system calls.

Owns operations that Hadoop's local file system lacks. A file is replaced atomically, only one of several writers can
create it, and it is on the disk with all folders above it when a call returns. Files that are written here have no
checksum file (`.<name>.crc`). Spark's files have one, which is moved, synced and deleted with its file.
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
    """The files below `root`, which need not exist yet; raises OSError."""

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
        """Return when a file was last written, in seconds since 1970."""
        return self._at(relative).stat().st_mtime

    def write(self, relative: str, text: str) -> None:
        """Write a file that appears atomically; raises FileExistsError if it exists."""
        if not self._make(relative, text):
            target = self._at(relative)
            if target.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            scratch = self._scratch(target, text)
            os.replace(scratch, target)
            self._sync_folders(target.parent)

    def claim(self, relative: str, text: str) -> None:
        """Write a file that must not exist; of several writers, all but one get FileExistsError.

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
        """Move a file to its place; creates its folder."""
        here, goal = self._at(source), self._at(target)
        goal.parent.mkdir(parents=True, exist_ok=True)
        _checksum(goal).unlink(missing_ok=True)
        os.rename(here, goal)  # a file without a checksum is readable; with another file's checksum it is not
        with contextlib.suppress(FileNotFoundError):
            os.rename(_checksum(here), _checksum(goal))

    def replace(self, source: str, target: str) -> None:
        """Sync a file, and atomically replace another file with it; delete the replaced file's checksum file."""
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
        """Lock the folder against other processes on this machine within the `with`, if the file system has flock."""
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
        """Create a file atomically unless it exists; returns False without hard links."""
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
            _checksum(target).unlink(missing_ok=True)  # of an older file of that name
        scratch = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        _write(scratch, text)
        return scratch

    def _sync_folders(self, *folders: Path) -> None:
        """Sync folders up to the root, and once those above it: another process may have just created them."""
        below = {each for folder in folders for each in (folder, *folder.parents) if each.is_relative_to(self._root)}
        for folder in sorted(below, reverse=True):
            _sync(folder)
        if not self._above_is_synced:
            for folder in self._root.parents:
                with contextlib.suppress(OSError):  # not readable by this user, so this process did not create it
                    _sync(folder)
            self._above_is_synced = True

    def _at(self, relative: str) -> Path:
        return self._root / relative if relative else self._root


def _checksum(path: Path) -> Path:
    """Return the path of Hadoop's checksums for a file."""
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
    """Try to lock; returns True as well if locking is not supported."""
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
