"""A disk for one broker that can be full: a file system in memory, whose size is changed while it is used.

Owns mounting it, which needs the right to do so, and its size. Never reads its contents.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final, Self

ROOMY_BYTES: Final = 4 << 30
"""Only what is written takes memory."""
_TRIES: Final = 1000


class MayNotMount(Exception):  # noqa: N818 - what is the case
    """The user of this process is not allowed to mount file systems here."""


class Disk:
    """The file system of one directory; a context manager that mounts it, empty, and unmounts it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __enter__(self) -> Self:
        """Mount it. Raises MayNotMount."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self._mount(f"size={ROOMY_BYTES}"):
            raise MayNotMount("may not mount a tmpfs here")
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", str(self.directory)], check=True)

    def fill(self) -> None:
        """Leave no free space, except the ends of pages that are already in use."""
        for _ in range(_TRIES):
            found = os.statvfs(self.directory)
            # The kernel refuses if somebody has written meanwhile.
            if self._mount(f"remount,size={(found.f_blocks - found.f_bfree) * found.f_frsize}"):
                return
        raise AssertionError(f"{self.directory} could not be made so small as what lies there")

    def make_room(self) -> None:
        assert self._mount(f"remount,size={ROOMY_BYTES}")

    def _mount(self, options: str) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.directory)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
