"""One world from one seed: brokers, clients and faults for a number of steps; then all faults end and it is judged.

Owns the order of events and the digest of what happened, which must be the same in two runs of a seed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from kbroker import handlers
from tests.simulation import brokers as processes
from tests.simulation.administrators import Creator, Mover, Recreator
from tests.simulation.book import LOOSE, MOVED, PAIRED, PARTITIONS, TOPIC, Book, Client
from tests.simulation.brokers import SimBroker, SimClock
from tests.simulation.faults import Faults
from tests.simulation.groups import Committer, Member, Shared
from tests.simulation.invariants import Invariants
from tests.simulation.loop import Life, SimLoop
from tests.simulation.machine import START_S, machine
from tests.simulation.network import Network, Pipe
from tests.simulation.producers import Hasty, Paired, Producer
from tests.simulation.readers import LooseReader, PairedReader, Reader
from tests.simulation.shares import ShareMember, Story
from tests.simulation.states import States, WatchedEnsemble, usable_for
from tests.simulation.violation import Violation

BROKERS = (1, 2, 3)
PRODUCERS = 3
MEMBERS = 2
UNCLEAN = (LOOSE,)
_FAULT_EVERY_S = 0.5
_PATIENCE_S = 240.0
"""Virtual seconds within which everything must work again after the last fault."""
_NOTES_KEPT = 60
_MOST_AT_ONCE = 100_000
"""Steps for which the time may stay the same."""


@dataclass
class Outcome:
    """The result of a world."""

    seed: int
    steps: int = 0
    seconds: float = 0.0
    messages: int = 0
    checks: int = 0
    batches: int = 0
    digest: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    violation: str = ""
    notes: list[str] = field(default_factory=list)
    """What happened before a violation."""


class World:
    """See the module's docstring."""

    def __init__(
        self, seed: int, steps: int, directory: Path, kinds: list[str] | None, trace: Callable[[str], None] | None
    ) -> None:
        self.seed, self.budget = seed, steps
        self.loop = SimLoop()
        machine.begin(self.loop, seed)
        self.network = self.loop.network = Network(self.loop, Random(f"network {seed}"))
        self.ensemble = WatchedEnsemble()
        self.digest = 0
        self.notes: list[str] = []
        self._trace = self.loop.trace = trace
        self._unhandled: list[str] = []
        self._since = -1.0, 0
        """The time, and the first step at this time."""
        self.clock = SimClock(self.loop, START_S)
        store = Random(f"store {seed}")
        self.brokers = {
            each: SimBroker(self.loop, self.ensemble, store, self.clock, each, directory) for each in BROKERS
        }
        self.states = States(self.ensemble, UNCLEAN)
        self.invariants = Invariants(self.brokers, self.states, UNCLEAN)
        self.ensemble.on_commit = self.states.committed
        self.states.may_come_in = self.invariants.may_come_in
        self.states.usable = usable_for(self.brokers)
        self.faults = Faults(
            self.loop, self.network, self.brokers, Random(f"faults {seed}"), self.note, self._in_sync, kinds
        )
        self.random = Random(f"world {seed}")
        self.book = Book(self.clock.now_ms, self.invariants)
        self.clients: list[Client] = []
        self.tasks: list[asyncio.Task[None]] = []
        processes.install(self.network)

    def note(self, what: str) -> None:
        self.notes.append(f"{self.loop.passed:.3f} {what}")
        if self._trace is not None:
            self._trace(what)

    # --- what is looked at after each step

    def _after(self, life: Life | None) -> None:
        number = 0 if life is None else life.number
        self.digest = zlib.crc32(b"%d %.6f" % (number, self.loop.passed), self.digest)
        self.invariants.after(life)
        if self.loop.passed > self._since[0]:
            self._since = self.loop.passed, self.loop.steps
        elif self.loop.steps > self._since[1] + _MOST_AT_ONCE:
            raise Violation(f"{life and life.host} goes on for ever, and no time passes")
        if self._unhandled:
            raise Violation(f"an exception that nobody handles: {self._unhandled[0]}")

    def _delivered(self, pipe: Pipe, data: bytes) -> None:
        self.digest = zlib.crc32(data, self.digest)
        if self._trace is not None:
            self._trace(f"{pipe.source} -> {pipe.target} {len(data)} {zlib.crc32(data):08x}")

    def _exception(self, _loop: Any, context: dict[str, Any]) -> None:
        life, error = self.loop.running, context.get("exception")
        if life is None and isinstance(error, AssertionError):
            self._unhandled.append(f"the world: {context['message']}: {error!r}")
        elif life is not None and not life.dying:  # the rest of a killed process ends in the world's callbacks
            self._unhandled.append(f"{life.host}: {context['message']}: {context.get('exception')!r}")

    # --- its course

    def run(self) -> Outcome:
        outcome = Outcome(self.seed)
        handlers.load_all(in_cluster=True)
        loop = self.loop
        loop.set_exception_handler(self._exception)
        loop.after = self._after
        self.network.on_delivered = self._delivered
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(loop.create_task(self._live(outcome), context=loop.world))
        except AssertionError as error:
            outcome.violation = f"at {self.loop.passed:.3f}: {error}"
            outcome.notes = self.notes[-_NOTES_KEPT:]
        outcome.steps, outcome.seconds = loop.steps, loop.passed
        outcome.messages, outcome.checks = self.network.messages, self.invariants.checks
        outcome.digest = self.digest
        faults = self.faults.counts + Counter()
        outcome.faults, outcome.counts = dict(faults), dict(self.book.counts) | self.states.counts
        return outcome

    async def _live(self, outcome: Outcome) -> None:
        for broker in self.brokers.values():
            broker.start()
        creator = self._client(Creator, "creator")
        await asyncio.wait_for(self._done([creator.begin()]), _PATIENCE_S)
        self._begin_clients()
        while self.loop.steps < self.budget:
            await asyncio.sleep(self.random.expovariate(1 / _FAULT_EVERY_S))
            self._look_at_clients()
            if self.faults.kinds != ["none"]:
                self.faults.one()
        self.note("mend")
        await self._mend()
        outcome.batches = self.invariants.judge_files()
        self.book.counts["lives"] = sum(each.lives for each in self.brokers.values())
        for broker in self.brokers.values():
            await broker.kill()

    def _client(self, kind: Any, name: str, **more: Any) -> Any:
        random = Random(f"{name} {self.seed}")
        client = kind(self.loop, random, self.book, name, list(BROKERS), **more)
        self.clients.append(client)
        return client

    def _begin_clients(self) -> None:
        self.producers = [self._client(Producer, f"producer{each}") for each in range(PRODUCERS)]
        self.producers.append(self._client(Producer, "traveller", topic=MOVED))
        self.producers.append(self._client(Paired, "pairs"))
        self.producers.append(self._client(Hasty, "hasty"))
        self.producers.append(self._client(Mover, "mover"))
        self.producers.append(self._client(Recreator, "recreator"))
        self.readers = [self._client(Reader, f"reader{each}", topic=TOPIC, index=each) for each in range(PARTITIONS)]
        self.readers += [self._client(Reader, f"{MOVED}{each}", topic=MOVED, index=each) for each in range(PARTITIONS)]
        self.readers += [self._client(LooseReader, f"{LOOSE}{each}", index=each) for each in range(PARTITIONS)]
        self.readers += [self._client(PairedReader, f"{PAIRED}{each}", index=each) for each in range(PARTITIONS)]
        self.readers.append(self._client(Committer, "committer"))
        shared = Shared()
        self.readers += [self._client(Member, f"member{each}", shared=shared) for each in range(MEMBERS)]
        story = Story()
        self.readers += [self._client(ShareMember, f"worker{each}", story=story) for each in range(MEMBERS)]
        self.faults.clients = [each.life.host for each in self.clients]
        self.producing = [each.begin() for each in self.producers]
        self.tasks = [each.begin() for each in self.readers]

    def _look_at_clients(self) -> None:
        """Raise the error that ended a client, or that of a fault which failed."""
        for task in (*self.producing, *self.tasks, *self.faults.tasks):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _done(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait for clients; an error of one of them is raised immediately."""
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task in done:
                task.result()

    async def _mend(self) -> None:
        """End all faults, let the clients finish, and wait until everything works again."""
        self.book.over = True
        deadline = self.loop.passed + _PATIENCE_S
        await self._until(self._all_serve, deadline, lambda: "brokers do not come back")
        await self._until(
            lambda: all(each.done() for each in self.producing),
            deadline,
            lambda: f"not answered: {self._unfinished(self.producers, self.producing)}",
        )
        await self._until(lambda: not self._missing(), deadline, self._missing)
        self.book.finished = True
        await self._until(
            lambda: all(each.done() for each in self.tasks),
            deadline,
            lambda: f"hanging: {self._unfinished(self.readers, self.tasks)}",
        )
        await self._until(lambda: not self.invariants.whole(), deadline, self.invariants.whole)

    async def _until(self, holds: Callable[[], bool], deadline: float, why: Callable[[], str]) -> None:
        while True:
            self._look_at_clients()
            if holds():
                return
            if self.loop.passed > deadline:
                raise Violation(f"after {_PATIENCE_S:.0f} s without faults: {why()}")
            self.faults.mend()
            await asyncio.sleep(0.2)

    def _unfinished(self, clients: list[Any], tasks: list[asyncio.Task[None]]) -> str:
        """Return which clients have not finished, and the last answer to each."""
        return ", ".join(
            f"{client.name} ({client.trouble})" for client, task in zip(clients, tasks, strict=True) if not task.done()
        )

    def _in_sync(self) -> bool:
        """Whether every partition has all its replicas in sync."""
        return self._all_serve() and not self.invariants.out_of_sync()

    def _all_serve(self) -> bool:
        return all(each.serves for each in self.brokers.values())

    def _missing(self) -> str:
        return next(filter(None, (each.missing() for each in self.readers)), "")


def run(seed: int, steps: int, kinds: list[str] | None = None, trace: Callable[[str], None] | None = None) -> Outcome:
    """Run a world in its own directory, in memory if there is room."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a disk in memory
    directory = Path(tempfile.mkdtemp(prefix="kbroker-simulation-", dir=base))
    gc.disable()
    try:
        return World(seed, steps, directory, kinds, trace).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
