"""Files below one path, with one interface for a local folder, S3 (s3_files.py), and Hadoop's other file systems.

Owns the choice by the path's scheme; `s3://` means Hadoop's `s3a://`. Paths are relative to the root, with `/` between
names. A file that is written here appears atomically if the file system's rename is atomic, or on S3. On a local file
system the file is on the disk when `write` returns.

`require_shared` tests whether a cluster's executors write to the folder that the driver reads. A local folder that is
not shared causes no error in Spark: each executor writes to its own disk, the driver finds nothing, and assumes that
there were no records.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from kbroker.pipeline.errors import PipelineError, first_line
from kbroker.pipeline.storage.hadoop_files import HadoopFiles
from kbroker.pipeline.storage.local_files import Found, LocalFiles
from kbroker.pipeline.storage.s3_files import S3Files

Result = TypeVar("Result")

_PATTERN: Final = frozenset("{}[]*?\\")
"""Characters that Spark's readers treat as a path pattern, but its writers do not."""


def refuse_pattern(root: str) -> None:
    """Raise PipelineError for a path that Spark would read as a pattern."""
    if found := sorted(_PATTERN & set(root)):
        raise PipelineError(f"cannot use {root}: Spark would read {found[0]} in a path as part of a pattern")


def _in_words(method: Callable[..., Result]) -> Callable[..., Result]:
    """Convert a file system's error in a method of Files to a PipelineError with one line of text."""

    @functools.wraps(method)
    def call(self: Files, relative: str = "", *more: Any, **options: Any) -> Result:
        try:
            return method(self, relative, *more, **options)
        except PipelineError:
            raise
        except Exception as err:
            raise PipelineError(f"cannot use {self.url(relative)}: {_reason(err)}") from err

    return call


