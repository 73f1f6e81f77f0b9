"""Files below one path, through Hadoop's FileSystem: a local folder, HDFS or an object store alike.

Owns the calls into the JVM. Paths are relative to the root, with `/` between names. A file that is written here appears
whole or not at all, as far as the file system's rename does, and is on the disk when `write` returns where the file
system is a local one. (Hadoop's own flushes such a file to the kernel and no further.)
"""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar

from kbroker.pipeline.errors import PipelineError, first_line

Result = TypeVar("Result")

_PATTERN: Final = frozenset("{}[]*?\\")
"""What Spark's readers take for a pattern of paths, and its writers do not."""


def _in_words(method: Callable[..., Result]) -> Callable[..., Result]:
    """Let a method of Files end in one line when the file system refuses."""

    @functools.wraps(method)
    def call(self: Files, relative: str = "", *more: Any, **options: Any) -> Result:
        try:
            return method(self, relative, *more, **options)
        except PipelineError:
            raise
        except Exception as err:
            raise PipelineError(f"cannot use {self.url(relative)}: {first_line(err)}") from err

    return call


class Found(NamedTuple):
    """A file or folder in a listing."""

    name: str
    is_folder: bool
    size: int


class Files:
    """The files below `root`, which need not exist yet.

    Raises PipelineError when its file system is not known, or when its name would be read as a pattern.
    """

    def __init__(self, session: Any, root: str) -> None:
        if found := sorted(_PATTERN & set(root)):
            raise PipelineError(f"cannot use {root}: Spark would read {found[0]} in a path as part of a pattern")
        jvm = session._jvm  # noqa: SLF001 - pyspark has no other way to Hadoop's file systems
        self._path_class = jvm.org.apache.hadoop.fs.Path
        self._charset = jvm.java.nio.charset.StandardCharsets.UTF_8
        self._io = jvm.org.apache.commons.io.IOUtils
        try:
            path = self._path_class(root)
            self._fs = path.getFileSystem(session._jsc.hadoopConfiguration())  # noqa: SLF001
            self._root = self._fs.makeQualified(path)
        except Exception as err:
            raise PipelineError(f"cannot use {root}: {first_line(err)}") from err
        self._gateway = session.sparkContext._gateway  # noqa: SLF001
        self._overwrite_class = jvm.org.apache.hadoop.fs.Options.Rename
        self._context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._root.toUri(), self._fs.getConf())
        self.root = root

    def url(self, relative: str = "") -> str:
        """Return the whole path, for Spark to read or write."""
        return str(self._at(relative).toString())

    @_in_words
    def exists(self, relative: str) -> bool:
        return bool(self._fs.exists(self._at(relative)))

    @_in_words
    def listing(self, relative: str = "") -> list[Found]:
        """Return what a folder holds, by name; nothing for a folder that is not there."""
        if not self.exists(relative):
            return []
        found = self._fs.listStatus(self._at(relative))
        return sorted(Found(each.getPath().getName(), each.isDirectory(), each.getLen()) for each in found)

    def walk(self, relative: str, *, hidden: bool = False) -> list[Found]:
        """Return all files below a folder, named from the root; those behind `_` and `.` only when asked for."""
        files: list[Found] = []
        for entry in self.listing(relative):
            path = f"{relative}/{entry.name}" if relative else entry.name
            if not hidden and entry.name.startswith(("_", ".")):
                continue
            if entry.is_folder:
                files += self.walk(path, hidden=hidden)
            else:
                files.append(Found(path, False, entry.size))
        return files

    def read(self, relative: str) -> str:
        """Return a text file's content; raises PipelineError when it cannot be read."""
        try:
            stream = self._fs.open(self._at(relative))
            try:
                return str(self._io.toString(stream, self._charset))
            finally:
                stream.close()
        except Exception as err:
            raise PipelineError(f"cannot read {self.url(relative)}: {first_line(err)}") from err

    @_in_words
    def write(self, relative: str, text: str) -> None:
        """Write a text file that is not there yet; raises PipelineError when it is."""
        target = self._at(relative)
        scratch = self._path_class(target.getParent(), f".{target.getName()}.{uuid.uuid4().hex}")
        stream = self._fs.create(scratch, False)
        try:
            self._io.write(text, stream, self._charset)
        finally:
            stream.close()
        self._sync_one(scratch)
        if self._fs.exists(target) or not self._fs.rename(scratch, target):
            self._fs.delete(scratch, False)
            raise PipelineError(f"{self.url(relative)} was written by somebody else meanwhile")
        self._sync_one(target.getParent())

    def sync(self, paths: Iterable[str]) -> None:
        """Bring files and the folders that they are in to the disk; nothing on a file system that is not local."""
        folders = set()
        for path in paths:
            self._sync_one(self._at(path))
            folders.add(path.rpartition("/")[0])
        for folder in sorted(folders):
            self._sync_one(self._at(folder))

    @_in_words
    def move(self, source: str, target: str) -> None:
        """Give a file its place; its folder is made."""
        goal = self._at(target)
        self._fs.mkdirs(goal.getParent())
        if not self._fs.rename(self._at(source), goal):
            raise PipelineError(f"cannot move {self.url(source)} to {self.url(target)}")

    @_in_words
    def replace(self, source: str, target: str) -> None:
        """Put a file in the place of another in one step, as far as the file system can."""
        goal = self._at(target)
        self._fs.mkdirs(goal.getParent())
        overwrite = self._overwrite_class.OVERWRITE
        options = self._gateway.new_array(self._overwrite_class, 1)
        options[0] = overwrite
        self._context.rename(self._at(source), goal, options)

    @_in_words
    def delete(self, relative: str) -> None:
        """Delete a file or a folder with all it holds, if it is there."""
        self._fs.delete(self._at(relative), True)

    def _sync_one(self, path: Any) -> None:
        uri = path.toUri()
        if uri.getScheme() != "file":
            return
        try:
            place = os.open(uri.getPath(), os.O_RDONLY)
            try:
                os.fsync(place)
            finally:
                os.close(place)
        except OSError as err:
            raise PipelineError(f"cannot bring {uri.getPath()} to the disk: {err.strerror}") from err

    def _at(self, relative: str) -> Any:
        return self._path_class(self._root, relative) if relative else self._root
