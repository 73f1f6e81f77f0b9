"""The indexes of headers of the segments under views: reading them, and making them for closed segments.

Owns the indexes in memory, whose total size is limited, and the thread that makes indexes, one after the other. An
index is used only if its checksum is right and a sample of its batches is in the log. Otherwise the index is removed,
and made again. Never decides which records a reader gets: an index only excludes blocks that have no match.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

from kbroker.clock import Clock
from kbroker.log.files import HEADERS_SUFFIX, read_optional
from kbroker.log.header_indexing import Stopped, ensure, is_of
from kbroker.log.partition_log import PartitionLog
from kbroker.log.segment.header_index import DamagedIndexError, HeaderIndex
from kbroker.log.segment.segment import Segment
from kbroker.long_work import begun_in_slices, turn
from kbroker.partition import Partition

if TYPE_CHECKING:
    from kbroker.filters.filtering import Filter

log = logging.getLogger(__name__)

LOOK_MS: Final = 2_000
"""The time between two searches for closed segments without an index, in ms."""
AGAIN_MS: Final = 30_000
"""The time in ms after which a log without new segments is examined again: compaction may have replaced segments."""
RETRY_MS: Final = 300_000
"""The time in ms between a failed write of an index and the next attempt."""
_MOST_BYTES: Final = 32 << 20
"""The maximum number of bytes of indexes in memory."""
_MOST_PLANS: Final = 64
_MOST_COMPLETE: Final = 10_000
_USEFUL: Final = 0.75
"""The maximum share of blocks that may have matches. Above this share, the index only costs time."""
_EVERYWHERE: Final = -1


class _Loaded(NamedTuple):
    """A segment's index, or None if there is none. The index is valid while the log is not truncated."""

    header_index: HeaderIndex | None
    truncations: int
    plans: dict[str, int]


class _Complete(NamedTuple):
    """The state of a log when it was last examined: names of headers, base of the open segment, number of segments."""

    state: tuple[tuple[str, ...], int, int]
    until_ms: float


