"""A registry in a broker: a shard over `_schemas`, whose leader decides.

Owns the lifecycle as a coordinator, the wait while the partition is created, elected or loaded, and the calls from
another thread's event loop to the broker's loop. Never decides: shard.py does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from kbroker.clock import Clock
from kbroker.coordination.service import CoordinatorService
from kbroker.coordination.shard import Outcome, Writer
from kbroker.long_work import awaited, in_slices
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.schema_registry.errors import Refusal, RegistryError
from kbroker.schema_registry.records import SCHEMAS_TOPIC
from kbroker.schema_registry.shard import RegistryShard
from kbroker.schema_registry.state import State
from kbroker.schema_registry.tally import Tally

_PATIENCE_S: Final = 5.0
"""The seconds for which a request waits for a leader that is being elected, or that loads the topic."""
_PAUSE_S: Final = 0.05
_PASSING: Final = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)
_AT_ONCE: Final = 2
"""The maximum number of schemas that are parsed at the same time: more would only wait for the interpreter's lock."""
NOBODY: Final = -1
T = TypeVar("T")


class Place(NamedTuple):
    """The broker that leads `_schemas`, or NOBODY; `url` is the URL of that broker's registry, if it has one."""

    broker: int
    url: str | None = None


class Settled(NamedTuple):
    """A state in which no record can be lost any more. Two objects are equal if nothing has changed between them."""

    state: State
    decisions: int
    """The number of decisions that have begun so far."""
    end: int
    """The end offset of the state's records. Other registries can also append records."""


class _Failed(NamedTuple):
    """The runtime could not answer."""

    code: ErrorCode
    message: str | None

    @property
    def error(self) -> RegistryError:
        """The error that a client gets."""
        if self.code in _PASSING:
            return Refusal.UNKNOWN_LEADER.error
        return Refusal.STORE_FAILED(f"Write to the Kafka store failed: {self.message or self.code.name}")


class RegistryService(CoordinatorService[RegistryShard]):
    """The registry's shard, if this broker leads it.

    `create` creates the topic if it is missing, and raises RegistryError if the existing topic cannot keep schemas.

    If it is not `alone`, it refuses a request immediately while another broker may lead, so that the caller can ask
    that broker.
    """

    def __init__(
        self,
        writer: Writer,
        clock: Clock,
        write_timeout_ms: int,
        create: Callable[[], Awaitable[None]],
        *,
        alone: bool = True,
    ) -> None:
        self._create = create
        self._alone = alone
        self.tally = Tally()
        self._decisions = self._undecided = 0
        super().__init__(SCHEMAS_TOPIC, 1, lambda _partition: RegistryShard(), writer, clock, write_timeout_ms)

    async def ask(self, question: Callable[[State], T]) -> T:
        """Return the answer to a short question. Raises RegistryError."""

        async def asked() -> T | _Failed:
            return await awaited(self._runtime.read(0, lambda shard, _now: question(shard.state), _Failed))

        return await self._served(asked)

    async def ask_long(self, question: Callable[[State], Coroutine[Any, Any, T]]) -> T:
        """Return the answer to a question that awaits `turn`. Raises RegistryError."""

        async def asked() -> T | _Failed:
            read: Any = self._runtime.read_divided(0, lambda shard, _now: question(shard.state), _Failed)
            answer: T | _Failed = await awaited(await in_slices(read))
            return answer

        return await self._served(asked)

    async def decide(self, decision: Callable[[RegistryShard], Outcome]) -> Any:
        """Return the reply to a decision, which is executed at most once. Raises RegistryError."""
        writes = False

        def once(shard: RegistryShard, _now_ms: int) -> Outcome:
            nonlocal writes
            outcome = decision(shard)
            writes = outcome.writes
            return outcome

        async def decided() -> Any:
            reply: Any = await awaited(self._runtime.run(0, once, _Failed))
            if isinstance(reply, _Failed) and writes:
                return Refusal.STORE_FAILED(
                    f"Write to the Kafka store failed, and may have been made: {reply.message or reply.code.name}"
                )
            return reply

        self._undecided += 1  # change this before `_decisions`: `settled` reads the two in the reverse order
        self._decisions += 1
        try:
            reply = await self._served(decided)
        finally:
            self._undecided -= 1
        if isinstance(reply, RegistryError):
            raise reply
        return reply

    def settled(self) -> Settled | None:
        # Read this number first: a decision that is made meanwhile either changes the number or is in `_undecided`.
        decisions = self._decisions
        if self._undecided:
            return None
        replayed = self._runtime.replayed(0)
        return None if replayed is None else Settled(replayed[0].state, decisions, replayed[1])

    @property
    def state(self) -> State | None:
        """The state with the records of all writers; None while another broker leads, or while it is being loaded."""
        try:
            self._runtime.catch_up(0)
            return self._runtime.shard(0).state
        except ApiError:
            return None

    def _catch_up(self) -> None:
        """Replay the records of other writers: `_schemas` may be mirrored, or another registry may write to it."""
        with contextlib.suppress(ApiError):  # another broker leads
            self._runtime.catch_up(0)

    async def _served(self, ask: Callable[[], Awaitable[T | _Failed]]) -> T:
        """Return an answer when this broker serves the partition."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE_S
        while True:
            await self._create()
            self._catch_up()
            answer = await ask()
            if not isinstance(answer, _Failed):
                return answer
            is_elsewhere = answer.code is ErrorCode.NOT_COORDINATOR and not self._alone
            if answer.code not in _PASSING or is_elsewhere or self._closed or loop.time() >= until:
                raise answer.error
            await asyncio.sleep(_PAUSE_S)


class OnItsLoop(Protocol):
    """A store without `aside`, for calls on the loop that owns its state. All methods raise RegistryError."""

    def settled(self) -> Settled | None:
        """Return the state and its progress if the state contains only safe records. Any thread may call this method.

        Return None if a question has to wait, or may have to wait.
        """

    async def ask(self, question: Callable[[State], T]) -> T:
        """Return the answer to a short question."""

    async def ask_long(self, question: Callable[[State], Coroutine[Any, Any, T]]) -> T:
        """Return the answer to a long question, which awaits `turn` to let other work run."""

    async def decide(self, decision: Callable[[RegistryShard], Outcome]) -> Any:
        """Return the reply to a decision."""


class FromOtherThread:
    """The registry's store for a server in its own thread (`Store`); `loop` is the loop that owns the state."""

    def __init__(self, service: OnItsLoop, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._loop = loop
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(self, question: Callable[[State], T]) -> T:
        return await self._there(self._service.ask(question))

    async def look(self, question: Callable[[State], T]) -> T:
        # A request by id through the other thread's loop would take twice the processor time.
        found = self.at_once(lambda state: (question(state),))
        return await self.ask(question) if found is None else found[0]

    def at_once(self, question: Callable[[State], T]) -> T | None:
        before = self._service.settled()
        if before is None:
            return None
        try:
            found = question(before.state)
        except Exception:  # noqa: BLE001 - the state may have changed under the question: `ask` raises it again
            return None
        return found if self._service.settled() == before else None

    async def ask_long(self, question: Callable[[State], Coroutine[Any, Any, T]]) -> T:
        return await self._there(self._service.ask_long(question))

    async def decide(self, decision: Callable[[RegistryShard], Outcome]) -> Any:
        return await self._there(self._service.decide(decision))

    async def aside(self, work: Callable[[], T]) -> T:
        async with self._turns:
            return await asyncio.to_thread(work)

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
