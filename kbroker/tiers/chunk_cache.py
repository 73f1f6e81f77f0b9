"""Chunks of remote segments in files on the local disk, so that they are fetched once and sent from the page cache.

Owns the directory, its bound in bytes, the fetches in progress, and the read-ahead. A chunk that does not fit on the
disk is served from memory. Starts empty: the files of an earlier process are removed. Never knows what a chunk
contains.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple
from weakref import ref

from kbroker.log.files import FileHandle

log = logging.getLogger(__name__)

CHUNK_BYTES: Final = 4 << 20
"""The size of a chunk in bytes. The last chunk of a segment may be shorter."""
_MOST_CHUNKS: Final = 20_000
_MOST_IN_MEMORY: Final = 4
"""The maximum number of chunks that are kept in memory while they cannot be written to the disk."""
AHEAD: Final = 2
"""The number of chunks that are fetched ahead of a reader."""


class ChunkKey(NamedTuple):
    """A chunk: a segment's id, and the number of the chunk."""

    segment_id: bytes
    number: int


class LostChunkError(OSError):
    """Raised if the file of a chunk was removed. The chunk is fetched again when it is needed."""


class Chunk:
    """The bytes of a chunk, in a file or in memory."""

    __slots__ = ("_handle", "_path", "data", "is_lost", "size")

    def __init__(self, size: int, path: str | None = None, data: bytes | memoryview = b"") -> None:
        self.size = size
        self.data = data
        self._path = path
        self.is_lost = False
        """Whether an open has failed because the file is missing."""
        self._handle: ref[FileHandle] | None = None  # only slices that are being sent keep the file open

    @property
    def is_file(self) -> bool:
        """Whether the chunk can be sent from a file."""
        return self._path is not None

    @property
    def handle(self) -> FileHandle:
        """The open file. Raises OSError, which may be LostChunkError."""
        known = None if self._handle is None else self._handle()
        if known is None:
            assert self._path is not None
            try:
                known = FileHandle(self._path, os.O_RDONLY)
            except FileNotFoundError as error:
                self.is_lost = True
                raise LostChunkError(*error.args) from error
            self._handle = ref(known)
        return known

    def read(self, position: int, size: int) -> bytes:
        """Return a range of the chunk. Raises OSError."""
        if self._path is None:
            return bytes(self.data[position : position + size])
        handle = self.handle
        return os.pread(handle.fd, size, position)


Fetch = Callable[[], Awaitable[memoryview]]
"""Returns a chunk from the remote store."""


class ChunkCache:
    """Chunks by their keys."""

    def __init__(self, directory: str, most_bytes: int, at_once: int) -> None:
        self._directory = directory
        self._most = most_bytes
        self._places = asyncio.Semaphore(at_once)
        self._kept: OrderedDict[ChunkKey, Chunk] = OrderedDict()
        self._in_memory: OrderedDict[ChunkKey, Chunk] = OrderedDict()
        self._coming: dict[ChunkKey, asyncio.Task[Chunk]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._is_full = False
        self.size = 0
        """The bytes of the chunks in files."""
        shutil.rmtree(directory, ignore_errors=True)

    def limit(self, at_once: int) -> None:
        """Set the maximum number of concurrent fetches. Waiting fetches keep the previous limit."""
        self._places = asyncio.Semaphore(at_once)

    @property
    def coming(self) -> int:
        """The number of chunks that are being fetched, or wait to be fetched."""
        return len(self._coming)

    def get(self, key: ChunkKey) -> Chunk | None:
        """Return a chunk in the cache; None if it is not in the cache."""
        found = self._kept.get(key)
        if found is not None and found.is_lost:
            del self._kept[key]
            self.size -= found.size
            found = None
        if found is not None:
            self._kept.move_to_end(key)
        return found or self._in_memory.get(key)

    def bring(self, key: ChunkKey, fetch: Fetch) -> asyncio.Task[Chunk]:
        """Return the task that fetches a chunk.

        Several callers may share a task. The task continues even if all callers give up.
        """
        task = self._coming.get(key)
        if task is None:
            task = self._coming[key] = asyncio.get_running_loop().create_task(self._brought(key, fetch))
            task.add_done_callback(lambda done: self._came(key, done))
        return task

    def bring_ahead(self, key: ChunkKey, fetch: Fetch) -> None:
        """Fetch a chunk that no reader needs yet. Do nothing if many chunks are being fetched already."""
        if self.get(key) is None and key not in self._coming and len(self._coming) <= AHEAD:
            self.bring(key, fetch)

    def _came(self, key: ChunkKey, done: asyncio.Task[Chunk]) -> None:
        self._coming.pop(key, None)
        if not done.cancelled():
            done.exception()  # marks the exception as retrieved: waiting callers get it, too

    async def _brought(self, key: ChunkKey, fetch: Fetch) -> Chunk:
        async with self._places:
            chunk = await self._stored(key, await fetch())
        if chunk.is_file:
            self._kept[key] = chunk
            self.size += chunk.size
            self._make_room()
        else:
            self._in_memory[key] = chunk
            while len(self._in_memory) > _MOST_IN_MEMORY:
                self._in_memory.popitem(last=False)
        return chunk

    async def _stored(self, key: ChunkKey, data: memoryview) -> Chunk:
        """Write a chunk into a file. If this fails, keep the chunk in memory for the callers that wait now."""
        if len(data) > self._most:
            return Chunk(len(data), data=data)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="kbroker-tiers")
        path = f"{self._directory}/{key.segment_id.hex()}-{key.number}"
        try:
            await asyncio.get_running_loop().run_in_executor(self._pool, self._write, path, data)
        except OSError as error:
            if not self._is_full:
                log.warning("remote chunks are not kept on the disk for now: %s", error)
            self._is_full = True
            return Chunk(len(data), data=data)
        self._is_full = False
        return Chunk(len(data), path)

    def _write(self, path: str, data: memoryview) -> None:
        os.makedirs(self._directory, exist_ok=True)
        try:
            with open(path, "wb") as file:
                file.write(data)
        except OSError:
            _remove(path)
            raise

    def _make_room(self) -> None:
        while (self.size > self._most or len(self._kept) > _MOST_CHUNKS) and len(self._kept) > 1:
            key, chunk = self._kept.popitem(last=False)
            self.size -= chunk.size
            _remove(f"{self._directory}/{key.segment_id.hex()}-{key.number}")

    def close(self) -> None:
        """End the fetches, and remove the files."""
        for task in list(self._coming.values()):
            task.cancel()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._kept.clear()
        shutil.rmtree(self._directory, ignore_errors=True)


def _remove(path: str) -> None:
    try:
        os.remove(path)
    except OSError as error:
        log.debug("%s: %s", path, error)
