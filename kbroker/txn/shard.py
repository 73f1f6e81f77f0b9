"""One partition of `__transaction_state` as a state machine: the transactional ids that it coordinates.

Owns every decision about a transaction; unused_ids.py decides which ids expire. Pure: it does no I/O, runs nothing
asynchronously, and writes no marker. When an outcome is in the log, the shard calls `on_prepared`; the sender of the
markers reports their progress to `marked`.

A decision changes nothing until its record is in the log and committed. Meanwhile the id is busy, and every other
request gets CONCURRENT_TRANSACTIONS. If the append fails, the epoch and the state stay unchanged.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from kbroker.config.server_config import BrokerConfig
from kbroker.coordination.shard import Outcome, Schedule
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.txn import records
from kbroker.txn.end_txn import Verdict, judge
from kbroker.txn.transaction import BUMPS_EPOCH_SINCE, NO_EPOCH, NO_PRODUCER_ID, ONGOING, TopicPartition, Transaction
from kbroker.txn.unused_ids import UnusedIds

log = logging.getLogger(__name__)

_CHECKED_AT_ONCE = 2_000
"""The number of ids that one search for overdue transactions checks at a time."""
_ROOM_NEEDED = 61 + 25 + 128
"""The bytes around a key and value in a batch, and the maximum growth of a record when a transaction is decided."""
_ABORTS_PER_MS = 4
"""The maximum rate of aborts.

The limit leaves the event loop time for other work if thousands of transactions time out together.
"""
_TIMEOUTS = ("timeouts",)
_ENDINGS = itertools.count(1)


class Identity(NamedTuple):
    """A producer id and its epoch, as in a response; both are -1 if there is no producer."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


NO_IDENTITY = Identity()


class ProducerIdSupply(Protocol):
    """The source of producer ids."""

    def next(self) -> int:
        """Return an id that was never supplied before."""

    def avoid(self, used: int) -> None:
        """Supply only ids greater than `used` from now on."""


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """Kafka's transaction.* and transactional.id.* settings; times are in ms."""

    num_partitions: int = 50
    max_timeout_ms: int = 900_000
    abort_interval_ms: int = 10_000
    id_expiration_ms: int = 604_800_000
    expiration_interval_ms: int = 3_600_000
    write_timeout_ms: int = 5_000


