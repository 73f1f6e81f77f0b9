"""The form in which an archive is stored at a path, and the object (`Place`) that reads and writes it there.

Owns the recognition of a form by its files. Never reads records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kbroker.pipeline.archive.place import Place
from kbroker.pipeline.archive.store import FORMAT, MANIFEST, Store
from kbroker.pipeline.archive.tables.delta import LOG, DeltaTable
from kbroker.pipeline.archive.tables.iceberg import HINT, IcebergTable
from kbroker.pipeline.archive.tables.table import TableStore
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.files import Files

FORMATS: Final = (FORMAT, "iceberg", "delta")
_SIGNS: Final = {FORMAT: MANIFEST, "iceberg": HINT, "delta": LOG}


def kind_at(exists: Callable[[str], bool]) -> str | None:
    """Return the format of an archive, or None without an archive. `exists` returns whether a file or folder exists."""
    return next((kind for kind, sign in _SIGNS.items() if exists(sign)), None)


def new_place(session: Any, root: str, file_format: str) -> Place:
    """Return the place of an archive that a job continues or begins. Raises PipelineError for another format."""
    files = Files(session, root)
    kind = kind_at(files.exists)
    if kind not in (None, file_format):
        raise PipelineError(f"{root} is in the format {kind}: archive with --format {kind}, or to another place")
    return _place(session, files, file_format)


def open_place(session: Any, root: str) -> Place:
    """Return the place of an archive that exists; otherwise its methods raise PipelineError."""
    files = Files(session, root)
    return _place(session, files, kind_at(files.exists) or FORMAT)


def _place(session: Any, files: Files, file_format: str) -> Place:
    if file_format == "iceberg":
        return TableStore(session, files, IcebergTable(session, files.url()))
    if file_format == "delta":
        return TableStore(session, files, DeltaTable(session, files))
    return Store(session, files.root)
