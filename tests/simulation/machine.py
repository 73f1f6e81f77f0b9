"""What the brokers use of the machine and of Python: time, randomness, threads, files; here all of it from one seed.

Owns the replacements of a few functions of the standard library. `install` must run before any module of kbroker is
imported, in a process that does nothing else. Never knows a broker: the running process is in `LIFE`.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread
import contextvars
import errno
import os
import random
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Self

LIFE: contextvars.ContextVar[Any] = contextvars.ContextVar("life", default=None)
"""The process in which the running callback was scheduled; None: the world itself."""

START_S = 1_700_000_000
_TICK = 0.000_02
"""Seconds that seem to pass at each measurement of a duration, so that work is divided as in reality."""

_pwrite, _pwritev, _fallocate, _sendfile = os.pwrite, os.pwritev, os.posix_fallocate, os.sendfile
_scandir, _listdir, _replace, _rename = os.scandir, os.listdir, os.replace, os.rename
_Random = random.Random


class Machine:
    """The state of the replacements; there is one in each process."""

    def __init__(self) -> None:
        self.loop: Any = None
        self.random = _Random(0)
        self.looks = 0
        self.synced: dict[str, int] = {}
        """By path: how many bytes of a file were synced."""

    def begin(self, loop: Any, seed: int) -> None:
        """Begin a new world."""
        self.loop, self.looks = loop, 0
        self.synced.clear()
        self.random = _Random(f"machine {seed}")
        random.seed(f"everybody {seed}")

    def now(self) -> float:
        return 0.0 if self.loop is None else float(self.loop.time())

    def random_bytes(self, size: int) -> bytes:
        return self.random.randbytes(size)

    def sync(self, file: Any) -> None:
        number = file if isinstance(file, int) else file.fileno()
        status = os.fstat(number)
        if stat.S_ISREG(status.st_mode):
            self.synced[os.readlink(f"/proc/self/fd/{number}")] = status.st_size

    def renamed(self, source: Any, target: Any) -> None:
        known = self.synced.pop(str(source), None)
        if known is None:
            self.synced.pop(str(target), None)
        else:
            self.synced[str(target)] = known

    def lose_power(self, directory: str) -> int:
        """Truncate files that nobody has open to their synced bytes; return how many files lose something.

        Names stay, and so do overwritten bytes: a disk may have either version of them.
        """
        count = 0
        for where, _, names in os.walk(directory):
            for name in names:
                path = f"{where}/{name}"
                size = os.stat(path).st_size
                if size > self.synced.get(path, 0):
                    os.truncate(path, self.synced.get(path, 0))
                    count += 1
        return count

    def measured(self) -> float:
        self.looks += 1
        return self.now() + self.looks * _TICK


machine = Machine()


class Fd(int):
    """The number of a simulated socket."""


class _Seeded(_Random):
    def __init__(self, x: Any = None) -> None:
        super().__init__(machine.random.getrandbits(64) if x is None else x)


class _Job(concurrent.futures.Future):  # type: ignore[type-arg]
    """Work of a thread: it is done in a later step of the loop, or immediately by a caller that waits for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work: Callable[[], Any] | None = work

    def run(self) -> None:
        work, self._work = self._work, None
        if work is None or not self.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - as a thread does
            self.set_exception(error)
        else:
            self.set_result(result)

    def result(self, timeout: float | None = None) -> Any:
        self.run()
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.run()
        return super().exception(0)


class Threads(concurrent.futures.Executor):
    """A ThreadPoolExecutor without threads: it runs one job after the other, some moments after it was submitted."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self._jobs: deque[_Job] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        job = _Job(lambda: fn(*args, **kwargs))
        loop = machine.loop
        if loop is None or not loop.is_running():
            job.run()
            return job
        self._jobs.append(job)
        loop.call_later(machine.random.expovariate(1 / 0.002), self._next)
        return job

    def _next(self) -> None:
        if self._jobs:
            self._jobs.popleft().run()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while self._jobs:
            job = self._jobs.popleft()
            if cancel_futures:
                job.cancel()
            elif wait:
                job.run()


class _Entries:
    """The result of os.scandir, ordered by name."""

    def __init__(self, path: Any) -> None:
        with _scandir(path) as found:
            self._entries = iter(sorted(found, key=lambda entry: entry.name))

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


def _room(size: int) -> int:
    """Return how many of `size` bytes the disk of the running process accepts. Raises OSError."""
    life = LIFE.get()
    if life is None or life.room is None:
        return size
    if life.room <= 0:
        life.refused_writes += 1
        raise OSError(errno.ENOSPC, "No space left on device")
    taken = min(size, life.room)
    life.room -= taken
    return int(taken)


def _write(fd: int, data: Any, position: int) -> int:
    size = len(data)
    room = _room(size)
    return _pwrite(fd, data if room == size else memoryview(data)[:room], position)


def _write_several(fd: int, buffers: Any, position: int, *flags: int) -> int:
    size = sum(map(len, buffers))
    room = _room(size)
    return _pwritev(fd, buffers, position, *flags) if room == size else _pwrite(fd, b"".join(buffers)[:room], position)


def _allocate(fd: int, offset: int, length: int) -> None:
    _room(0)
    _fallocate(fd, offset, length)


def _send_file(out: int, source: int, offset: int, count: int, *rest: Any) -> int:
    if not isinstance(out, Fd):
        return _sendfile(out, source, offset, count, *rest)
    data = os.pread(source, count, offset)
    return int(machine.loop.network.sockets[out].send(data)) if data else 0


def _replaced(source: Any, target: Any, **more: Any) -> None:
    _replace(source, target, **more)
    machine.renamed(source, target)


def _renamed(source: Any, target: Any, **more: Any) -> None:
    _rename(source, target, **more)
    machine.renamed(source, target)


def install() -> None:
    """Install the replacements."""
    time.time = lambda: START_S + machine.now()
    time.time_ns = lambda: int((START_S + machine.now()) * 1_000_000_000)
    time.monotonic = machine.now
    time.monotonic_ns = lambda: int(machine.now() * 1_000_000_000)
    time.perf_counter = machine.measured
    time.perf_counter_ns = lambda: int(machine.measured() * 1_000_000_000)
    time.process_time = machine.now
    random.Random = _Seeded  # type: ignore[misc]
    concurrent.futures.ThreadPoolExecutor = Threads  # type: ignore[misc,assignment]
    concurrent.futures.thread.ThreadPoolExecutor = Threads  # type: ignore[misc,assignment]
    os.urandom = machine.random_bytes
    os.fsync = machine.sync
    os.fdatasync = machine.sync
    os.replace = _replaced
    os.rename = _renamed
    os.scandir = _Entries  # type: ignore[misc,assignment]
    os.listdir = lambda path=".": sorted(_listdir(path))  # type: ignore[misc,assignment]
    os.pwrite = _write
    os.pwritev = _write_several
    os.posix_fallocate = _allocate
    os.sendfile = _send_file  # type: ignore[assignment]
