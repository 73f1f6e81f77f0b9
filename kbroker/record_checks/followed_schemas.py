"""The schemas of a cluster at any of its brokers: a copy of `_schemas`, read like a consumer from the topic's leader.

Owns the copy, and its maximum age. The copy begins with the first question about a schema, and ends some minutes after
the last question. Owns the looks: a look waits until the copy contains everything that any broker acknowledged before
the look began. A record is refused only after a look. A replaced leader that does not know this yet might lack some
records. So a look ends with a request to the nodes that elect leaders. Owns the waits and retries while the topic's
leader moves. Never writes, and never decides about schemas.

The leader ends a fetch as soon as there are new records, so the copy lags by one round trip as long as the leader
answers. A copy that the leader has not confirmed for `STALE_S` seconds answers no more questions.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple, Protocol

from kbroker.long_work import in_slices, turn
from kbroker.protocol.errors import ApiError, Malformed
from kbroker.protocol.records import iter_batches, stream_records
from kbroker.schema_registry.records import SCHEMAS_TOPIC
from kbroker.schema_registry.shard import RegistryShard
from kbroker.schema_registry.state import State

log = logging.getLogger(__name__)

STALE_S: Final = 30.0
"""The seconds for which a copy answers without the leader.

This is longer than the detection of a lost leader takes (zookeeper.session.timeout.ms).
"""
PATIENCE_S: Final = 5.0
"""The seconds for which a question waits."""
IDLE_S: Final = 600.0
"""The seconds for which an unused copy is kept."""
_WAIT_MS: Final = 500
"""The milliseconds for which a fetch waits at the log's end."""
_REACH_S: Final = 1.0
"""The seconds for which a look waits for the copy before it requests the topic's end again."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
_BETWEEN_S: Final = 0.01
"""The minimum time in seconds between two requests for the topic's end, even if there are many bad records."""
_MOST_RECORD: Final = 128 << 20
"""The maximum size in bytes of a batch's records after decompression."""
_AT_ONCE: Final = 4
"""The number of records that are replayed before other tasks get a turn."""


class Unread(Exception):  # noqa: N818 - an outcome
    """The topic cannot be read now; the error's text is the reason."""


class Place(NamedTuple):
    """The leader of `_schemas`, and the id of this topic."""

    leader: int
    epoch: int
    topic_id: bytes


class Piece(NamedTuple):
    """The result of a fetch."""

    records: memoryview
    high_watermark: int
    is_elsewhere: bool = False
    """Whether the log was cut or deleted: it lacks the fetched offset, or has another record before this offset."""
    is_throttled: bool = False


class Source(Protocol):
    """Requests to the topic's leader. All coroutines run in a task, and raise Unread."""

    def place(self) -> Place | None:
        """Return the topic's leader according to this broker; None if the topic or its leader is missing."""

    async def provide(self) -> None:
        """Create the topic if it does not exist."""

    async def begin(self, place: Place) -> int:
        """Return the offset of the first record."""

    def is_here(self, place: Place) -> bool:
        """Whether this broker is the leader."""

    async def confirm(self, place: Place) -> None:
        """Return normally if the leader was still the leader at some time after this call; otherwise raise Unread."""

    async def end(self, place: Place) -> int:
        """Return the offset after all records that this leader, or an earlier one, has acknowledged so far."""

    async def read(self, place: Place, offset: int, last_epoch: int, wait_ms: int) -> Piece:
        """Return the records from an offset on; wait for them if there are none.

        All records are committed. The first record may be before the offset. `last_epoch` is the epoch of the record
        before the offset (-1: unknown).
        """


class Here(Protocol):
    """The registry of this broker."""

    @property
    def state(self) -> State | None:
        """The state; None while another broker leads, or while it is being loaded."""

    async def ready(self) -> None:
        """Wait for the state. Raises ApiError."""


class _Copy:
    """The state after a replay of the records up to an offset."""

    def __init__(self, topic_id: bytes, begin: int) -> None:
        self.topic_id = topic_id
        self.shard = RegistryShard()
        self.position = begin
        self.last_epoch = -1
        self.is_whole = False
        """Whether the copy has once reached the end of the topic. Before that, the copy answers no question."""
        self.confirmed_s = 0.0
        """The start time of the last request whose answer confirmed that the copy is complete."""
        self.nothing: tuple[Place, int] | None = None
        """A leader and its reported end offset, if the last fetch returned no records before this end offset."""
        self.skipped = 0


