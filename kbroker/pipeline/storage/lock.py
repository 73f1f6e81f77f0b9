"""The lock that allows one writer at a time: a file in an archive that names the writer.

Owns the file `_lock.json`, which contains the owner and the time of the last renewal. Only one of several writers can
create the file, and renewal is atomic. A writer may replace a lock whose owner's process has ended. A writer can check
the process only in the same boot and pid namespace. In all other cases, or if the lock cannot be read, a writer may
replace the lock after minutes without renewal. An owner that has lost its lock detects the loss before it commits the
next change. Never waits for a lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.files import Files

NAME: Final = "_lock.json"
_RENEWED_S: Final = 60.0
_FORGOTTEN_S: Final = 600.0
_PATIENCE_S: Final = 10.0


class WriterLock:
    """A lock on an archive's files, as a context manager. Raises PipelineError if another owner has the lock."""

    def __init__(self, files: Files, now: Callable[[], float] = time.time, renewed_s: float = _RENEWED_S) -> None:
        self._files = files
        self._now = now
        self._renewed_s = renewed_s
        self._token = uuid.uuid4().hex
        self._scratch = f"{NAME}.{self._token}"
        self._ended = threading.Event()
        self._one_at_a_time = threading.Lock()
        self._renewal = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> Self:
        with self._files.alone():
            text = self._read()
            if text is not None:
                self._take_over(text)
            if not self._files.claim(NAME, self._text()) or not self._is_ours():
                raise self._refusal(self._read())
            for each in self._files.listing():
                if each.name.startswith((f"{NAME}.", f".{NAME}.")):  # the lock's owner was killed during a renewal
                    self._files.delete(each.name)
        self._renewal.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_renewal()
        # Ignore errors: the job's result or error matters more, and other writers can replace the lock of an ended
        # process.
        with contextlib.suppress(PipelineError), self._files.alone():
            if self._is_ours():
                self._files.delete(NAME)

    def check(self) -> None:
        """Raise PipelineError if another owner has taken the lock, or if the lock cannot be read."""
        with self._one_at_a_time:
            if not self._is_ours():
                raise PipelineError(f"another job took over writing to {self._files.root}")

    def _is_ours(self) -> bool:
        text = self._read()
        if text is None:
            return False
        owner = decoded(text)
        if owner is None:
            raise PipelineError(f"{self._files.url(NAME)} cannot be read: it does not say who writes there")
        return owner.get("token") == self._token

    def _read(self) -> str | None:
        """Return the lock's text. Return None if there is no lock, and an empty text if it cannot be read."""
        if not self._files.exists(NAME):
            return None
        try:
            return self._files.read(NAME)
        except PipelineError:
            return "" if self._files.exists(NAME) else None

    def _take_over(self, text: str) -> None:
        """Remove the lock of an owner that has ended. Raises PipelineError if the owner may still run."""
        if not self._has_ended(decoded(text)):
            raise self._refusal(text)
        # Several writers may find the same dead owner. One of them replaces the dead owner's lock; the other writers
        # must not remove the new lock.
        self._files.move(NAME, self._scratch)
        found = self._files.read(self._scratch) if text else ""
        if found != text:
            self._files.claim(NAME, found)
            self._files.delete(self._scratch)
            raise self._refusal(found)
        self._files.delete(self._scratch)

    def _refusal(self, text: str | None) -> PipelineError:
        owner = decoded(text or "") or {}
        known = f"process {owner['pid']} on {owner.get('host')}" if "pid" in owner else f"{NAME} does not say which"
        return PipelineError(f"another job writes to {self._files.root} ({known})")

    def _has_ended(self, owner: dict[str, Any] | None) -> bool:
        if owner is not None and all(owner.get(name) == value for name, value in _place().items()):
            return _begun(owner.get("pid")) != owner.get("begun")
        renewed = (owner or {}).get("renewed")
        if not isinstance(renewed, int | float):
            renewed = self._files.modified(NAME)
        return self._now() - renewed > _FORGOTTEN_S

    def _text(self) -> str:
        pid = os.getpid()
        fields = {"token": self._token, **_place(), "pid": pid, "begun": _begun(pid)}
        return json.dumps({**fields, "renewed": self._now()}) + "\n"

    def _renew(self) -> None:
        while not self._ended.wait(self._renewed_s):
            # The next renewal may succeed. If no renewal succeeds, `check` reports this before anything is committed.
            with contextlib.suppress(Exception), self._one_at_a_time:
                self._renew_once()

    def _renew_once(self) -> None:
        with self._files.alone():
            if self._is_ours():
                self._files.delete(self._scratch)
                self._files.write(self._scratch, self._text())
                self._files.replace(self._scratch, NAME)

    def _stop_renewal(self) -> None:
        self._ended.set()
        self._renewal.join(_PATIENCE_S)


def decoded(text: str) -> dict[str, Any] | None:
    """Return a lock's content; None if it is invalid."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


@cache
def _place() -> dict[str, str]:
    """Return the facts that identify this machine's boot and pid namespace, because hosts may share a name."""
    place = {"host": socket.gethostname(), "boot": f"{uuid.getnode():x}", "namespace": ""}
    with contextlib.suppress(OSError):
        place["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        place["namespace"] = os.readlink("/proc/self/ns/pid")
    return place


def _begun(pid: Any) -> str | None:
    """Return a value that distinguishes a process from later processes with its pid.

    Return None if the process is not alive.
    """
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        pass
    except (OSError, ValueError, TypeError):
        return None
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "?"
