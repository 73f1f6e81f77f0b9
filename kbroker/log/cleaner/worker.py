"""The process that cleans logs: `python -m kbroker.log.cleaner.worker`, started by the broker.

Owns its two pipes, the throttle, and one job at a time. Never renames the broker's files: it writes `.cleaned` files
beside them. When the broker ends, even if it is killed, the worker's input pipe closes. The worker then exits, even
during a job. The next job or the next start removes the remaining files.

    in    {"clean": CleaningJob, "rate": bytes/s}  {"rate": bytes/s}  {"abort": true}  {"sync": true}
    out   {"group": [bases], "before": bytes, "after": bytes}...
          then {"done": end offset, ...} or {"error": text, "kind": "corrupt" | "io" | "aborted" | "bug"}
          {"synced": true}
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import time
import traceback
from collections import deque
from typing import Any

from kbroker.log.cleaner.cleaning import Cleaning
from kbroker.log.cleaner.job_format import CleaningJob, to_line
from kbroker.protocol.errors import Malformed

UNLIMITED = float("inf")


class Throttle:
    """Computes the waits that limit the bytes to `rate` per second; times are seconds of the caller's clock."""

    __slots__ = ("_due", "_rate")

    def __init__(self, rate: float = UNLIMITED) -> None:
        self.change(rate)

    def change(self, rate: float) -> None:
        """Use another rate from now on. Earlier bytes that exceeded the old rate cause no wait."""
        self._rate = rate
        self._due = 0.0  # the time at which the rate allows further bytes

    def spend(self, size: int, now: float) -> float:
        """Count `size` bytes; return the number of seconds to wait."""
        self._due = max(self._due, now) + size / self._rate
        return self._due - now


_NICENESS = 5  # the broker has precedence; on an idle machine the niceness has no effect


class Aborted(Exception):  # noqa: N818 - an outcome
    """The broker has cancelled the job."""


class Channel:
    """The pipes to the broker."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._partial = b""
        self._lines: deque[bytes] = deque()

    def receive(self, timeout: float | None) -> dict[str, Any] | None:
        """Return the next message; None if no message arrives within `timeout` seconds. Raises EOFError at the end."""
        while not self._lines:
            if not select.select([self._read_fd], [], [], timeout)[0]:
                return None
            data = os.read(self._read_fd, 1 << 16)
            if not data:
                raise EOFError
            *lines, self._partial = (self._partial + data).split(b"\n")
            self._lines.extend(lines)
        message: dict[str, Any] = json.loads(self._lines.popleft())
        return message

    def send(self, **message: object) -> None:
        """Send a message. Raises BrokenPipeError if the broker has ended."""
        data = memoryview(to_line(message))
        while data:
            data = data[os.write(self._write_fd, data) :]


class Worker:
    """Executes the broker's requests until the pipe closes."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._throttle = Throttle()
        self._directory_fd = -1

    def serve(self) -> None:
        """Work until the pipe closes; then raise EOFError."""
        while True:
            message = self._channel.receive(None) or {}
            if "rate" in message:
                self._set_rate(message["rate"])
            if "clean" in message:
                self._clean(CleaningJob.decode(message["clean"]))
            elif "sync" in message:
                self._sync()

    def _set_rate(self, rate: float | None) -> None:
        self._throttle.change(rate or UNLIMITED)

    def _clean(self, job: CleaningJob) -> None:
        started = time.monotonic()
        try:
            self._close_directory()
            self._directory_fd = os.open(job.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            cleaning = Cleaning(job, self._directory_fd, self._spend)
            for bases, before, after in cleaning.run():
                self._channel.send(group=bases, before=before, after=after)
        except Aborted:
            self._channel.send(error="aborted", kind="aborted")
        except Malformed as error:
            self._channel.send(error=str(error), kind="corrupt")
        except OSError as error:
            self._channel.send(error=str(error), kind="io")
        except EOFError:
            raise
        except Exception:  # noqa: BLE001 - reported to the broker, which gives up this log only
            self._channel.send(error=traceback.format_exc(), kind="bug")
        else:
            seconds = time.monotonic() - started
            self._channel.send(
                done=cleaning.end_offset,
                keyless=cleaning.keyless,
                unreadable=cleaning.unreadable,
                unreadable_count=cleaning.unreadable_count,
                read=cleaning.bytes_read,
                seconds=seconds,
            )

    def _spend(self, size: int) -> None:
        """Count bytes read or written. If the rate is exceeded, wait, and process the broker's messages meanwhile."""
        now = time.monotonic()
        until = now + self._throttle.spend(size, now)
        while True:
            message = self._channel.receive(max(until - now, 0))
            if message is not None and "abort" in message:
                raise Aborted
            if message is not None and "rate" in message:
                self._set_rate(message["rate"])
                return
            now = time.monotonic()
            if message is None and now >= until:
                return

    def _sync(self) -> None:
        """Sync the renames in the last job's directory to disk, so that they survive a power loss."""
        try:
            os.fsync(self._directory_fd)
        except OSError as error:
            self._channel.send(error=str(error), kind="io")
        else:
            self._channel.send(synced=True)
        self._close_directory()

    def _close_directory(self) -> None:
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1


def main() -> None:
    """Do the work that the broker requests at the other end of the standard streams."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the broker, which ends this process
    gc.disable()  # there are no cycles, but a collection would visit millions of objects
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    out = os.dup(1)
    os.dup2(2, 1)  # printed text must not appear between the messages
    with contextlib.suppress(EOFError, BrokenPipeError):
        Worker(Channel(0, out)).serve()
    os._exit(0)  # the normal exit would take time to free the table


if __name__ == "__main__":
    main()
