"""The client of S3, GCS, Azure, directories and memory: the library obstore, which works on threads of its own.

Owns the requests that each verb needs. Never knows a deadline, and never waits on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Final

from kbroker.remote.object_client import PART_BYTES, BadNameError, Piece, Source, StoredObject
from kbroker.remote.store_errors import ObjectExistsError, ObjectNotFoundError, WrongLengthError, classified

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

_PARTS_AT_ONCE: Final = 2
_LISTED_AT_ONCE: Final = 1000


class ObstoreClient:
    """The client of one store. `directory` is the root of a store file://, and empty for other stores."""

    def __init__(self, client: ObjectStore, directory: str) -> None:
        self._client = client
        self._directory = directory

    async def put(self, name: str, source: Source, size: int) -> None:
        """Write an object.

        Up to 8 MiB, the store itself refuses to replace an existing object. A larger object is sent in parts. Stores
        have no such condition for parts, so this method itself checks beforehand. A lifecycle rule of the bucket should
        delete the parts of a store that did not answer.
        """
        import obstore

        client = self._client
        if size <= PART_BYTES:
            with _classified():
                await obstore.put_async(client, name, source, mode="create", use_multipart=False)
            return
        with suppress(ObjectNotFoundError):
            await self.head(name)
            raise ObjectExistsError("the object exists already")
        with _classified():
            await obstore.put_async(
                client, name, source, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )
        found = await self.head(name)
        if found.size != size:
            raise WrongLengthError(f"the store has {found.size} bytes of {size}")

    async def get(self, name: str, start: int, size: int) -> Piece:
        import obstore

        with _classified():
            return memoryview(await obstore.get_range_async(self._client, name, start=start, length=size))

    async def head(self, name: str) -> StoredObject:
        import obstore

        with _classified():
            return _stored(await obstore.head_async(self._client, name))

    async def delete(self, name: str) -> None:
        import obstore

        with suppress(ObjectNotFoundError), _classified():
            await obstore.delete_async(self._client, name)
        if self._directory:
            path = f"{self._directory}/{name}"
            await asyncio.get_running_loop().run_in_executor(None, _remove_staged, path)

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        import obstore

        with _classified():
            async for page in obstore.list(self._client, prefix, chunk_size=_LISTED_AT_ONCE):
                yield [_stored(each) for each in page]


def _stored(found: ObjectMeta) -> StoredObject:
    return StoredObject(found["path"], found["size"], int(found["last_modified"].timestamp() * 1000))


@contextmanager
def _classified() -> Iterator[None]:
    """Raise StoreErrors, and BadNameError, instead of the errors of the library."""
    try:
        yield
    except ValueError:
        raise BadNameError from None
    except Exception as error:  # noqa: BLE001 - the library has many, and the source's own come through
        found, reason = classified(type(error).__name__, str(error))
        raise found(reason) from None


def _remove_staged(path: str) -> None:
    """Remove the temporary files of an object in a directory.

    The library obstore writes these files before it gives them the object's name.
    """
    with suppress(OSError):
        for number in count(1):
            os.remove(f"{path}#{number}")