def transaction_config(config: BrokerConfig) -> TransactionConfig:
    """Return the transaction settings of the broker's config."""
    return TransactionConfig(
        num_partitions=config.get_int("transaction.state.log.num.partitions"),
        max_timeout_ms=config.get_int("transaction.max.timeout.ms"),
        abort_interval_ms=config.get_int("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        id_expiration_ms=config.get_int("transactional.id.expiration.ms"),
        expiration_interval_ms=config.get_int("transaction.remove.expired.transaction.cleanup.interval.ms"),
    )


class TransactionShard:
    """The transactions of one partition.

    `ids` supplies producer ids. `level` returns the finalized transaction.version. `on_prepared` is called with each
    transactional id whose outcome is in the log, also after loading. `room` returns the maximum size of a batch in
    bytes. `marker_retry_ms` is the pause before refused markers are sent again.
    """

    def __init__(
        self,
        config: TransactionConfig,
        ids: ProducerIdSupply,
        level: Callable[[], int],
        on_prepared: Callable[[str], None],
        room: Callable[[], int],
        marker_retry_ms: int,
    ) -> None:
        self._config = config
        self._ids = ids
        self._largest_id = NO_PRODUCER_ID
        self._level = level
        self._on_prepared = on_prepared
        self._room = room
        self._marker_retry_ms = marker_retry_ms
        self.transactions: dict[str, Transaction] = {}
        self._pending: set[str] = set()
        self._ongoing: set[str] = set()
        self._given_up: dict[str, frozenset[TopicPartition]] = {}  # partitions that will never accept the marker
        self._to_time: deque[str] = deque()  # ids that the search for overdue transactions has yet to check
        self._unused = UnusedIds(
            config.expiration_interval_ms, config.id_expiration_ms, self.transactions, self._pending, self._forget
        )

    # -- replay

    steps_over_unreadable = True
    """Whether a load skips unreadable records. Kafka ends the load at the first one, but serves the partition."""

    def replay(self, offset: int, producer_id: int, key: bytes, value: bytes | None) -> None:  # noqa: ARG002
        transactional_id = records.read_key(key)
        if transactional_id is None:
            log.warning("a record of type %s in the transaction log is ignored", key[:2].hex())
        elif value is None:
            self._forget(transactional_id)
        else:
            txn = records.read_value(transactional_id, value)
            self._largest_id = max(self._largest_id, txn.producer_id, txn.prev_producer_id, txn.next_producer_id)
            self._put(txn)

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """Do nothing: the transaction log itself contains no transactions."""

    def on_loaded(self, now_ms: int) -> Outcome:  # noqa: ARG002
        """Begin to serve: finish decided transactions.

        Another broker may have written the log, and assigned the producer ids in it.
        """
        if self._largest_id != NO_PRODUCER_ID:
            self._ids.avoid(self._largest_id)
        for txn in list(self.transactions.values()):
            if txn.is_prepared:
                self._put(replace(txn, ending=next(_ENDINGS)))
                self._on_prepared(txn.transactional_id)
        return Outcome(timers=[self._next_timeouts(), self._unused.next_search()])

    def on_unloaded(self, now_ms: int) -> Outcome:  # noqa: ARG002
        """Stop serving. This shard parks no requests."""
        return Outcome()

    def _put(self, txn: Transaction) -> None:
        self.transactions[txn.transactional_id] = txn
        if txn.state is ONGOING:
            self._ongoing.add(txn.transactional_id)
        else:
            self._ongoing.discard(txn.transactional_id)

    def _forget(self, transactional_id: str) -> None:
        self.transactions.pop(transactional_id, None)
        self._ongoing.discard(transactional_id)

    # -- changing a transaction

    def _move(self, new: Transaction, reply: object) -> Outcome:
        """Write a transaction's next state, which takes effect once it is committed."""
        transactional_id = new.transactional_id
        record = records.transaction_record(new, self._level())
        if new.state is ONGOING and len(record.key) + len(record.value or b"") + _ROOM_NEEDED > self._room():
            # Fail like an append of a record that is too large. Otherwise the later record that ends the transaction
            # might be too large.
            log.warning("the transaction of %s has too many partitions for a record", transactional_id)
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE)
        out = Outcome(reply=reply, records=[record], replay=False)

        def settled(code: ErrorCode, _now_ms: int) -> Outcome:
            self._pending.discard(transactional_id)
            if code is ErrorCode.NONE:
                self._put(replace(new, ending=next(_ENDINGS)) if new.is_prepared else new)
                self._given_up.pop(transactional_id, None)
                if new.is_prepared:
                    self._on_prepared(transactional_id)
            elif transactional_id in self.transactions and self.transactions[transactional_id].is_prepared:
                return Outcome(timers=[Schedule(("markers", transactional_id), self._marker_retry_ms)])
            return Outcome()

        self._pending.add(transactional_id)
        out.after = settled
        return out

    def _is_busy(self, txn: Transaction) -> bool:
        """Whether a change of the state is being written, or the markers are being written."""
        return txn.transactional_id in self._pending or txn.is_prepared

    def _owned(self, transactional_id: str) -> Transaction:
        txn = self.transactions.get(transactional_id)
        if txn is None:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return txn

    # -- requests; the reply is in the outcome, a refusal is an ApiError

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: Identity | None, now_ms: int
    ) -> Outcome:
        """Give a producer its epoch, which fences every other producer; reply with an Identity.

        `expected` is the identity that the producer claims. If a transaction is open, it is aborted first, and the
        request fails with CONCURRENT_TRANSACTIONS; the producer then retries.
        """
        if transactional_id in self._pending:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        txn = self.transactions.get(transactional_id)
        if txn is None:
            txn = Transaction(transactional_id, self._ids.next(), timeout_ms=timeout_ms, updated_ms=now_ms)
        elif txn.is_prepared:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        elif expected is not None and not txn.may_be(*expected):
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        if txn.state is ONGOING:
            return self._abort(txn, now_ms)
        if txn.exhausted and (expected is None or expected.epoch == txn.producer_epoch):
            new = txn.rotated(self._ids.next(), timeout_ms, now_ms, retryable=expected is not None)
        else:
            new = txn.initialized(timeout_ms, None if expected is None else expected.epoch, now_ms)
        return self._move(new, Identity(new.producer_id, new.producer_epoch))

    def add_partitions(
        self,
        transactional_id: str,
        producer: Identity,
        partitions: Iterable[TopicPartition],
        client_version: int,
        now_ms: int,
    ) -> Outcome:
        """Add partitions to the open transaction, or begin a transaction if none is open."""
        txn = self._owned(transactional_id)
        if transactional_id in self._pending:
            # This check is first because the producer may already use a producer id that is still being written to the
            # log.
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if txn.is_prepared:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        _check(txn, producer)
        wanted = frozenset(partitions)
        if txn.state is ONGOING and wanted <= txn.partitions:
            return Outcome()
        return self._move(txn.with_partitions(wanted, client_version, now_ms), None)

    def verify(
        self, transactional_id: str, producer: Identity, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Return an error code for each partition: TRANSACTION_ABORTABLE if it is not in the transaction."""
        txn = self._owned(transactional_id)
        _check(txn, producer)
        if txn.is_prepared:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return {
            partition: ErrorCode.NONE if partition in txn.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def end(self, transactional_id: str, producer: Identity, commit: bool, client_version: int, now_ms: int) -> Outcome:
        """Commit or abort the transaction.

        Reply with an Identity. With transaction version 2 or newer, it is the producer's next identity.
        """
        txn = self._owned(transactional_id)
        verdict = judge(txn, *producer, commit, client_version, busy=self._is_busy(txn))
        answers = client_version >= BUMPS_EPOCH_SINCE
        if verdict is Verdict.DONE_ALREADY:
            return Outcome(reply=Identity(txn.producer_id, txn.producer_epoch) if answers else NO_IDENTITY)
        new = txn.prepared(commit, client_version, self._id_after(txn) if answers else NO_PRODUCER_ID, now_ms)
        after = new.completed(now_ms)
        return self._move(new, Identity(after.producer_id, after.producer_epoch) if answers else NO_IDENTITY)

    def _id_after(self, txn: Transaction) -> int:
        """Return a new producer id if the end of the transaction uses the last epoch of the current id.

        Otherwise return -1.
        """
        return self._ids.next() if txn.exhausted else NO_PRODUCER_ID

    def _abort(self, txn: Transaction, now_ms: int) -> Outcome:
        """Abort an open transaction without a request from its producer; no producer gets the new epoch."""
        level = self._level()
        if level >= BUMPS_EPOCH_SINCE:
            return self._move(txn.prepared(False, level, self._id_after(txn), now_ms), NO_IDENTITY)
        return self._move(txn.fenced(now_ms), NO_IDENTITY)

    def abandon(self, transactional_id: str, now_ms: int) -> Outcome:
        """Abort an open transaction, as if it had timed out."""
        txn = self._owned(transactional_id)
        return self._abort(txn, now_ms) if txn.state is ONGOING else Outcome()

    def adopt(self, known: Transaction) -> Outcome:
        """Replace the state of a transactional id by `known`. Neither state has an open transaction."""
        txn = self._owned(known.transactional_id)
        if self._is_busy(txn) or txn.state is ONGOING:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return self._move(known, None)

    # -- markers

    def to_mark(self, transactional_id: str) -> list[TopicPartition]:
        """Return, in order, the partitions in which a decided transaction's marker is not written yet."""
        txn = self.transactions[transactional_id]
        return sorted(txn.partitions - self._given_up.get(transactional_id, frozenset()))

    def marked(
        self,
        job: Transaction,
        done: Iterable[TopicPartition],
        now_ms: int,
        fenced: frozenset[TopicPartition] = frozenset(),
    ) -> Outcome:
        """Record the written markers of `job`. The transaction is complete when no marker is left.

        The partitions in `fenced` will never accept the marker. The other partitions are still retried. If only
        `fenced` partitions remain, the transaction stays in its state, because a newer producer has replaced its
        producer.
        """
        txn = self.transactions.get(job.transactional_id)
        if txn is None or not txn.is_prepared or txn.ending != job.ending:
            return Outcome()
        txn = txn.without(done)
        self._put(txn)
        name = txn.transactional_id
        if fenced:
            self._given_up[name] = self._given_up.get(name, frozenset()) | fenced
        if self.to_mark(name):
            return Outcome(timers=[Schedule(("markers", name), self._marker_retry_ms)])
        if txn.partitions:
            log.warning("the transaction of %s has been taken over: its remaining markers are dropped", name)
            return Outcome()
        if name in self._pending:
            return Outcome()
        return self._move(txn.completed(now_ms), None)

    # -- time

    def on_timer(self, key: Hashable, now_ms: int) -> Outcome:
        """Find overdue transactions.

        Each overdue transaction gets its own timer, so that its abort is a separate record.
        """
        match key:
            case ("timeouts",):
                return self._find_overdue(now_ms)
            case ("abort", str(transactional_id)):
                return self._abort_overdue(transactional_id, now_ms)
            case ("markers", str(transactional_id)):
                txn = self.transactions.get(transactional_id)
                if txn is not None and txn.is_prepared and transactional_id not in self._pending:
                    self._on_prepared(transactional_id)
                return Outcome()
            case ("expire",):
                return self._unused.expire(now_ms)
        raise ValueError(f"no timer {key!r}")

    def _next_timeouts(self) -> Schedule:
        return Schedule(_TIMEOUTS, self._config.abort_interval_ms)

    def _find_overdue(self, now_ms: int) -> Outcome:
        """Check some thousand open transactions; check the other transactions soon afterwards."""
        if not self._to_time:
            self._to_time.extend(self._ongoing)
        due = []
        for _ in range(min(_CHECKED_AT_ONCE, len(self._to_time))):
            name = self._to_time.popleft()
            if name in self._ongoing and self._is_overdue(self.transactions[name], now_ms):
                due.append(name)
        aborts = [Schedule(("abort", each), n // _ABORTS_PER_MS) for n, each in enumerate(due)]
        return Outcome(timers=[Schedule(_TIMEOUTS, 0) if self._to_time else self._next_timeouts(), *aborts])

    def _is_overdue(self, txn: Transaction, now_ms: int) -> bool:
        return txn.transactional_id not in self._pending and txn.is_overdue(now_ms)

    def _abort_overdue(self, transactional_id: str, now_ms: int) -> Outcome:
        txn = self.transactions.get(transactional_id)
        if txn is None or txn.state is not ONGOING or not self._is_overdue(txn, now_ms):
            return Outcome()
        log.info("transaction of %s is aborted: it took more than %d ms", transactional_id, txn.timeout_ms)
        return self._abort(txn, now_ms)


def _check(txn: Transaction, producer: Identity) -> None:
    if txn.producer_id != producer.producer_id:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if txn.producer_epoch != producer.epoch:
        raise ApiError(ErrorCode.PRODUCER_FENCED)
