"""A registry's state in the topic `_schemas` of any Kafka, shared with other instances that write the same topic.

Owns the steps of a change, so that instances assign dense and unique ids without an election:

    take over   InitProducerId under the instances' transactional id: it fences the instance that wrote before
    join        AddPartitionsToTxn; after this step the log contains the markers of earlier transactions
    catch up    read to the high watermark
    decide      on this state
    write       one transaction for each decision; a batch that does not begin at the state's end is aborted
    commit      refused if another instance has taken over
    read back   the answer waits until the records can be read as committed: a Kafka that crashes after its answer to
                EndTxn can leave out the marker, and the next abort would then discard the records (FINDINGS.md)

An instance that no other instance has fenced begins at "join". After a failure it begins at "take over". If the outcome
of the commit is unknown, the instance finds it in the log. It decides the change again only if the log does not contain
the change. A change that writes nothing needs no transaction.

Decides how recent the state behind an answer is. The state contains every change that this instance acknowledged.
Changes of other instances arrive through a fetch that always waits at the log's end. Before a negative answer
(something does not exist, or a change is refused), this instance reads to the end of the log once more.

The state belongs to the loop that called `open`; the client waits on two threads of its own. Does not use HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kbroker.admin.connection import Connection
from kbroker.admin.errors import AdminError
from kbroker.admin.fetching import Piece, UnreadableBatch
from kbroker.admin.own_thread import OwnThread
from kbroker.admin.schemas_topic import schemas_topic
from kbroker.admin.transactional_partition import Fenced, PartitionDenied, TooLarge, TransactionalPartition
from kbroker.coordination.shard import Outcome
from kbroker.long_work import in_slices
from kbroker.schema_registry.errors import Refusal, RegistryError
from kbroker.schema_registry.records import SCHEMAS_TOPIC
from kbroker.schema_registry.service import Settled
from kbroker.schema_registry.shard import RegistryShard
from kbroker.schema_registry.state import State

TRANSACTIONAL_ID: Final = "kbroker-schema-registry"
"""The default transactional id that all instances share."""
PATIENCE_S: Final = 10.0
"""The seconds for which a request waits for Kafka."""
_WAIT_MS: Final = 500
"""The milliseconds for which a fetch waits at the log's end."""
_LOOK_S: Final = 2.0
"""The seconds for which an answer waits for an open transaction of another instance."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0
_MOST_WAITING: Final = 1_000
_AT_ONCE: Final = 50
"""The number of records that are replayed before other work of the event loop may run."""
_ENDS: Final = "The registry ends"
_CLOSE_S: Final = 0.25
"""The seconds for which `close` waits for each thread. A thread that is still connecting ends by itself later."""
T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Change:
    """A change that waits until the earlier changes are made, at most until a time on the loop's clock."""

    decide: Callable[[RegistryShard], Outcome]
    future: asyncio.Future[Any]
    until: float
    base: int = -1
    """The offset of the change's first record, once its commit was requested."""
    reply: Any = None
    is_written: bool = False
    """Whether the change's records were read from the log as committed."""
    trouble: str = ""
    """The reason why the last try failed."""

    def answer(self, reply: Any) -> None:
        """Set the reply if anybody still waits for it."""
        if not self.future.done():
            self.future.set_result(reply)


@dataclass(eq=False, slots=True)
class _Replayed:
    """The registry's state, and the offset up to which the log was replayed for it."""

    shard: RegistryShard = field(default_factory=RegistryShard)
    position: int = 0
    told: int = 0
    """The number of records that could not be read."""


