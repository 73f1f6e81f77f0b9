"""The client of HDFS: the library hdfs-native, which speaks Hadoop's protocols without Java.

Owns the steps of each verb, and the threads that run them. A `put` writes a file with another name, closes it, and
renames it: a rename that must not replace a file is atomic in HDFS. Hadoop's configuration comes from the directory
HADOOP_CONF_DIR, and from the settings. The user is HADOOP_USER_NAME, or the owner of the Kerberos ticket. Never knows
a deadline.

The library has a client of coroutines, too. With release 0.14.7 that client works on the event loop's thread, and
panics if it has to wait before a retry. So the steps run in threads with the other client. A name node that accepts a
request and never answers keeps a thread until the connection ends, so the number of threads is limited, and they do not
keep a process from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from kbroker.extras import how_to_install
from kbroker.remote.object_client import BadNameError, Piece, Source, StoredObject
from kbroker.remote.store_errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreDeniedError,
    StoreError,
    StoreSettingError,
    StoreUnavailableError,
    WrongLengthError,
    first_line,
)

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus

_T = TypeVar("_T")
_THREADS: Final = 32
_STAGED: Final = "#1"
"""The end of the name of a file that is not complete yet. Objects have no such names."""
_LISTED_AT_ONCE: Final = 1000
_DEFAULTS: Final = {
    "dfs.client.failover.max.attempts": "3",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "2000",
    "dfs.client.socket-timeout": "20000",
}
"""Settings that end a call before its usual deadline. Hadoop's own defaults retry for minutes."""
_MEANINGS: Final[Mapping[str, tuple[type[StoreError], str]]] = {
    "FileNotFoundError": (ObjectNotFoundError, "no such object"),
    "FileExistsError": (ObjectExistsError, "the object exists already"),
    "AccessControlException": (StoreDeniedError, "access denied"),
    "SafeModeException": (StoreUnavailableError, "the name node is in safe mode"),
    "StandbyException": (StoreUnavailableError, "no name node is active"),
    "QuotaExceededException": (StoreUnavailableError, "no space left"),
    "Connection refused": (StoreUnavailableError, "cannot reach it"),
}
"""The meaning of names of exceptions, and of texts in their messages."""


def open_hdfs(url: str, settings: Mapping[str, str]) -> HdfsClient:
    """Return the client of a directory hdfs://host:port/path, without any call. Raises StoreSettingError."""
    try:
        from hdfs_native import Client
    except ImportError:
        raise StoreSettingError(f"a store hdfs:// needs the extra hdfs: {how_to_install('hdfs')}") from None
    parts = urlsplit(url)
    try:
        client = Client(f"hdfs://{parts.netloc}", {**_DEFAULTS, **settings})
    except Exception as error:  # noqa: BLE001 - the library has many
        raise StoreSettingError(f"cannot use the store {url}: {first_line(str(error), settings.values())}") from None
    return HdfsClient(client, parts.path.rstrip("/"))


class HdfsClient:
    """The client of one directory. `root` is its path, without a slash at the end."""

    def __init__(self, client: Client, root: str) -> None:
        self._client = client
        self._root = root
        self._places = asyncio.Semaphore(_THREADS)

    async def put(self, name: str, source: Source, size: int) -> None:
        """Write an object. After a failure, remove its incomplete file if HDFS answers."""
        path = self._path(name)
        await self._in_thread(lambda: self._put(path, source, size))

    def _put(self, path: str, source: Source, size: int) -> None:
        from hdfs_native import WriteOptions

        staged = path + _STAGED
        try:
            writer = self._client.create(staged, WriteOptions(overwrite=True, create_parent=True))
            for piece in source:
                writer.write(piece)
            writer.hsync()  # `close` alone leaves the data in the memory of the data nodes
            writer.close()
            written = self._client.get_file_info(staged).length
            if written != size:
                raise WrongLengthError(f"the store has {written} bytes of {size}")
            self._client.rename(staged, path, overwrite=False)
        except Exception:
            with suppress(Exception):
                self._client.delete(staged)
            raise

    async def get(self, name: str, start: int, size: int) -> Piece:
        path = self._path(name)

        def read() -> bytes:
            reader = self._client.read(path)
            if start >= len(reader):  # the library panics on such a range
                raise WrongLengthError("the object ends before the requested range")
            return reader.read_range(start, min(size, len(reader) - start))

        return await self._in_thread(read)

    async def head(self, name: str) -> StoredObject:
        path = self._path(name)
        found = await self._in_thread(lambda: self._client.get_file_info(path))
        if found.isdir:
            raise ObjectNotFoundError("no such object")
        return StoredObject(name, found.length, found.modification_time)

    async def delete(self, name: str) -> None:
        """Delete an object, its incomplete file, and its directories in which it was the last object."""
        path, folders = self._path(name), [self._path(each) for each in _folders(name)]

        def remove() -> None:
            for each in (path + _STAGED, path):  # in this order no late rename brings the object back
                with suppress(FileNotFoundError):
                    self._client.delete(each)
            with suppress(Exception):  # a directory is not empty
                for each in folders:
                    self._client.delete(each)

        await self._in_thread(remove)

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        folder = self._path(prefix.strip("/")) if prefix.strip("/") else self._root or "/"
        found: Iterator[FileStatus] = self._client.list_status(folder, recursive=True)

        def page() -> list[FileStatus]:
            try:
                return list(islice(found, _LISTED_AT_ONCE))
            except FileNotFoundError:  # nobody has written to this folder
                return []

        while listed := await self._in_thread(page):
            yield [
                StoredObject(each.path[len(self._root) :].lstrip("/"), each.length, each.modification_time)
                for each in listed
                if not each.isdir and not each.path.endswith(_STAGED)
            ]

    def _path(self, name: str) -> str:
        if name.endswith(_STAGED) or any(part in ("", ".", "..") for part in name.split("/")):
            raise BadNameError
        return f"{self._root}/{name}"

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        """Return the result of work that runs in a thread. Raises StoreErrors.

        The work continues if this coroutine is cancelled.
        """
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()

        def end(result: Any, error: BaseException | None) -> None:
            self._places.release()
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(_failure(error))

        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001 - the library panics with an exception of its own
                error = raised
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end, result, error)

        try:
            threading.Thread(target=run, name="hdfs", daemon=True).start()
        except RuntimeError:
            self._places.release()
            raise StoreUnavailableError("the system starts no thread") from None
        return await answer


def _folders(name: str) -> list[str]:
    """Return the folders of an object within the store, the innermost first."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _failure(error: BaseException) -> StoreError:
    if isinstance(error, StoreError):
        return error
    text = f"{type(error).__name__}: {error}"
    for part, (found, reason) in _MEANINGS.items():
        if part in text:
            return found(reason)
    return StoreUnavailableError("the store cannot do this now")
