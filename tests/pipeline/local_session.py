"""The part of a SparkSession that files of this machine need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kbroker.pipeline.storage.files import Files


class _Path:
    """Hadoop's Path, its FileSystem and its URI, all for `file:`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def getFileSystem(self, conf: Any) -> _Path:  # noqa: N802 - Hadoop's names
        del conf
        return self

    def makeQualified(self, path: _Path) -> _Path:  # noqa: N802
        return path

    def toUri(self) -> _Path:  # noqa: N802
        return self

    def getScheme(self) -> str:  # noqa: N802
        return "file"

    def getPath(self) -> str:  # noqa: N802
        return self._path

    def toString(self) -> str:  # noqa: N802
        return f"file:{self._path}"


class LocalSession:
    """A session without a JVM."""

    def __init__(self) -> None:
        self._jvm = self._jsc = self.org = self.apache = self.hadoop = self.fs = self
        self.Path = _Path

    def hadoopConfiguration(self) -> None:  # noqa: N802
        return None


def local_files(folder: Path) -> Files:
    """Return the files below a folder of this machine."""
    return Files(LocalSession(), str(folder))
