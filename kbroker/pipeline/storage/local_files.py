"""Files below a folder of this machine, by plain system calls.

Owns what Hadoop's local file system does not do: a file is replaced in one step, made by one of several who try, and
on the disk with all folders above it when a call returns. Files that are written here have no checksum file beside
them (`.<name>.crc`). Those that Spark wrote keep theirs, and it is moved, synced and deleted with them.
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
_LOOK_S: Final = 0.01
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
            with contextlib.suppress(FileNotFoundError):  # somebody deletes meanwhile
                found.append(Found(path.name, path.is_dir(), path.stat().st_size))
        return sorted(found)

    def read(self, relative: str) -> str:
        return self._at(relative).read_bytes().decode(errors="replace")

    def modified(self, relative: str) -> float:
        """Return when a file was last written, in seconds since 1970."""
        return self._at(relative).stat().st_mtime

    def write(self, relative: str, text: str) -> None:
        """Write a file that appears whole; raises FileExistsError when it is there."""
        if not self._make(relative, text):
            target = self._at(relative)
            if target.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            scratch = self._scratch(target, text)
            os.replace(scratch, target)
            self._sync_folders(target.parent)

    def claim(self, relative: str, text: str) -> None:
        """Write a file as the only one of several who try it; the others get FileExistsError.

        It appears whole where the file system has hard links, and otherwise empty at first.
        """
        if not self._make(relative, text):
            target = self._at(relative)
            _write(target, text)
            self._sync_folders(target.parent)

    def sync(self, paths: Iterable[str]) -> None:
        """Bring files to the disk, with their checksum files and all folders above them."""
        folders = set()
        for relative in paths:
            path = self._at(relative)
            _sync(path)
            with contextlib.suppress(FileNotFoundError):
                _sync(_checksum(path))
            folders.add(path.parent)
        self._sync_folders(*folders)

    def move(self, source: str, target: str) -> None:
        """Give a file its place; its folder is made."""
        here, goal = self._at(source), self._at(target)
        goal.parent.mkdir(parents=True, exist_ok=True)
        _checksum(goal).unlink(missing_ok=True)
        os.rename(here, goal)  # a file without a checksum can be read, one with another's cannot
        with contextlib.suppress(FileNotFoundError):
            os.rename(_checksum(here), _checksum(goal))

    def replace(self, source: str, target: str) -> None:
        """Put a file, which is brought to the disk, in the place of another in one step; the checksum file goes."""
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
            shutil.rmtree(path, onerror=_unless_gone)
        else:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                _checksum(path).unlink(missing_ok=True)
                path.unlink()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others on this machine from being here for a moment, as far as the file system can (flock)."""
        self._root.mkdir(parents=True, exist_ok=True)
        place = os.open(self._root, os.O_RDONLY)
        try:
            give_up = time.monotonic() + _PATIENCE_S
            while not _locked(place) and time.monotonic() < give_up:
                time.sleep(_LOOK_S)
            yield
        finally:
            os.close(place)

    def _make(self, relative: str, text: str) -> bool:
        """Let a file appear whole if it is not there; returns False where there are no hard links."""
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
        """Write what a file is to hold beside it."""
        if not target.exists():
            _checksum(target).unlink(missing_ok=True)  # of an older file of that name
        scratch = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        _write(scratch, text)
        return scratch

    def _sync_folders(self, *folders: Path) -> None:
        """Sync folders up to the root; what is above it once, since somebody may have made that, too."""
        below = {each for folder in folders for each in (folder, *folder.parents) if each.is_relative_to(self._root)}
        for folder in sorted(below, reverse=True):
            _sync(folder)
        if not self._above_is_synced:
            for folder in self._root.parents:
                with contextlib.suppress(OSError):  # not ours to read, and so not ours to have made
                    _sync(folder)
            self._above_is_synced = True

    def _at(self, relative: str) -> Path:
        return self._root / relative if relative else self._root


def _checksum(path: Path) -> Path:
    """Return where Hadoop keeps a file's checksums."""
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
    """Try to lock; True as well where that cannot be done at all."""
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _unless_gone(function: Any, path: str, info: Any) -> None:
    del function, path
    if not isinstance(info[1], FileNotFoundError):
        raise info[1]
