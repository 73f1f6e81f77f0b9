"""Sends the markers that end transactions to the leaders of their partitions, until all markers are written.

Owns the time at which markers are sent, and the size of the pieces, which keeps the event loop responsive with any
number of partitions or transactions. Also owns the meaning of a leader's response, and the log lines about refused
markers. Never decides or stores an outcome. The shard receives each round's progress, and requests the remaining
markers again. So a marker that was lost in a crash is written later. coordination/encoding.py has the bytes of a
marker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, Protocol

from kbroker.coordination.runtime import Runtime
from kbroker.coordination.shard import Outcome, Schedule
from kbroker.failpoints import passed
from kbroker.long_work import for_a_while, then
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.txn.shard import TransactionShard
from kbroker.txn.transaction import PREPARE_COMMIT, TopicPartition, Transaction

log = logging.getLogger(__name__)

Answers = Mapping[TopicPartition, ErrorCode]

RETRY_MS = 100
"""The pause in ms before refused markers of a transaction are sent again."""

_WRITTEN = frozenset({ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION})
_FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})


class Marker(NamedTuple):
    """The end of one producer's transaction on some partitions (an entry of WriteTxnMarkers)."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


class Target(Protocol):
    """A broker that appends markers to the partitions that it leads."""

    def write(self, marker: Marker) -> Answers | Awaitable[Answers]:
        """Append a marker to its partitions; return an error code for each partition."""


class Progress(NamedTuple):
    """The progress of a round of markers.

    `fenced` lists the partitions that know a newer producer and will never accept the marker. `failed` has the error
    codes of other refusals. Partitions without any result are also retried.
    """

    done: frozenset[TopicPartition] = frozenset()
    fenced: frozenset[TopicPartition] = frozenset()
    failed: Mapping[TopicPartition, ErrorCode] = MappingProxyType({})


class Round(NamedTuple):
    """One part of a round of markers: its partitions and its progress, or an awaitable of its progress."""

    partitions: frozenset[TopicPartition]
    progress: Progress | Awaitable[Progress]


class MarkerWriter:
    """Sends markers to leaders.

    `leader_of` returns a partition's leader: None if the partition does not exist (any more), -1 if it has no leader.
    `target_of` returns the broker with a node id, or None if the broker is unreachable.
    """

    def __init__(
        self, leader_of: Callable[[TopicPartition], int | None], target_of: Callable[[int], Target | None]
    ) -> None:
        self._leader_of = leader_of
        self._target_of = target_of

    def write(self, marker: Marker) -> list[Round]:
        """Send one round of markers, leader by leader. Partitions that a response does not contain are retried."""
        by_leader: dict[int, list[TopicPartition]] = {}
        leaderless = []
        for partition in marker.partitions:
            leader = self._leader_of(partition)
            if leader is None:
                leaderless.append(partition)
            else:
                by_leader.setdefault(leader, []).append(partition)
        rounds = [Round(frozenset(leaderless), Progress(frozenset(leaderless)))] if leaderless else []
        for leader, partitions in by_leader.items():
            target = self._target_of(leader)
            if target is None:
                rounds.append(Round(frozenset(partitions), Progress()))
            else:
                part = marker._replace(partitions=tuple(partitions))
                rounds.append(Round(frozenset(partitions), then(target.write(part), partial(_judge, part))))
        return rounds or [Round(frozenset(), Progress())]


def _judge(marker: Marker, answers: Answers) -> Progress:
    """Return the progress. All errors except fencing are retried: a decided outcome must be carried out.

    Each partition is judged separately. A newer producer on one partition proves nothing about the other partitions.
    There consumers may wait for this marker.
    """
    done, fenced, failed = set(), set(), {}
    for partition in marker.partitions:
        code = answers.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
        if code in _WRITTEN:
            done.add(partition)
        elif code in _FENCED:
            log.warning("%s-%d refuses the marker of producer %d: %s", *partition, marker.producer_id, code.name)
            fenced.add(partition)
        else:
            failed[partition] = code
    return Progress(frozenset(done), frozenset(fenced), failed)


PIECE = 20
"""The number of partitions that get their markers between two checks of the time."""


class _Name(NamedTuple):
    """The name of a transaction: its coordinating partition and its transactional id."""

    partition: int
    transactional_id: str


class _Job:
    """A round of markers: its transaction, and the remaining partitions."""

    __slots__ = ("left", "name", "txn")

    def __init__(self, name: _Name) -> None:
        self.name = name
        self.txn: Transaction | None = None
        self.left: list[TopicPartition] = []

    def is_for(self, txn: Transaction) -> bool:
        """Whether the round belongs to this end of a transaction."""
        mine = self.txn
        return mine is not None and mine.ending == txn.ending