class Files:
    """The files below `root`, which need not exist yet.

    Raises PipelineError for an unknown file system, or for a name that would be read as a pattern.
    """

    def __init__(self, session: Any, root: str) -> None:
        refuse_pattern(root)
        jvm = session._jvm  # noqa: SLF001 - pyspark has no other access to Hadoop's file systems
        try:
            path = jvm.org.apache.hadoop.fs.Path(f"s3a://{root[5:]}" if root.startswith("s3://") else root)
            fs = path.getFileSystem(session._jsc.hadoopConfiguration())  # noqa: SLF001
            whole = fs.makeQualified(path)
            uri = whole.toUri()
            self._there = _by_scheme(session, fs, whole, uri)
            self._url = str(whole.toString())
        except Exception as err:
            raise PipelineError(f"cannot use {root}: {first_line(err)}") from err
        self.root = root

    def url(self, relative: str = "") -> str:
        """Return the complete path, for Spark to read or write."""
        return f"{self._url.rstrip('/')}/{relative}" if relative else self._url

    @_in_words
    def exists(self, relative: str) -> bool:
        return self._there.exists(relative)

    @_in_words
    def listing(self, relative: str = "") -> list[Found]:
        """Return a folder's content, by name. A missing folder is empty."""
        return self._there.listing(relative) if self._there.exists(relative) else []

    def visible(self) -> list[str]:
        """Return the visible names at the root, which do not begin with `_` or `.`, in order."""
        return [each.name for each in self.listing() if not each.name.startswith(("_", "."))]

    def walk(self, relative: str, *, hidden: bool = False) -> list[Found]:
        """Return all files below a folder, with paths from the root. With `hidden`, include `_` and `.` folders."""
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
        """Return a text file's content. Raises PipelineError if the file cannot be read."""
        try:
            return self._there.read(relative)
        except Exception as err:
            raise PipelineError(f"cannot read {self.url(relative)}: {_reason(err)}") from err

    @_in_words
    def modified(self, relative: str) -> float:
        """Return the time at which a file was last written, in seconds since 1970."""
        return self._there.modified(relative)

    @_in_words
    def write(self, relative: str, text: str) -> None:
        """Write a new text file. Raises PipelineError if the file exists."""
        try:
            self._there.write(relative, text)
        except FileExistsError:
            raise PipelineError(f"{self.url(relative)} was written by somebody else meanwhile") from None

    @_in_words
    def claim(self, relative: str, text: str) -> bool:
        """Write a text file unless it exists. Of several writers, only one gets True."""
        try:
            self._there.claim(relative, text)
        except FileExistsError:
            return False
        return True

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder against other processes on this machine in a `with` block, if the file system has locks."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._there.alone())
            except OSError as err:
                raise PipelineError(f"cannot use {self.url()}: {_reason(err)}") from err
            yield

    @property
    def swaps(self) -> bool:
        """Whether the store supports `tagged` and `swap`, with which no writer replaces another writer's change."""
        return isinstance(self._there, S3Files)

    @_in_words
    def tagged(self, relative: str) -> tuple[str, str] | None:
        """Return a text file's content and its tag. Return None if there is no file.

        Call this only if the store `swaps`.
        """
        assert isinstance(self._there, S3Files)
        return self._there.tagged(relative)

    @_in_words
    def swap(self, relative: str, text: str, tag: str | None) -> str | None:
        """Replace a text file if it still has this tag, or create it if the tag is None. Return the new tag.

        Return None if another writer has replaced the file before. Call this only if the store `swaps`.
        """
        assert isinstance(self._there, S3Files)
        return self._there.swap(relative, text, tag)

    def sync(self, paths: Iterable[str]) -> None:
        """Sync files and their folders to the disk. Do nothing on a file system that is not local."""
        try:
            self._there.sync(paths)
        except OSError as err:
            raise PipelineError(f"cannot bring {err.filename or self.url()} to the disk: {err.strerror}") from err

    @_in_words
    def move(self, source: str, target: str) -> None:
        """Move a file to its place. Create the folder of the place if it is missing."""
        self._there.move(source, target)

    @_in_words
    def replace(self, source: str, target: str) -> None:
        """Replace a file with another file, atomically if the file system can do this."""
        self._there.replace(source, target)

    @_in_words
    def delete(self, relative: str) -> None:
        """Delete a file or a folder with its content, if it exists."""
        self._there.delete(relative)


def _by_scheme(session: Any, fs: Any, root: Any, uri: Any) -> LocalFiles | HadoopFiles:
    if uri.getScheme() == "file":
        return LocalFiles(Path(uri.getPath()))
    return S3Files(session, fs, root) if uri.getScheme() == "s3a" else HadoopFiles(session, fs, root)


def _reason(err: Exception) -> str:
    """Return the reason of a failure, in one line."""
    return (err.strerror if isinstance(err, OSError) else None) or first_line(err)


_TASKS_A_CORE: Final = 2


def require_shared(session: Any, files: Files, folder: str) -> None:
    """Let every core of a cluster write a file to a folder, and check that the driver finds these files.

    Raises PipelineError. The folder is deleted before and afterwards. Without a cluster, or without local paths, there
    is no test.
    """
    context = session.sparkContext
    if context.master.startswith("local") or not files.url().startswith("file:"):
        return
    tasks = _TASKS_A_CORE * max(context.defaultParallelism, 2)
    files.delete(folder)
    try:
        session.range(0, tasks, 1, tasks).selectExpr("cast(id as string)").write.text(files.url(folder))
        found = sum(each.name.rpartition("/")[2].startswith("part-") for each in files.walk(folder, hidden=True))
    except PipelineError:
        raise
    except Exception as err:
        raise PipelineError(f"the executors cannot write to {files.url()}: {first_line(err)}") from err
    finally:
        files.delete(folder)
    if found < tasks:
        raise PipelineError(
            f"{files.root} is a folder of this machine, and the executors write to another folder of that name:"
            " on a cluster, the folder must be shared"
        )
