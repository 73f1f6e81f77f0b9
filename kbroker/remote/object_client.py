"""What a store needs from a client library: five verbs, and the data of a `put`.

Owns the interface of clients. obstore_client.py and hdfs_client.py implement it. A client knows no deadline: store.py
cancels a verb that takes too long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kbroker.remote.store_errors import WrongLengthError

PART_BYTES: Final = 8 << 20
"""The size of the parts in which a large object is sent. An object of at most one part is sent by one request."""
Piece = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a store: its name, its size in bytes, and the time of its write in milliseconds since 1970."""

    name: str
    size: int
    modified_ms: int


class BadNameError(Exception):
    """Raised by a client for a name that no object can have."""


class ObjectClient(Protocol):
    """The verbs of a store. They raise BadNameError, and StoreErrors whose text is only the reason."""

    async def put(self, name: str, source: Source, size: int) -> None:
        """Write an object of `size` bytes, and refuse to replace an object. Raises ObjectExistsError."""

    async def get(self, name: str, start: int, size: int) -> Piece:
        """Return at most `size` bytes of an object."""

    async def head(self, name: str) -> StoredObject:
        """Return the store's facts about an object."""

    async def delete(self, name: str) -> None:
        """Delete an object, and the remains of its incomplete writes. A missing object is no error."""

    def pages(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        """Yield the objects of a folder, about a thousand at a time."""


class _Abandoned(Exception):  # noqa: N818 - nobody sees it
    """Stops sending an object for which no caller waits any more, so that the store drops the parts."""


class Source:
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
