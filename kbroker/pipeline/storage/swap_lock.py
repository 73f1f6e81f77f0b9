"""The lock that allows one writer at a time, on a store that can replace a file under a condition, such as S3.

Owns the same file as lock.py, `_lock.json`. This lock does not rename the file, because a store like S3 has no rename.
Each change of the file is conditional on its tag. So if several writers try to replace the lock of a dead owner, only
one succeeds. An owner that was wrongly believed dead cannot renew a lock that now belongs to another owner. The file of
a released lock stays, and records the release.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final, Self

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.files import Files
from kbroker.pipeline.storage.lock import NAME, WriterLock, decoded

_RELEASED: Final = json.dumps({"released": True}) + "\n"


class SwapLock(WriterLock):
    """A lock like WriterLock. The files must be of a store that `swaps`."""

    _tag: str | None = None

    def __enter__(self) -> Self:
        found = self._files.tagged(NAME)
        text, tag = found if found is not None else (None, None)
        owner = decoded(text or "")
        if text is not None and not (owner or {}).get("released") and not self._has_ended(owner):
            raise self._refusal(text)
        self._tag = self._files.swap(NAME, self._text(), tag)
        if self._tag is None:
            raise self._refusal(self._read())
        self._renewal.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_renewal()
        # Ignore errors, as in the base class: the job's result matters more, and other writers can replace the lock of
        # an ended process.
        with contextlib.suppress(PipelineError):
            self._files.swap(NAME, _RELEASED, self._tag)

    def _renew_once(self) -> None:
        tag = self._files.swap(NAME, self._text(), self._tag)
        if tag is None:  # another owner has the lock, or only the answer to the last renewal was lost
            found = self._files.tagged(NAME)
            if found is None or (decoded(found[0]) or {}).get("token") != self._token:
                return
            tag = found[1]
        self._tag = tag


def writer_lock(files: Files, **options: Any) -> WriterLock:
    """Return the kind of lock that suits the store of these files."""
    return SwapLock(files, **options) if files.swaps else WriterLock(files, **options)
