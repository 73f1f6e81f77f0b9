"""Objects in a remote store, behind five verbs: put, get, delete, list, head.

Owns the deadline of each call, and the texts of its errors. Never retries beyond what a client library does within a
deadline, and never knows what an object contains: object_format.py does. Other threads work for the store, so that the
event loop stays free. These threads also read the data that a `put` sends.

The coroutines need no current task (kbroker/long_work.py), so that a request's handler can also await them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from kbroker.remote.object_client import BadNameError, ObjectClient, Piece, Source, StoredObject
from kbroker.remote.store_address import open_client
from kbroker.remote.store_errors import StoreError, StoreTooSlowError, WrongLengthError

_T = TypeVar("_T")

_ABORT_S: Final = 2.0


class Store:
    """One store of objects, opened by `open_store`."""

    def __init__(self, url: str, client: ObjectClient, deadline_s: float) -> None:
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
        request.add_done_callback(self._forget)

    def _forget(self, request: asyncio.Future[Any]) -> None:
        self._abandoned.discard(request)
        if not request.cancelled():
            request.exception()  # marks the exception as retrieved: no caller waits for it

    async def put(self, name: str, pieces: Iterable[Piece], size: int, *, deadline_s: float | None = None) -> None:
        """Write an object of `size` bytes, or fail.

        No reader ever sees a part of the object. Another thread iterates over `pieces`. Raises ObjectExistsError,
        WrongLengthError if the pieces or the stored object have another size, and other StoreErrors. Also raises the
        errors of the iterator. After the deadline, this method requests the store to drop the parts of the object, for
        at most two seconds. Parts can remain in a store that does not answer.
        """
        source = Source(pieces, size)
        call = _Call(self, "put", name, self._deadline_s if deadline_s is None else deadline_s, source)
        await call.result(lambda: self._client.put(name, source, size))

    async def get(self, name: str, start: int, size: int, *, deadline_s: float | None = None) -> memoryview:
        """Return `size` bytes of an object from `start` on. Raises WrongLengthError if the object has fewer bytes."""
        call = _Call(self, "get", name, self._deadline_s if deadline_s is None else deadline_s)
        if size <= 0 or start < 0:
            raise ValueError(f"a range of {size} bytes from {start}")
        data = memoryview(await call.result(lambda: self._client.get(name, start, size)))
        if len(data) != size:
            raise WrongLengthError(call.says(f"{len(data)} bytes instead of {size} from {start}"))
        return data

    async def delete(self, name: str, *, deadline_s: float | None = None) -> None:
        """Delete an object. A missing object is no error.

        Also remove the incomplete files of a process that ended while it wrote the object.
        """
        call = _Call(self, "delete", name, self._deadline_s if deadline_s is None else deadline_s)
        await call.result(lambda: self._client.delete(name))

    def make_private(self, folder: str) -> None:
        """In a directory, make sure of a folder that only its owner can open. Raises OSError."""
        if self.url.startswith("file://"):
            path = f"{self.url.removeprefix('file://').rstrip('/')}/{folder}"
            os.makedirs(path, exist_ok=True)
            os.chmod(path, 0o700)

    async def head(self, name: str, *, deadline_s: float | None = None) -> StoredObject:
        """Return the store's facts about an object. Raises ObjectNotFoundError."""
        call = _Call(self, "head", name, self._deadline_s if deadline_s is None else deadline_s)
        return await call.result(lambda: self._client.head(name))

    async def list(self, prefix: str, *, deadline_s: float | None = None) -> AsyncIterator[StoredObject]:
        """Yield the objects in a folder, and in those below it, in no order.

        Each thousand objects have a deadline of their own. The prefix ends at a slash: `a/b` means the objects in the
        folder b, not the object `a/bc`.
        """
        within = self._deadline_s if deadline_s is None else deadline_s
        pages = self._client.pages(prefix)
        while True:
            page = await _Call(self, "list", prefix, within).result(lambda: _next_page(pages))
            if page is None:
                return
            for each in page:
                yield each


def open_store(url: str, settings: Mapping[str, str] | None = None, *, deadline_s: float = 30.0) -> Store:
    """Return the store at an address, without any call. `deadline_s` applies to calls without their own deadline.

    Raises StoreSettingError: see store_address.py for addresses and settings.
    """
    return Store(url, open_client(url, settings or {}), deadline_s)


async def _next_page(pages: AsyncIterator[Sequence[StoredObject]]) -> Sequence[StoredObject] | None:
    try:
        return await anext(pages)
    except StopAsyncIteration:
        return None


class _Call:
    """One call of a store: its deadline, and the texts of its errors. A call may need several requests."""

    def __init__(self, store: Store, verb: str, name: str, deadline_s: float, source: Source | None = None) -> None:
        self._store = store
        self._what = f"{verb} of {name} in {store.url}"
        self._loop = asyncio.get_running_loop()
        self._deadline_s = deadline_s
        self._ends = self._loop.time() + deadline_s
        self._source = source
        self._expired = False

    def says(self, reason: str) -> str:
        return f"{self._what}: {reason}"

    async def result(self, request: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return the result of a request. Raises StoreErrors, and the error of the source."""
        future = self._loop.create_task(request())
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
        if isinstance(error, StoreError):
            return type(error)(self.says(str(error)))
        if isinstance(error, BadNameError):
            return ValueError(self.says("no object can have this name"))
        return error
