"""Files below a path of one of Hadoop's file systems, through the JVM: HDFS, object stores, views.

Owns the calls into the JVM. A file that is written here appears atomically if the file system's rename is atomic.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable
from typing import Any

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.local_files import Found


class HadoopFiles:
    """Implements LocalFiles through the JVM. `claim` and `write` also raise FileExistsError, and nothing is synced."""

    def __init__(self, session: Any, fs: Any, root: Any) -> None:
        jvm = session._jvm  # noqa: SLF001
        self._fs = fs
        self._root = root
        self._path_class = jvm.org.apache.hadoop.fs.Path
        self._charset = jvm.java.nio.charset.StandardCharsets.UTF_8
        self._io = jvm.org.apache.commons.io.IOUtils
        self._gateway = session.sparkContext._gateway  # noqa: SLF001
        self._overwrite_class = jvm.org.apache.hadoop.fs.Options.Rename
        self._context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(root.toUri(), fs.getConf())

    def exists(self, relative: str) -> bool:
        return bool(self._fs.exists(self._at(relative)))

    def listing(self, relative: str) -> list[Found]:
        found = self._fs.listStatus(self._at(relative))
        return sorted(Found(each.getPath().getName(), each.isDirectory(), each.getLen()) for each in found)

    def read(self, relative: str) -> str:
        stream = self._fs.open(self._at(relative))
        try:
            return str(self._io.toString(stream, self._charset))
        finally:
            stream.close()

    def modified(self, relative: str) -> float:
        return float(self._fs.getFileStatus(self._at(relative)).getModificationTime()) / 1000

    def write(self, relative: str, text: str) -> None:
        target = self._at(relative)
        scratch = self._path_class(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}")
        self._create(scratch, text)
        if self._fs.exists(target) or not self._fs.rename(scratch, target):
            self._fs.delete(scratch, False)
            raise FileExistsError

    def claim(self, relative: str, text: str) -> None:
        self._create(self._at(relative), text)

    def alone(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def sync(self, paths: Iterable[str]) -> None:
        """Do nothing, because Hadoop's other file systems store the data that they accept."""

    def move(self, source: str, target: str) -> None:
        goal = self._at(target)
        self._fs.mkdirs(goal.getParent())
        if not self._fs.rename(self._at(source), goal):
            raise PipelineError(f"cannot move {self._at(source).toString()} to {goal.toString()}")

    def replace(self, source: str, target: str) -> None:
        goal = self._at(target)
        self._fs.mkdirs(goal.getParent())
        options = self._gateway.new_array(self._overwrite_class, 1)
        options[0] = self._overwrite_class.OVERWRITE
        self._context.rename(self._at(source), goal, options)

    def delete(self, relative: str) -> None:
        self._fs.delete(self._at(relative), True)

    def _create(self, path: Any, text: str) -> None:
        try:
            stream = self._fs.create(path, False)
        except Exception as err:
            if self._fs.exists(path):
                raise FileExistsError from err
            raise
        try:
            self._io.write(text, stream, self._charset)
        finally:
            stream.close()

    def _at(self, relative: str) -> Any:
        return self._path_class(self._root, relative) if relative else self._root