class Marking:
    """Sends markers. `defer` schedules a function on the event loop."""

    def __init__(
        self,
        runtime: Runtime[TransactionShard],
        markers: MarkerWriter,
        defer: Callable[[Callable[[], None]], object],
    ) -> None:
        self._runtime = runtime
        self.markers = markers
        self._defer = defer
        self._jobs: deque[_Job] = deque()
        self._queued: set[_Name] = set()
        self._tasks: dict[asyncio.Task[None], None] = {}  # ordered, so that simulations cancel tasks in this order
        self._logged: dict[_Name, set[ErrorCode]] = {}
        # the partitions with unanswered markers, by the markers' `ending`
        self._in_flight: dict[int, set[TopicPartition]] = {}

    def close(self) -> None:
        """Stop waiting for responses."""
        for task in list(self._tasks):
            task.cancel()

    def soon(self, partition: int, transactional_id: str) -> None:
        """Queue a round of markers. The round begins after the current decision has been processed."""
        name = _Name(partition, transactional_id)
        if name in self._queued:
            return
        self._queued.add(name)
        self._jobs.append(_Job(name))
        if len(self._jobs) == 1:
            self._defer(self._work)

    def _work(self) -> None:
        """Send markers for a limited time, then let other work run: a crash may leave thousands of rounds."""
        if for_a_while(self._work_on_first):
            self._defer(self._work)

    def _work_on_first(self) -> bool:
        """Continue with the first round; return whether any round is left."""
        job = self._jobs[0]
        try:
            over = self._send_piece(job)
        except Exception:
            log.exception("markers of %s could not be sent", job.name.transactional_id)
            self._try_again(job.name)
            over = True
        if over:
            self._jobs.popleft()
            self._queued.discard(job.name)
        return bool(self._jobs)

    def _send_piece(self, job: _Job) -> bool:
        """Send some markers of a round. Return whether the round is complete."""
        partition, transactional_id = job.name
        try:
            shard, epoch = self._runtime.shard(partition), self._runtime.epoch(partition)
        except ApiError:
            self._logged.pop(job.name, None)
            return True  # the transaction's current coordinator continues the round
        txn = shard.transactions.get(transactional_id)
        if txn is None or not txn.is_prepared:
            self._logged.pop(job.name, None)
            return True
        if not job.is_for(txn):
            asked = self._in_flight.get(txn.ending, ())
            job.txn = txn
            job.left = [each for each in shard.to_mark(transactional_id) if each not in asked]
            if not job.left and txn.partitions:
                return True
        passed("txn.prepared")
        piece, job.left = job.left[:PIECE], job.left[PIECE:]
        is_commit = txn.state is PREPARE_COMMIT
        self._send(
            job.name,
            txn,
            Marker(txn.producer_id, txn.producer_epoch, epoch, is_commit, txn.client_version, tuple(piece)),
        )
        return not job.left

    def _send(self, name: _Name, txn: Transaction, marker: Marker) -> None:
        try:
            rounds = self.markers.write(marker)
        except Exception:
            log.exception("markers of %s could not be written", name.transactional_id)
            rounds = [Round(frozenset(), Progress())]
        for part in rounds:
            if not isinstance(part.progress, Progress):
                self._in_flight.setdefault(txn.ending, set()).update(part.partitions)
                task = asyncio.ensure_future(self._note_later(name, txn, part.partitions, part.progress))
                self._tasks[task] = None
                task.add_done_callback(self._tasks.pop)
        for part in rounds:
            if isinstance(part.progress, Progress):
                self._note(name, txn, part.progress)

    async def _note_later(
        self, name: _Name, txn: Transaction, asked: frozenset[TopicPartition], part: Awaitable[Progress]
    ) -> None:
        try:
            progress = await part
        except Exception:
            log.exception("markers of %s could not be written", name.transactional_id)
            progress = Progress()
        finally:
            self._in_flight[txn.ending] -= asked
            if not self._in_flight[txn.ending]:
                del self._in_flight[txn.ending]
        try:
            self._note(name, txn, progress)
        except Exception:
            log.exception("the progress of the markers of %s could not be recorded", name.transactional_id)
            self._try_again(name)

    def _note(self, name: _Name, txn: Transaction, progress: Progress) -> None:
        if progress.failed:
            self._log_failed(name, progress.failed)
        passed("txn.marked")

        def failed(code: ErrorCode, _message: str | None) -> None:
            if code is ErrorCode.UNKNOWN_SERVER_ERROR:  # the shard handles errors of its log, but not bugs of its own
                self._try_again(name)

        self._runtime.run(
            name.partition, lambda shard, now: shard.marked(txn, progress.done, now, progress.fenced), failed
        )
        passed("txn.completed")
        if name in self._logged and not self._is_due(name):
            del self._logged[name]

    def _try_again(self, name: _Name) -> None:
        """Begin another round soon, because this round failed."""
        key = ("markers", name.transactional_id)
        self._runtime.run(name.partition, lambda _shard, _now: Outcome(timers=[Schedule(key, RETRY_MS)]), _ignore)

    def _is_due(self, name: _Name) -> bool:
        try:
            txn = self._runtime.shard(name.partition).transactions.get(name.transactional_id)
        except ApiError:
            return False
        return txn is not None and txn.is_prepared

    def _log_failed(self, name: _Name, failed: Mapping[TopicPartition, ErrorCode]) -> None:
        """Log the reasons for which markers were refused, each reason once, because markers are retried often."""
        logged = self._logged.setdefault(name, set())
        for code in sorted(set(failed.values()) - logged):
            logged.add(code)
            topic, index = min(partition for partition, why in failed.items() if why is code)
            log.info(
                "markers of %s are not accepted yet by %s-%d and maybe others: %s",
                name.transactional_id,
                topic,
                index,
                code.name,
            )


def _ignore(_code: ErrorCode, _message: str | None) -> None:
    """Ignore a failure: this broker no longer coordinates the partition."""
