"""The broker is ended before and after each step of a commit, and at random; no transaction is ever torn.

Several transactional producers of both generations write the number of each transaction to several partitions and, as
an offset, to a group, and end it one way or the other; their transactions overlap. After each end of the broker readers
of committed and of all records look at everything: a transaction whose end was acknowledged is there as a whole or not
at all, as it was ended; one whose end was not answered may be either, but never both; nothing is there twice, out of
order or above the last stable offset. Every producer comes back by InitProducerId, which aborts what it had open.

Run as a module for the long form: `python -m tests.crash.transactions --kills 200 --seed 7`.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

from compat_tests.harness.brokers import BrokerFailed, KBroker
from kbroker.failpoints import NAMES, VARIABLE
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from kbroker.txn.shard import Identity
from tests.crash.long_form import long_form, say
from tests.txn.raw import PATIENCE_S, Raw, until

PARTITIONS = 3
PRODUCERS = 4
TOPIC, SOURCE = "torn", "source"
SETTINGS = {
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "log.segment.bytes": "1048576",
}
STEPS = tuple(name for name in NAMES if name.startswith("txn."))


class Gone(Exception):  # noqa: N818 - what happened
    """The broker ended while it was being asked."""


class Line(Raw):
    """A connection to a broker that may end."""

    def ask(self, request: Any, version: int) -> Any:
        try:
            answer = super().ask(request, version)
        except OSError as error:
            raise Gone from error
        if isinstance(answer, str):
            raise Gone
        return answer


def connect(address: str, generation: int = 1) -> Line:
    try:
        return Line(address, generation)
    except OSError as error:
        raise Gone from error


class Worker:
    """One transactional id, and the known state of its transactions by number."""

    def __init__(self, index: int) -> None:
        self.name = f"worker-{index}"
        self.group = f"group-{index}"
        self.generation = 1 + index % 2
        self.line: Line | None = None
        self.producer = Identity()
        self.number = 0
        self.sequences = Counter[int]()
        self.wrote: dict[int, set[int]] = {}
        self.committed: list[int] = []
        self.doubtful: set[int] = set()

    def attach(self, address: str) -> None:
        self.line = connect(address, self.generation)
        self.line.add_offsets(self.name, Identity(), self.group)
        self.producer = self.line.init(self.name)
        self.sequences.clear()

    def write(self, rng: random.Random) -> None:
        """Begin a transaction and write to some of its partitions and its group."""
        assert self.line is not None
        self.number += 1
        self.wrote[self.number] = set()
        value = f"{self.name}:{self.number}".encode()
        for index in rng.sample(range(PARTITIONS), rng.randint(1, PARTITIONS)):
            self.line.write(self.name, self.producer, TOPIC, [value], index=index, sequence=self.sequences[index])
            self.sequences[index] += 1
            self.wrote[self.number].add(index)
        if self.generation == 1:
            code = self.line.add_offsets(self.name, self.producer, self.group)
            assert code is ErrorCode.NONE, code
        code = self.line.offsets(self.name, self.producer, self.group, SOURCE, self.number)
        assert code is ErrorCode.NONE, code

    def end(self, commit: bool) -> None:
        """End the transaction; until the answer arrives, nobody knows the outcome."""
        assert self.line is not None
        if commit:
            self.doubtful.add(self.number)
        answer = self.line.end_once(self.name, self.producer, commit)
        assert isinstance(answer, Identity), answer
        if answer != self.producer:
            self.producer = answer
            self.sequences.clear()
        if commit:
            self.doubtful.discard(self.number)
            self.committed.append(self.number)

    def detach(self) -> None:
        if self.line is not None:
            self.line.close()
            self.line = None


class _Broker(KBroker):
    """A broker with failpoints in its environment."""

    armed = ""
    count = 1

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), VARIABLE: f"{self.armed}:{self.count}" if self.armed else ""}


class Transactions:
    """One data directory, many kills."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.broker = _Broker(directory, SETTINGS)
        self.workers = [Worker(i) for i in range(PRODUCERS)]
        self.stable = [0] * PARTITIONS
        self._steps = itertools.cycle(self.rng.sample(STEPS, len(STEPS)))

    def summary(self) -> str:
        committed = sum(len(worker.committed) for worker in self.workers)
        kills = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        return f"{sum(w.number for w in self.workers)} transactions, {committed} committed; {kills}"

    def run(self, kills: int) -> None:
        """Let the broker start and end this often, and check everything after each end."""
        self.broker.start()
        self._create_topics()
        for number in range(kills):
            self._live_and_die()
            self._come_back()
            if number % 20 == 19:
                say(f"{number + 1} lives: {self.summary()}")
        self.broker.kill()
        self.broker.armed = ""
        for _ in ("after a kill", "after a clean stop"):
            self.broker.start()
            self.check()
            assert self.broker.stop() == 0, self.broker.log_tail()

    def _create_topics(self) -> None:
        line = Line(self.broker.bootstrap)
        topics = [CreatableTopic(TOPIC, PARTITIONS, 1), CreatableTopic(SOURCE, 1, 1)]
        line.ask(CreateTopicsRequest(topics=topics, timeout_ms=20_000), 5)
        line.close()

    def _live_and_die(self) -> None:
        armed = self.broker.armed
        deadline = time.monotonic() + (PATIENCE_S if armed else self.rng.uniform(0.1, 0.5))
        try:
            for worker in self.workers:
                worker.attach(self.broker.bootstrap)
            while time.monotonic() < deadline:
                self._round()
            assert not armed, f"{armed} is never passed"
        except Gone:
            assert self.broker.died_by_kill(), self.broker.log_tail()
            self.counts[f"kills at {self.broker.armed}"] += 1
        else:
            self.counts["kills at a moment"] += 1
        self.broker.kill()
        for worker in self.workers:
            worker.detach()

    def _round(self) -> None:
        """Let all producers write, so that their transactions overlap, then end them in another order."""
        for worker in self.rng.sample(self.workers, PRODUCERS):
            worker.write(self.rng)
        for worker in self.rng.sample(self.workers, PRODUCERS):
            worker.end(commit=self.rng.random() < 0.7)

    def _come_back(self) -> None:
        self.broker.armed = next(self._steps) if self.rng.random() < 0.8 else ""
        self.broker.count = self.rng.choice((1, 2, 5, 9))
        try:
            self.broker.start()
            self.check()
        except (Gone, BrokerFailed):  # decided transactions are finished during the start, and the failpoint is there
            assert self.broker.died_by_kill(), self.broker.log_tail()
            self.counts[f"kills at {self.broker.armed} during a start"] += 1
            self.broker.kill()
            self.broker.armed = ""
            self.broker.start()
            self.check()

    def check(self) -> None:
        """Check everything after every producer has initialised again, so that no transaction is open."""
        reader = connect(self.broker.bootstrap)
        try:
            for worker in self.workers:
                worker.attach(self.broker.bootstrap)
            seen = [until("the end of all", lambda i=i: self._settled(reader, i))[0] for i in range(PARTITIONS)]
            for worker in self.workers:
                self._check_worker(worker, seen, reader)
            self.counts["checks"] += 1
        finally:
            reader.close()
            for worker in self.workers:
                worker.detach()

    def _settled(self, reader: Line, index: int) -> tuple[list[bytes]] | None:
        """Return a partition's committed records once its last stable offset, which only grows, reaches the end."""
        found = reader.see(TOPIC, index=index)
        assert found.stable >= self.stable[index], "the last stable offset went back"
        self.stable[index] = found.stable
        return (found.values,) if found.stable == found.high_watermark else None

    def _check_worker(self, worker: Worker, seen: list[list[bytes]], reader: Line) -> None:
        prefix = f"{worker.name}:"
        numbers = [
            [int(value.decode().removeprefix(prefix)) for value in values if value.decode().startswith(prefix)]
            for values in seen
        ]
        for found in numbers:
            assert found == sorted(set(found)), f"{worker.name}: twice or out of order: {found[-20:]}"
        there = set().union(*map(set, numbers))
        worker.committed += sorted(worker.doubtful & there)
        worker.doubtful.clear()
        assert there == {number for number in worker.committed if worker.wrote[number]}, worker.name
        for number in worker.committed:
            where = {index for index, found in enumerate(numbers) if number in found}
            assert where == worker.wrote[number], f"{worker.name}: transaction {number} is torn: {where}"
        position = reader.position(worker.group, SOURCE, stable=True)
        assert position == max(worker.committed, default=-1), f"{worker.name}: offsets are torn from their records"


if __name__ == "__main__":
    long_form(__doc__, 200, Transactions, "nothing torn")
