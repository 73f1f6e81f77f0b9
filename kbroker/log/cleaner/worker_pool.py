"""The broker's side of the worker processes.

Owns the settings of compaction. The cleaner reads these settings at each turn, so they may change while it runs. Also
owns the worker processes and their pipes: the number of workers, their start when there is work, and their end when
there is no work. Never blocks the loop: it reads and writes pipes without waiting, and polls for ended processes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from fcntl import fcntl
from typing import Any

from kbroker.config.server_config import BrokerConfig
from kbroker.log.cleaner.job_format import to_line


@dataclass(slots=True)
class CleanerSettings:
    """The `log.cleaner.*` keys of a broker; sizes in bytes, times in ms."""

    enable: bool = True
    threads: int = 1
    """The number of worker processes; each cleans one partition at a time."""
    io_max_bytes_per_second: float = float("inf")
    """The bytes read and written per second by all workers together."""
    dedupe_buffer_size: int = 128 * 1024 * 1024
    """The memory for the tables of keys of all workers together."""
    io_buffer_size: int = 512 * 1024
    """The memory for reading and writing of all workers together."""
    backoff_ms: int = 15_000
    """The wait before the next search if there was no work."""


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    """Return the cleaner's settings from a broker's config."""
    return CleanerSettings(
        enable=config.get_bool("log.cleaner.enable"),
        threads=config.get_int("log.cleaner.threads"),
        io_max_bytes_per_second=config.get_float("log.cleaner.io.max.bytes.per.second"),
        dedupe_buffer_size=config.get_int("log.cleaner.dedupe.buffer.size"),
        io_buffer_size=config.get_int("log.cleaner.io.buffer.size"),
        backoff_ms=config.get_int("log.cleaner.backoff.ms"),
    )


# the directory from which the worker imports this package
_ROOT = os.path.abspath(f"{os.path.dirname(__file__)}/../../..")
_IDLE_MS = 30_000
_PIPE_BYTES = 1 << 20
_SET_PIPE_SIZE = 1031  # Linux's F_SETPIPE_SZ, a name that the fcntl module does not have on every platform

logger = logging.getLogger(__name__)


class WorkerProcess:
    """One worker process. Its creation raises OSError if the process cannot be started."""

    def __init__(self) -> None:
        paths = [_ROOT, os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        # Use large pages for the table of keys: its accesses are random, and large pages save a tenth of the time. C
        # libraries other than glibc ignore the setting.
        environment.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
        # Use a separate session, because the terminal's Ctrl-C is for the broker.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kbroker.log.cleaner.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        for fd in (self._in, self._out):
            os.set_blocking(fd, False)
        with contextlib.suppress(OSError):
            fcntl(self._in, _SET_PIPE_SIZE, _PIPE_BYTES)
        self._unsent = b""
        self._partial = b""
        self._ended = False
        self.idle_since_ms = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: dict[str, Any]) -> None:
        """Send a message now; if the pipe is full, send the rest in later calls of `receive`."""
        self._unsent += to_line(message)
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._in, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._ended = True

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived."""
        self._flush()
        parts = [self._partial]
        try:
            while data := os.read(self._out, 1 << 16):
                parts.append(data)
            self._ended = True
        except BlockingIOError:
            pass
        except OSError:
            self._ended = True
        *lines, self._partial = b"".join(parts).split(b"\n")
        return [json.loads(line) for line in lines]

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended. Some messages may still wait: call `receive` until it returns none."""
        return self._ended or self._process.poll() is not None

    def end(self) -> None:
        """Kill the process and wait for its end. Its state is lost."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class WorkerPool:
    """The workers of a broker, shared by all its log directories."""

    def __init__(self, settings: CleanerSettings | None = None) -> None:
        self.settings = settings or CleanerSettings()
        self._idle: list[WorkerProcess] = []
        self._busy: list[WorkerProcess] = []

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in (*self._busy, *self._idle)]

    @property
    def is_free(self) -> bool:
        return self.settings.enable and len(self._busy) < self.settings.threads

    def share(self, total: float) -> float:
        """Return one worker's share of a total."""
        return total / max(self.settings.threads, 1)

    def acquire(self) -> WorkerProcess:
        """Return a worker that only the caller uses until `release`; start a worker if necessary. Raises OSError."""
        worker = self._idle.pop() if self._idle else WorkerProcess()
        self._busy.append(worker)
        return worker

    def release(self, worker: WorkerProcess, now_ms: int) -> None:
        """Return a worker to the pool; remove it if its process has ended."""
        self._busy.remove(worker)
        if worker.has_ended:
            worker.end()
            return
        worker.idle_since_ms = now_ms
        self._idle.append(worker)

    def discard(self, worker: WorkerProcess) -> None:
        """End a worker during its work."""
        self._busy.remove(worker)
        worker.end()

    def tick(self, now_ms: int) -> None:
        """End workers that have been idle for too long."""
        for worker in [each for each in self._idle if now_ms - each.idle_since_ms >= _IDLE_MS or each.has_ended]:
            self._idle.remove(worker)
            worker.end()

    def close(self) -> None:
        for worker in (*self._busy, *self._idle):
            worker.end()
        self._busy.clear()
        self._idle.clear()