class FollowedSchemas:
    """The state of a schema registry: this broker's registry if it leads the topic, else a copy of the topic.

    Use the object in one event loop only.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.here: Here | None = None
        """This broker's registry, if it has one."""
        self._loop = asyncio.get_running_loop()
        self._copy: _Copy | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: list[asyncio.Future[str | None]] = []
        """The looks that callers wait for, in order; a look's result is None, or the reason why the look failed."""
        self._asked = asyncio.Event()
        self._moved = asyncio.Event()
        self._has_progressed = asyncio.Event()
        self._used_s = 0.0
        self._trouble = ""
        """The reason why the last read failed."""
        self._no_look = ""
        """The reason why the last look failed."""
        self._closed = False

    @property
    def is_followed(self) -> bool:
        """Whether the topic is being read."""
        return bool(self._tasks)

    @property
    def state(self) -> State | None:
        """The state, if it is complete and not too old."""
        copy = self._copy
        if copy is None:
            return None if self.here is None else self.here.state
        now = self._loop.time()
        if not copy.is_whole or now - copy.confirmed_s > STALE_S:
            return None
        self._used_s = now
        return copy.shard.state

    async def look(self) -> str | None:
        """Wait until the copy contains everything acknowledged before now; return None, or the reason of a failure.

        Waits for at most `PATIENCE_S` seconds.
        """
        if self._closed:
            return "this broker stops"
        self._used_s = self._loop.time()
        self._begin()
        looked: asyncio.Future[str | None] = self._loop.create_future()
        self._waiting.append(looked)
        self._asked.set()
        timer = self._loop.call_later(PATIENCE_S, self._give_up, looked)
        try:
            return await looked
        finally:
            timer.cancel()
            looked.cancel()

    def _give_up(self, looked: asyncio.Future[str | None]) -> None:
        if not looked.done():
            looked.set_result(self._no_look or f"the leader of {SCHEMAS_TOPIC} does not answer")

    def moved(self) -> None:
        """Look up the topic's leader again."""
        self._moved.set()

    def stop(self) -> None:
        """Stop reading, and drop the copy, until the next look."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self._copy = None
        if self._waiting and not self._closed:
            self._begin()

    def close(self) -> None:
        """Stop for good, and end all waits."""
        self._closed = True
        self.stop()
        for each in self._waiting:
            if not each.done():
                each.set_result("this broker stops")
        self._waiting.clear()

    def _begin(self) -> None:
        if not self._tasks:
            self._tasks = [
                self._loop.create_task(self._follow(), name=f"follow {SCHEMAS_TOPIC}"),
                self._loop.create_task(self._look(), name=f"look at {SCHEMAS_TOPIC}"),
            ]

    # -- looks

    async def _look(self) -> None:
        """Perform looks; one request to the leader serves all waiting looks."""
        pause = _FIRST_PAUSE_S
        while True:
            self._waiting = [each for each in self._waiting if not each.done()]
            if not self._waiting:
                self._asked.clear()
                await self._asked.wait()
            covered = len(self._waiting)  # later requests wait for the next look
            try:
                await self._look_once()
            except Unread as why:
                self._no_look = str(why)
            except Exception:
                self._no_look = f"{SCHEMAS_TOPIC} cannot be read"
                log.exception("reading %s has failed", SCHEMAS_TOPIC)
            else:
                for each in self._waiting[:covered]:
                    if not each.done():
                        each.set_result(None)
                del self._waiting[:covered]
                self._no_look = ""
                pause = _FIRST_PAUSE_S
                await asyncio.sleep(_BETWEEN_S)
                continue
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _look_once(self) -> None:
        began = self._loop.time()
        place = self._source.place()
        if place is None:
            await self._source.provide()
            place = self._source.place()
        if place is None:
            raise Unread(f"no broker leads {SCHEMAS_TOPIC} at the moment")
        self._moved.set()
        if self.here is not None and self._source.is_here(place):
            self._copy = None
            try:
                await self.here.ready()
            except ApiError as error:
                raise Unread(error.message or error.code.name) from None
        else:
            await self._catch_up(place, began)
        await self._source.confirm(place)

    async def _catch_up(self, place: Place, began: float) -> None:
        """Wait until the copy reaches the topic's current end."""
        end = await self._source.end(place)
        until = self._loop.time() + _REACH_S
        while True:
            self._has_progressed.clear()
            copy = self._copy
            if copy is not None and copy.topic_id == place.topic_id and copy.position >= end:
                break
            left = until - self._loop.time()
            if left <= 0:
                raise Unread(self._trouble or f"{SCHEMAS_TOPIC} is being read")
            try:
                async with asyncio.timeout(left):
                    await self._has_progressed.wait()
            except TimeoutError:
                continue
            if self._copy is copy is not None:  # the copy makes progress
                until = self._loop.time() + _REACH_S
        copy.is_whole = True
        copy.confirmed_s = max(copy.confirmed_s, began)

    # -- reading

    async def _follow(self) -> None:
        """Read the topic until nobody has used the copy for a while."""
        pause = _FIRST_PAUSE_S
        while self._loop.time() - self._used_s < IDLE_S:
            self._moved.clear()
            place = self._source.place()
            if place is not None and self.here is not None and self._source.is_here(place):
                self._copy = None
            elif place is not None:
                try:
                    await self._read(place)
                except Unread as why:
                    if str(why) != self._trouble:
                        log.info("the copy of %s waits: %s", SCHEMAS_TOPIC, why)
                    self._trouble = str(why)
                except Exception:
                    self._trouble = f"{SCHEMAS_TOPIC} cannot be read"
                    log.exception("%s cannot be followed", SCHEMAS_TOPIC)
                else:
                    self._trouble = ""
                    pause = _FIRST_PAUSE_S
                    continue
            try:
                async with asyncio.timeout(pause):
                    await self._moved.wait()
            except TimeoutError:
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        self._loop.call_soon(self.stop)

    async def _read(self, place: Place) -> None:
        """Fetch and replay records once."""
        copy = self._copy
        if copy is None or copy.topic_id != place.topic_id:
            copy = self._copy = _Copy(place.topic_id, await self._source.begin(place))
            self._has_progressed.set()
        began = self._loop.time()
        piece = await self._source.read(place, copy.position, copy.last_epoch, _WAIT_MS)
        if piece.is_elsewhere:
            self._copy = None
            raise Unread(f"{SCHEMAS_TOPIC} is read anew: it has changed before offset {copy.position}")
        before = copy.position
        try:
            await in_slices(_replay(copy, piece.records))
        except Malformed as error:
            raise Unread(f"{SCHEMAS_TOPIC} cannot be read at offset {copy.position}: {error}") from None
        if copy.position == before < piece.high_watermark and not piece.is_throttled:
            # Compaction may have removed all records up to the end. A first answer does not prove this: the leader may
            # have read the log first, and the high watermark in the answer may have moved later. A second answer proves
            # it, up to the end that the first answer reported.
            if copy.nothing is not None and copy.nothing[0] == place:
                copy.position = copy.nothing[1]
            copy.nothing = place, piece.high_watermark
        else:
            copy.nothing = None
        if copy.position >= piece.high_watermark and not piece.is_throttled:  # a throttled answer may lack the end
            copy.confirmed_s = max(copy.confirmed_s, began)
        if copy.position != before:
            self._has_progressed.set()


async def _replay(copy: _Copy, records: memoryview) -> None:
    """Replay new records; skip records that cannot be read, as the leader does."""
    for at, header in iter_batches(records):
        if header.last_offset < copy.position:
            continue
        if not header.is_control:
            try:
                await _replay_batch(copy, records[at : at + header.size])
            except Malformed as error:
                _skipped(copy, header.base_offset, error)
        copy.position = header.last_offset + 1
        copy.last_epoch = header.leader_epoch


async def _replay_batch(copy: _Copy, batch: memoryview) -> None:
    for number, record in enumerate(stream_records(batch, max_bytes=_MOST_RECORD, begin=copy.position), 1):
        if record is not None and record.key is not None:
            try:
                copy.shard.replay(record.offset, -1, record.key, record.value)
            except (Malformed, ValueError) as error:
                _skipped(copy, record.offset, error)
        if record is None or number % _AT_ONCE == 0:
            await turn


def _skipped(copy: _Copy, offset: int, error: Exception) -> None:
    copy.skipped += 1
    level = logging.WARNING if copy.skipped == 1 else logging.DEBUG
    log.log(level, "%s: the record at offset %d is skipped: %s", SCHEMAS_TOPIC, offset, error)
