"""Objects in a remote store, behind five verbs: put, get, delete, list, head.

Owns the deadline of each call, and the small set of exceptions. Never retries beyond what the client does within a
deadline, and never knows what an object contains: object_format.py does. The library obstore works on its own threads,
so that the event loop stays free. These threads also read the data that a `put` sends.

The coroutines need no current task (kbroker/long_work.py), so that a request's handler can also await them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kbroker.remote.store_address import open_client
from kbroker.remote.store_errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreTooSlowError,
    WrongLengthError,
    classified,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_T = TypeVar("_T")
Piece = bytes | bytearray | memoryview

PART_BYTES: Final = 8 << 20
"""The size of the parts in which a large object is sent. An object of at most one part is sent by one request."""
_PARTS_AT_ONCE: Final = 2
_LISTED_AT_ONCE: Final = 1000
_ABORT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a store: its name, its size in bytes, and the time of its write in milliseconds since 1970."""

    name: str
    size: int
    modified_ms: int


class Store:
    """One store of objects, opened by `open_store`."""

    def __init__(self, url: str, client: ObjectStore, deadline_s: float) -> None:
        self.url = url
        self._client = client
        self._deadline_s = deadline_s
        self._abandoned: set[asyncio.Future[Any]] = set()

    async def close(self) -> None:
        """Wait, for at most two seconds, until the store has dropped the parts of abandoned objects.

        Call this method before the event loop ends, after all other calls have ended.
        """
        if self._abandoned:
            await asyncio.wait(self._abandoned, timeout=_ABORT_S)

    def abandon(self, request: asyncio.Future[Any]) -> None:
        """Let a request continue for at most two seconds, although no caller waits for it any more."""
        timer = asyncio.get_running_loop().call_later(_ABORT_S, request.cancel)
        self._abandoned.add(request)
        request.add_done_callback(lambda _: timer.cancel())
        request.add_done_callback(self._abandoned.discard)

    async def put(self, name: str, pieces: Iterable[Piece], size: int, *, deadline_s: float | None = None) -> None:
        """Write an object of `size` bytes, or fail.

        No reader ever sees a part of the object. Another thread iterates over `pieces`. Raises ObjectExistsError,
        WrongLengthError if the pieces or the stored object have another size, and other StoreErrors. Also raises the
        errors of the iterator. Up to 8 MiB, the store itself refuses to replace an existing object. A larger object is
        sent in parts. Stores have no such condition for parts, so this method itself checks beforehand. After the
        deadline, this method requests the store to drop the parts, for at most two seconds. Parts can remain in a store
        that does not answer. A lifecycle rule of the bucket should delete them.
        """
        import obstore

        within = self._deadline_s if deadline_s is None else deadline_s
        source = _Source(pieces, size)
        call = _Call(self, "put", name, within, source)
        if size <= PART_BYTES:
            await call.result(lambda: obstore.put_async(self._client, name, source, mode="create", use_multipart=False))
            return
        with suppress(ObjectNotFoundError):
            await call.result(lambda: obstore.head_async(self._client, name))
            raise ObjectExistsError(call.says("the object exists already"))
        await call.result(
            lambda: obstore.put_async(
                self._client, name, source, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )
        )
        found = await call.result(lambda: obstore.head_async(self._client, name))
        if found["size"] != size:
            raise WrongLengthError(call.says(f"the store has {found['size']} bytes of {size}"))

    async def get(self, name: str, start: int, size: int, *, deadline_s: float | None = None) -> memoryview:
        """Return `size` bytes of an object from `start` on. Raises WrongLengthError if the object has fewer bytes."""
        import obstore

        call = _Call(self, "get", name, self._deadline_s if deadline_s is None else deadline_s)
        if size <= 0 or start < 0:
            raise ValueError(f"a range of {size} bytes from {start}")
        data = memoryview(
            await call.result(lambda: obstore.get_range_async(self._client, name, start=start, length=size))
        )
        if len(data) != size:
            raise WrongLengthError(call.says(f"{len(data)} bytes instead of {size} from {start}"))
        return data

    async def delete(self, name: str, *, deadline_s: float | None = None) -> None:
        """Delete an object. A missing object is no error.

        In a directory, also remove the incomplete files of a process that ended while it wrote the object.
        """
        import obstore

        call = _Call(self, "delete", name, self._deadline_s if deadline_s is None else deadline_s)
        with suppress(ObjectNotFoundError):
            await call.result(lambda: obstore.delete_async(self._client, name))
        if self.url.startswith("file://"):
            path = f"{self.url.removeprefix('file://').rstrip('/')}/{name}"
            await asyncio.get_running_loop().run_in_executor(None, _remove_staged, path)

    def make_private(self, folder: str) -> None:
        """In a directory, make sure of a folder that only its owner can open. Raises OSError."""
        if self.url.startswith("file://"):
            path = f"{self.url.removeprefix('file://').rstrip('/')}/{folder}"
            os.makedirs(path, exist_ok=True)
            os.chmod(path, 0o700)

    async def head(self, name: str, *, deadline_s: float | None = None) -> StoredObject:
        """Return the store's facts about an object. Raises ObjectNotFoundError."""
        import obstore

        call = _Call(self, "head", name, self._deadline_s if deadline_s is None else deadline_s)
        found = await call.result(lambda: obstore.head_async(self._client, name))
        return StoredObject(name, found["size"], int(found["last_modified"].timestamp() * 1000))

    async def list(self, prefix: str, *, deadline_s: float | None = None) -> AsyncIterator[StoredObject]:
        """Yield the objects in a folder, and in those below it, in no order.

        Each thousand objects have a deadline of their own. The prefix ends at a slash: `a/b` means the objects in the
        folder b, not the object `a/bc`.
        """
        import obstore

        within = self._deadline_s if deadline_s is None else deadline_s
        pages = obstore.list(self._client, prefix, chunk_size=_LISTED_AT_ONCE)
        while True:
            page = await _Call(self, "list", prefix, within).result(lambda: _next_page(pages))
            if page is None:
                return
            for each in page:
                yield StoredObject(each["path"], each["size"], int(each["last_modified"].timestamp() * 1000))


