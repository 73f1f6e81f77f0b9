"""Opening the partitions of a directory, several at a time where that helps.

Owns which entries of a log directory are partitions, and the threads that open them and whole directories. After an
unclean stop most of the time goes into reading and into the CRC, which both leave the interpreter to other threads;
after a clean stop it goes into neither, and one thread is faster. Never decides what becomes of a log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

# Below this many bytes threads cost more than they give.
WORTH_THREADS: Final = 32 << 20

DELETE_SUFFIX: Final = "-delete"
FUTURE_SUFFIX: Final = "-future"

Key = tuple[str, int]
K = TypeVar("K")
T = TypeVar("T")


class Entries(NamedTuple):
    """What lies in a log directory: paths, with (topic, partition) where the name tells it."""

    partitions: list[tuple[Key, str]]
    futures: list[tuple[Key, str]]
    deleted: list[str]


def entries_of(directory: str) -> Entries:
    """Return the partitions of a directory in the order of their names; raises OSError."""
    found = Entries([], [], [])
    for name in sorted(os.listdir(directory)):
        path = f"{directory}/{name}"
        if not os.path.isdir(path):
            continue
        if name.endswith(DELETE_SUFFIX):
            found.deleted.append(path)
        elif name.endswith(FUTURE_SUFFIX):
            if (key := partition_of(name.rpartition(".")[0])) is not None:
                found.futures.append((key, path))
        elif (key := partition_of(name)) is not None:
            found.partitions.append((key, path))
    return found


def partition_of(name: str) -> Key | None:
    """Return the (topic, partition) that a directory's name stands for, None if it is no partition's."""
    topic, dash, number = name.rpartition("-")
    if not dash or not topic or not number.isascii() or not number.isdigit():
        return None
    with contextlib.suppress(ValueError):
        return topic, int(number)
    return None


def run_all(tasks: Iterable[tuple[K, Callable[[], T]]], threads: int) -> Iterator[tuple[K, T]]:
    """Run named tasks by `threads` threads and yield what they return, in the order of `tasks`.

    Raises what the first of them raises that fails; those that have not begun then are left alone.
    """
    if threads < 2:
        yield from ((name, task()) for name, task in tasks)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="recovery")
    try:
        for name, coming in [(name, pool.submit(task)) for name, task in tasks]:
            yield name, coming.result()
    finally:
        pool.shutdown(cancel_futures=True)
