"""A disk that loses at a power loss everything that was not synced: for tests in this process.

Owns a shadow of what is durable. While it watches, an fsync of a file makes the file's current contents durable, and an
fsync of a directory its names. `after_power_loss` writes a directory as a machine would find it: a name that was not
synced is missing (or still there), a file whose contents were not synced is empty, or as it was at its last sync.

That is stricter than most file systems, and what POSIX promises (invariant S12).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class Power:
    """Watches os.fsync and os.fdatasync."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._root_inode = os.stat(root).st_ino
        self._held: list[int] = []
        self.syncs = 0

    @contextmanager
    def watched(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Watch while the block runs."""
        real_fsync, real_fdatasync = os.fsync, os.fdatasync
        with patch.context() as context:

            def fsync(fd: Any) -> None:
                real_fsync(fd)
                self._synced(fd)

            def fdatasync(fd: Any) -> None:
                real_fdatasync(fd)
                self._synced(fd)

            context.setattr(os, "fsync", fsync)
            context.setattr(os, "fdatasync", fdatasync)
            yield
        for fd in self._held:
            os.close(fd)
        self._held.clear()

    def _synced(self, fd: Any) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        path = os.readlink(f"/proc/self/fd/{number}")
        if not path.startswith(self._root):
            return
        self.syncs += 1
        status = os.fstat(number)
        # A number may be reused once its file is gone; files that are held open keep theirs.
        self._held.append(os.dup(number))
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = {entry.name: entry.inode() for entry in os.scandir(f"/proc/self/fd/{number}")}
            for entry in os.scandir(f"/proc/self/fd/{number}"):
                self._held.append(os.open(entry.path, os.O_RDONLY))
        else:
            with open(f"/proc/self/fd/{number}", "rb") as file:
                self._contents[status.st_ino] = file.read()

    def after_power_loss(self, target: Path) -> None:
        """Write the durable state of the disk into `target`."""
        self._lay_out(self._root_inode, target)

    def _lay_out(self, inode: int, target: Path) -> None:
        target.mkdir()
        for name, child in self._names.get(inode, {}).items():
            if child in self._names or self._is_directory(child):
                self._lay_out(child, target / name)
            else:
                (target / name).write_bytes(self._contents.get(child, b""))

    def _is_directory(self, inode: int) -> bool:
        for fd in self._held:
            status = os.fstat(fd)
            if status.st_ino == inode:
                return stat.S_ISDIR(status.st_mode)
        return False
