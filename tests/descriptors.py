"""The file descriptors of this process: those that are open, and a process that has used up all of them."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def open_descriptors(directory: Path) -> list[str]:
    """Return the files below a directory that this process has open. Other threads may close files meanwhile."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if path.startswith(str(directory)):
            found.append(path)
    return found


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Prevent this process from opening files, even if others are closed meanwhile, as other tests' threads may do."""
    with _limit(0):
        yield


@contextmanager
def no_descriptors_but_those_given_up() -> Iterator[None]:
    """Prevent this process from opening more files than it closes from now on."""
    gc.collect()  # or what other tests left would be closed meanwhile
    highest = max(map(int, os.listdir("/dev/fd")))
    # Gaps are filled, so that a released number can be used again.
    held = [os.open(os.devnull, os.O_RDONLY)]
    while held[-1] <= highest:
        held.append(os.open(os.devnull, os.O_RDONLY))
    free = held.pop()
    os.close(free)
    try:
        with _limit(free):
            yield
    finally:
        for each in held:
            os.close(each)


@contextmanager
def _limit(number: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