class KafkaStore:
    """The store of one instance, between `open` and `close`."""

    def __init__(
        self, connection: Connection, transactional_id: str = TRANSACTIONAL_ID, patience_s: float = PATIENCE_S
    ) -> None:
        self._patience_s = patience_s
        self._writer = TransactionalPartition(connection, SCHEMAS_TOPIC, transactional_id, schemas_topic)
        self._reader = TransactionalPartition(connection, SCHEMAS_TOPIC, transactional_id, schemas_topic)
        self._threads: tuple[OwnThread, ...] = ()
        self._replayed = _Replayed()
        self._holds = False
        self._changes: asyncio.Queue[_Change] = asyncio.Queue(_MOST_WAITING)
        self._current: _Change | None = None
        self._looked_s = -1.0
        self._looking = asyncio.Lock()
        self._is_current = asyncio.Event()
        self._topics_seen = (0, 0)
        self._tasks: list[asyncio.Task[None]] = []
        self._trouble = ""
        self._ended = False

    @property
    def position(self) -> int:
        """The offset up to which the log was replayed."""
        return self._replayed.position

    async def open(self) -> None:
        """Find or create the topic, and replay it. Raises AdminError and KafkaError after closing everything."""
        self._threads = (OwnThread("kbroker-registry-writer"), OwnThread("kbroker-registry-reader"))
        try:
            await self._threads[0].call(self._writer.topic)
            with contextlib.suppress(_Behind):  # an instance that was killed left a transaction open
                await self._catch_up()
        except BaseException:
            self.close()
            raise
        self._is_current.set()
        log.info("%s is replayed up to offset %d", SCHEMAS_TOPIC, self.position)
        self._tasks = [
            asyncio.create_task(self._follow(), name="follow _schemas"),
            asyncio.create_task(self._write(), name="write _schemas"),
        ]

    def close(self) -> None:
        """End all waits immediately, and refuse later changes."""
        self._ended = True
        for task in self._tasks:
            task.cancel()
        waiting = [] if self._current is None else [self._current]
        while not self._changes.empty():
            waiting.append(self._changes.get_nowait())
        for change in waiting:
            if not change.future.done():
                change.future.set_exception(Refusal.TIMED_OUT(_ENDS))
        for partition in (self._writer, self._reader):
            partition.close()
        for thread in self._threads:
            thread.close(_CLOSE_S)

    # -- what a registry asks

    def settled(self) -> Settled | None:
        """Return None: only a request to the brokers shows whether other instances have written."""
        return None

    async def ask(self, question: Callable[[State], T]) -> T:
        """Return the answer to a short question. Raises RegistryError."""
        await self._served()
        try:
            answer = question(self._replayed.shard.state)
        except RegistryError:
            await self._look()
            return question(self._replayed.shard.state)
        if answer is not None:
            return answer
        await self._look()
        return question(self._replayed.shard.state)

    async def ask_long(self, question: Callable[[State], Coroutine[Any, Any, T]]) -> T:
        """Return the answer to a question that awaits `turn`. Raises RegistryError."""
        while True:
            await self._served()
            replayed = self._replayed
            answer = await in_slices(question(replayed.shard.state))
            if replayed is self._replayed:
                return answer

    async def decide(self, decision: Callable[[RegistryShard], Outcome]) -> Any:
        """Return the reply to a decision. Raises RegistryError."""
        await self._served()
        outcome = decision(self._replayed.shard)
        if not outcome.writes and not isinstance(outcome.reply, RegistryError):
            return outcome.reply
        if self._ended:
            raise Refusal.TIMED_OUT(_ENDS)
        loop = asyncio.get_running_loop()
        change = _Change(decision, loop.create_future(), loop.time() + self._patience_s)
        try:
            self._changes.put_nowait(change)
        except asyncio.QueueFull:
            raise Refusal.TIMED_OUT("Too many changes wait for Kafka") from None
        try:
            async with asyncio.timeout_at(change.until):
                reply = await change.future
        except TimeoutError:
            raise self._late(change.trouble) from None
        if isinstance(reply, RegistryError):
            raise reply
        return reply

    def _late(self, trouble: str = "") -> RegistryError:
        trouble = trouble or self._trouble
        return Refusal.TIMED_OUT(f"Kafka did not answer in time{trouble and ': '}{trouble}")

    async def _served(self) -> None:
        """Wait while the log is being replayed from its start."""
        if not self._is_current.is_set():
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._is_current.wait()
            except TimeoutError:
                raise self._late() from None

    async def _look(self) -> None:
        """Read all changes that any instance acknowledged before now. Raises RegistryError if Kafka does not answer.

        Concurrent requests share one read. If another instance has left a transaction open, readers get no records
        after its beginning. The read waits only for a limited time for the end of that transaction.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._patience_s), self._looking:
                if self._looked_s < began:
                    at = loop.time()
                    with contextlib.suppress(_Behind):
                        await self._catch_up()
                    self._looked_s = at
        except (TimeoutError, AdminError) as error:
            raise self._late(str(error)) from None

    # -- reading

    async def _follow(self) -> None:
        """Read the records that other instances write, as soon as these records are committed."""
        pause = _FIRST_PAUSE_S
        while True:
            replayed = self._replayed
            at = replayed.position
            try:
                piece, broken = await self._threads[1].call(lambda at=at: self._reader.read(at, _WAIT_MS))  # type: ignore[misc]
                if self._reader.topics_seen != self._topics_seen[1]:
                    self._saw_topic(1)
                    continue
                await self._take_in(replayed, at, piece, broken)
            except AdminError as error:
                if not self._trouble:
                    log.warning("%s cannot be read, and is tried again: %s", SCHEMAS_TOPIC, error)
                self._trouble = str(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                continue
            if not self._is_current.is_set():
                await self._replay_again()
            elif self._trouble:
                self._trouble = ""
                log.info("%s is read again", SCHEMAS_TOPIC)
            pause = _FIRST_PAUSE_S

    async def _replay_again(self) -> None:
        with contextlib.suppress(AdminError):  # `_follow` tries again later
            await self._catch_up()
            self._is_current.set()

    async def _catch_up(self) -> None:
        """Read to the log's current end; raises _Behind."""
        end = await self._threads[0].call(self._writer.end_offset)
        self._saw_topic(0)
        await self._read_to(end)

    async def _read_to(self, end: int) -> None:
        """Read up to an offset; raises _Behind if an open transaction still hides it after some time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _LOOK_S
        while self.position < end:
            replayed = self._replayed
            at = replayed.position
            piece, broken = await self._threads[0].call(lambda at=at: self._writer.read(at, 100))  # type: ignore[misc]
            await self._take_in(replayed, at, piece, broken)
            if self.position <= at and loop.time() >= until:
                raise _Behind(f"an open transaction in {SCHEMAS_TOPIC} hides the records after its beginning")

    def _saw_topic(self, which: int) -> None:
        """Drop the state if the topic was created anew since the last check of this connection."""
        seen = self._writer.topics_seen, self._reader.topics_seen
        if self._topics_seen[which] not in (0, seen[which]):
            self._forget("it was deleted, and made anew")
        self._topics_seen = (seen[0], self._topics_seen[1]) if which == 0 else (self._topics_seen[0], seen[1])

    async def _take_in(self, replayed: _Replayed, at: int, piece: Piece, broken: UnreadableBatch | None) -> None:
        """Replay the records of a fetch that are not replayed yet; let requests run from time to time.

        Two such replays, one per thread, may run at the same time. Each record is still replayed once, in the order of
        the log.
        """
        if replayed is not self._replayed:
            return
        if piece.out_of_range:
            if at < replayed.position:
                return
            if at > 0:
                self._forget(f"it has offsets {piece.begin} to {piece.end} only, and was replayed up to {at}")
            replayed = self._replayed
            replayed.position = max(replayed.position, piece.begin)
            return
        if broken is not None and piece.next_offset > replayed.position:
            log.error("%s: a batch is skipped: %s", SCHEMAS_TOPIC, broken)
        for number, each in enumerate(piece.records, 1):
            if each.offset >= replayed.position:
                self._replay(replayed, each.offset, each.key, each.value)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
                if replayed is not self._replayed:
                    return
        replayed.position = max(replayed.position, piece.next_offset)

    def _replay(self, replayed: _Replayed, offset: int, key: bytes | None, value: bytes | None) -> None:
        if self._current is not None and offset == self._current.base:
            self._current.is_written = True
        try:
            if key is None:
                raise ValueError("it has no key")
            replayed.shard.replay(offset, -1, key, value)
        except Exception as error:  # noqa: BLE001 - others have written it; whatever is wrong is named
            replayed.told += 1
            level = logging.WARNING if replayed.told == 1 else logging.DEBUG
            log.log(level, "%s: the record at offset %d is skipped: %s", SCHEMAS_TOPIC, offset, error)
        replayed.position = offset + 1

    def _forget(self, reason: str) -> None:
        """Drop the state, so that the log is replayed from its first record."""
        log.error("%s is replayed from its first record: %s", SCHEMAS_TOPIC, reason)
        self._is_current.clear()
        self._replayed = _Replayed()
        self._holds = False

    # -- writing

    async def _write(self) -> None:
        while True:
            change = await self._changes.get()
            try:
                await self._make(change)
            finally:
                self._current = None

    async def _make(self, change: _Change) -> None:
        """Try a change until a reply arrives, or until no caller waits for the reply any more."""
        loop = asyncio.get_running_loop()
        self._current = change
        pause = _FIRST_PAUSE_S
        while not change.future.done() and loop.time() < change.until:
            try:
                answered, reply = await self._tried(change)
                if answered:
                    change.answer(reply)
                    return
            except Fenced as error:
                self._holds = False
                log.debug("a change is decided anew: %s", error)
            except TooLarge:
                self._holds = False
                change.answer(Refusal.SCHEMA_TOO_LARGE.error)
                return
            except PartitionDenied as error:
                self._holds = False
                change.answer(Refusal.STORE_FAILED(f"Write to the Kafka store failed: {error}"))
                return
            except AdminError as error:
                self._holds = False
                change.trouble = str(error)
                log.warning("a change is tried again: %s", error)
            except Exception as error:  # noqa: BLE001 - the caller's
                self._holds = False
                if not change.future.done():
                    change.future.set_exception(error)
                return
            # Instances that fence each other pause for random times, so that one of them can finish its change.
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _tried(self, change: _Change) -> tuple[bool, Any]:
        """Try a change once; return whether it has a reply, and the reply."""
        write = self._threads[0].call
        await self._served()
        if change.base < 0 and not (outcome := change.decide(self._replayed.shard)).writes:
            before = self.position
            if isinstance(outcome.reply, RegistryError):
                with contextlib.suppress(_Behind):
                    await self._catch_up()
            return self.position == before, outcome.reply
        if not self._holds:
            await write(self._writer.begin)
            self._holds = True
        await write(self._writer.join)
        await self._catch_up()
        if not self._holds:  # the log must be replayed from its start
            return False, None
        if change.is_written:
            await write(lambda: self._writer.end(commit=False))
            return True, change.reply
        change.base = -1
        outcome = change.decide(self._replayed.shard)
        if not outcome.writes:
            await write(lambda: self._writer.end(commit=False))
            return True, outcome.reply
        replayed, at = self._replayed, self.position
        base = await write(lambda: self._writer.append(outcome.records))
        if base != at or replayed is not self._replayed:
            await write(lambda: self._writer.end(commit=False))
            if base < at:
                self._forget(f"it was cut at {base}, and was replayed up to {at}")
            return False, None
        change.base, change.reply = base, outcome.reply
        await write(lambda: self._writer.end(commit=True))
        await self._read_to(base + len(outcome.records))
        return change.is_written, outcome.reply


class _Behind(AdminError):  # noqa: N818 - an outcome
    """An open transaction hides the records at the log's end from readers of committed records."""