def open_store(url: str, settings: Mapping[str, str] | None = None, *, deadline_s: float = 30.0) -> Store:
    """Return the store at an address, without any call. `deadline_s` applies to calls without their own deadline.

    Raises StoreSettingError: see store_address.py for addresses and settings.
    """
    return Store(url, open_client(url, settings or {}), deadline_s)


def _remove_staged(path: str) -> None:
    """Remove the temporary files of an object in a directory.

    The library obstore writes these files before it gives them the object's name.
    """
    with suppress(OSError):
        for number in count(1):
            os.remove(f"{path}#{number}")


async def _next_page(pages: Any) -> Any:
    try:
        return await anext(pages)
    except StopAsyncIteration:
        return None


class _Abandoned(Exception):  # noqa: N818 - nobody sees it
    """Stops sending an object for which no caller waits any more, so that the store drops the parts."""


class _Source:
    """The data that a `put` sends.

    Another thread iterates over the data; the event loop can stop that thread between two pieces.
    """

    def __init__(self, pieces: Iterable[Piece], size: int) -> None:
        self._pieces = pieces
        self._size = size
        self._stopped = False
        self.error: Exception | None = None

    def stop(self) -> None:
        self._stopped = True

    def __iter__(self) -> Iterator[Piece]:
        try:
            yield from self._counted()
        except Exception as error:
            self.error = error
            raise

    def _counted(self) -> Iterator[Piece]:
        sent = 0
        for piece in self._pieces:
            if self._stopped:
                raise _Abandoned
            sent += len(piece)
            if sent > self._size:
                break
            if piece:
                yield piece
        if sent != self._size:
            raise WrongLengthError(f"an object of {self._size} bytes has pieces of {sent} bytes or more")


class _Call:
    """One call of a store: its deadline, and the texts of its errors. A call may need several requests."""

    def __init__(self, store: Store, verb: str, name: str, deadline_s: float, source: _Source | None = None) -> None:
        self._store = store
        self._what = f"{verb} of {name} in {store.url}"
        self._loop = asyncio.get_running_loop()
        self._deadline_s = deadline_s
        self._ends = self._loop.time() + deadline_s
        self._source = source
        self._expired = False

    def says(self, reason: str) -> str:
        return f"{self._what}: {reason}"

    async def result(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of a request. Raises StoreErrors, and the error of the source."""
        try:
            future = asyncio.ensure_future(request())
        except ValueError:
            raise ValueError(self.says("no object can have this name")) from None
        waiter = asyncio.shield(future)
        timer = self._loop.call_at(self._ends, self._expire, waiter)
        try:
            return await waiter
        except Exception as error:  # noqa: BLE001 - the library has many, and the source's own come through
            raise self._error(error) from None
        except BaseException as ended:  # the deadline has passed, or the caller is cancelled or closed
            waiter.cancel()
            self._abandon(future)
            if self._expired and isinstance(ended, asyncio.CancelledError):
                raise StoreTooSlowError(self.says(f"no answer within {self._deadline_s:g} s")) from None
            raise
        finally:
            timer.cancel()

    def _expire(self, waiter: asyncio.Future[_T]) -> None:
        self._expired = True
        waiter.cancel()

    def _abandon(self, future: asyncio.Future[_T]) -> None:
        """End a request for which no caller waits any more. A `put` gets some time to drop its parts."""
        if self._source is None:
            future.cancel()
            return
        self._source.stop()
        self._store.abandon(future)

    def _error(self, error: Exception) -> Exception:
        failed = self._source.error if self._source is not None else None
        if failed is not None:
            return failed
        found, reason = classified(type(error).__name__, str(error))
        return found(self.says(reason))