class HeaderIndexes:
    """The indexes of one broker; call `tick` periodically."""

    def __init__(self, clock: Clock, partitions: Callable[[], Iterable[Partition]]) -> None:
        """`partitions` returns the hosted partitions."""
        self._clock = clock
        self._partitions = partitions
        self._loaded: WeakKeyDictionary[Segment, _Loaded] = WeakKeyDictionary()
        # Each value contains the log's number of truncations: a segment that is truncated can grow and be closed again.
        self._made: WeakKeyDictionary[Segment, tuple[tuple[str, ...], int]] = WeakKeyDictionary()
        self._failed_ms: WeakKeyDictionary[Segment, float] = WeakKeyDictionary()
        self._indexed: set[tuple[str, int]] = set()  # the partitions that may have indexes
        self._complete: dict[str, _Complete] = {}
        self._damages = 0
        self._making: Segment | None = None
        self._told: set[tuple[bytes, str]] = set()  # topic ids and headers that the broker's log has already named
        self._pool: ThreadPoolExecutor | None = None
        self._stopping = Event()
        self._task: asyncio.Task[None] | None = None
        self._next_ms = 0.0

    # -- reading

    async def plan(self, of: PartitionLog, segment: Segment, wanted: Filter) -> tuple[HeaderIndex, int] | None:
        """Return the index of a closed segment, and the blocks that may have a match.

        Return None if every block may have a match. Another segment may replace the segment meanwhile. Raises OSError.
        """
        names = of.config.filter_index_headers
        if not names or wanted.tested_headers.isdisjoint(names):
            return None
        found = self._loaded.get(segment)
        if found is None or found.truncations != of.truncations:
            if segment is self._making:
                return None
            found = self._load(of, segment)
        index, plans = found.header_index, found.plans
        if index is None:
            return None
        bits = plans.get(wanted.text)
        if bits is None:
            bits = await _possible(index, wanted)
            if len(plans) >= _MOST_PLANS:
                plans.clear()
            if bits.bit_count() > index.every.bit_length() * _USEFUL:
                bits = _EVERYWHERE
            plans[wanted.text] = bits
        return None if bits == _EVERYWHERE else (index, bits)

    def _load(self, of: PartitionLog, segment: Segment) -> _Loaded:
        self._loaded.pop(segment, None)
        index = None
        try:
            content = read_optional(segment.path(HEADERS_SUFFIX))
        except OSError as error:  # views then read without the index
            log.warning("%s cannot be read: %s", segment.path(HEADERS_SUFFIX), error)
            content = None
        if content is not None:
            try:
                index = HeaderIndex(content)
            except DamagedIndexError as error:
                log.warning("%s is made again: %s", segment.path(HEADERS_SUFFIX), error)
            if index is None or not is_of(index, segment.handle, segment.base_offset, segment.size):
                index = None
                segment.drop_headers()
                self._made.pop(segment, None)
                self._complete.clear()
                self._damages += 1
        if index is not None:
            self._make_room(index.size)
        self._loaded[segment] = found = _Loaded(index, of.truncations, {})
        return found

    def _make_room(self, size: int) -> None:
        there = [(each, index) for each, found in self._loaded.items() if (index := found.header_index) is not None]
        size += sum(index.size for _, index in there)
        for segment, index in there:  # in the order in which the indexes were loaded
            if size <= _MOST_BYTES:
                return
            del self._loaded[segment]
            size -= index.size

    # -- making

    @property
    def is_making(self) -> bool:
        """Whether an index is being made now."""
        return self._making is not None

    def tick(self) -> None:
        """Begin to make the missing indexes, if this is due."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_ms and (self._task is None or self._task.done()):
            self._next_ms = now_ms + LOOK_MS
            self._task = asyncio.get_running_loop().create_task(begun_in_slices(self.look))

    async def look(self) -> None:
        """Make the missing indexes, one after the other."""
        hosted = list(self._partitions())
        for partition in hosted:
            of = partition.log
            if of.config.filter_index_headers or partition.key in self._indexed or of.segments.had_headers:
                try:
                    await self._index(partition, of)
                except Exception:  # an error in one log must not stop the work for other logs
                    log.exception("%s-%d: the index of headers", *partition.key)
            await turn
        if self._indexed:
            self._indexed.intersection_update([each.key for each in hosted])
        if self._told:
            topics = {each.topic_id for each in hosted}
            self._told = {each for each in self._told if each[0] in topics}

    async def _index(self, partition: Partition, of: PartitionLog) -> None:
        names = of.config.filter_index_headers
        state = names, of.segments.active.base_offset, len(of.segments)
        now_ms, damages = self._clock.monotonic_ms(), self._damages
        known = self._complete.get(of.directory)
        if known is not None and known.state == state and now_ms < known.until_ms:
            return
        if names:
            self._indexed.add(partition.key)
        else:
            self._indexed.discard(partition.key)
        for segment in of.segments[:-1]:
            await turn
            if partition.log is not of or of.config.filter_index_headers != names:
                return
            if of.segments.index_of(segment) < 0 or segment is of.segments.active:
                continue
            if not names:
                segment.drop_headers()
                self._made.pop(segment, None)
                self._loaded.pop(segment, None)
            elif (
                self._made.get(segment) != (names, of.truncations)
                and self._failed_ms.get(segment, 0) <= self._clock.monotonic_ms()
            ):
                await self._make(partition.topic_id, of, segment, names)
        of.segments.had_headers = False
        if damages != self._damages:
            return
        if len(self._complete) >= _MOST_COMPLETE:
            self._complete.clear()
        self._complete[of.directory] = _Complete(state, now_ms + AGAIN_MS)

    async def _make(self, topic_id: bytes, of: PartitionLog, segment: Segment, names: tuple[str, ...]) -> None:
        truncations, path, given_up = of.truncations, segment.path(HEADERS_SUFFIX), []
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="kbroker-index")
        self._making = segment
        try:
            work = self._pool.submit(
                ensure, segment.path(), path, segment.base_offset, segment.size, names, self._stopping.is_set
            )
            given_up = await asyncio.wrap_future(work)
            self._made[segment] = names, truncations
        except FileNotFoundError:
            return  # the segment was removed meanwhile
        except OSError as error:
            log.warning("%s cannot be written: %s", path, error)
            self._failed_ms[segment] = self._clock.monotonic_ms() + RETRY_MS
            segment.drop_headers()
        except Stopped:
            return
        except Exception:
            log.exception("%s cannot be made", path)
            self._failed_ms[segment] = self._clock.monotonic_ms() + RETRY_MS
        finally:
            self._making = None
            self._loaded.pop(segment, None)
        if truncations != of.truncations or of.segments.index_of(segment) < 0:
            self._made.pop(segment, None)
            segment.drop_headers()
        for name in given_up:
            if (topic_id, name) not in self._told:
                self._told.add((topic_id, name))
                text = "%s-%d: the header %s has too many values to be indexed (filter.index.headers)"
                log.warning(text, of.topic, of.partition, name)

    def close(self) -> None:
        """End the thread; the missing indexes are made after the next start."""
        self._stopping.set()
        if self._task is not None:
            self._task.cancel()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


async def _possible(index: HeaderIndex, wanted: Filter) -> int:
    """Return the blocks that may have a match. A filter may name a thousand values, each of them in many blocks."""
    found: dict[tuple[str, bytes], int | None] = {}
    wanted.possible(lambda name, value: found.setdefault((name, value), None), 0)
    for name, value in found:
        found[name, value] = index.lookup(name, value)
        await turn
    return wanted.possible(lambda name, value: found[name, value], index.every)
