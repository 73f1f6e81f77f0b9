"""One writer at a time: a file in an archive that says who writes there.

Owns the file `_lock.json`: who has it, and when it was last renewed. A lock whose owner's process is gone (on this
host), or that nobody has renewed for minutes (elsewhere), may be taken over. Whoever lost it that way finds out before
the next change is committed. Never waits for a lock.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.files import Files

NAME: Final = "_lock.json"
_RENEWED_S: Final = 60.0
_FORGOTTEN_S: Final = 600.0


class WriterLock:
    """A lock on an archive's files, as a context manager; raises PipelineError when somebody else has it."""

    def __init__(self, files: Files, now: Callable[[], float] = time.time) -> None:
        self._files = files
        self._now = now
        self._token = uuid.uuid4().hex
        self._ended = threading.Event()
        self._renewal = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> Self:
        owner = self._owner()
        if owner is not None:
            if not self._is_gone(owner):
                raise PipelineError(
                    f"another job writes to {self._files.root} (process {owner.get('pid')} on {owner.get('host')})"
                )
            self._files.delete(NAME)
        self._files.write(NAME, self._text())
        for each in self._files.listing():
            if each.name.startswith(f"{NAME}."):  # its owner was killed while it renewed
                self._files.delete(each.name)
        self._renewal.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._renewal.join()
        if self._is_ours():
            self._files.delete(NAME)

    def check(self) -> None:
        """Raise PipelineError if somebody has taken the lock over."""
        if not self._is_ours():
            raise PipelineError(f"another job took over writing to {self._files.root}")

    def _is_ours(self) -> bool:
        owner = self._owner()
        return owner is not None and owner.get("token") == self._token

    def _owner(self) -> dict[str, Any] | None:
        if not self._files.exists(NAME):
            return None
        try:
            found = json.loads(self._files.read(NAME))
        except (ValueError, PipelineError):
            return {}
        return found if isinstance(found, dict) else {}

    def _is_gone(self, owner: dict[str, Any]) -> bool:
        if owner.get("host") == socket.gethostname():
            return _begun(owner.get("pid")) != owner.get("begun")
        return self._now() - float(owner.get("renewed", 0)) > _FORGOTTEN_S

    def _text(self) -> str:
        pid = os.getpid()
        fields = {"token": self._token, "host": socket.gethostname(), "pid": pid, "begun": _begun(pid)}
        return json.dumps({**fields, "renewed": self._now()}) + "\n"

    def _renew(self) -> None:
        while not self._ended.wait(_RENEWED_S):
            if not self._is_ours():
                return
            scratch = f"{NAME}.{self._token}"
            self._files.delete(scratch)
            self._files.write(scratch, self._text())
            self._files.replace(scratch, NAME)


def _begun(pid: Any) -> str | None:
    """Return something that tells a process from later ones with its number; None for one that does not live."""
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
