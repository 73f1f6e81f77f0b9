"""The idempotent and transactional producers of one partition.

Owns every producer's last batches, the open transactions, and the rules for a batch's epoch and sequence (Kafka's
ProducerAppendInfo). Also owns the guard of a batch that opens a transaction here (KIP-890), and the producers' state at
the offset of a snapshot. Never sends requests to a coordinator: the handlers do. Never uses a file, and never changes
its state during a check: the caller checks first, then appends, then applies, so that a failed append has no effect.

One guard (`Verification`) represents one transaction of one producer, from the request to the transaction coordinator
until the append. The guard is removed when the transaction begins here, and when a marker is appended. So a batch that
the coordinator has verified before the marker has no guard after the marker. Such a late batch cannot open a
transaction that the coordinator does not know.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, NamedTuple

from kbroker.log.append_info import CLIENT, REPLICATION, AppendError, AppendOrigin
from kbroker.long_work import turn
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import TRANSACTIONAL_BIT, BatchHeader, EndTxnMarker

UNCHECKED: Final = object()
"""The guard if there is no verification: verification is disabled, or the caller is not a client."""


@dataclass(slots=True, eq=False)
class Verification:
    """The running verification of one producer. `epoch_bump` is True from transaction version 2 on."""

    epoch: int
    lowest_sequence: int
    epoch_bump: bool
    started_ms: int

    def note(self, epoch: int, sequence: int) -> None:
        """Add another batch that waits for the same response."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence

    def check_sequence(self, header: BatchHeader, *, known: bool) -> None:
        """Raise AppendError if a batch with a lower sequence, which the producer will retry, must precede this batch.

        With transaction version 2, the first batch of a producer that the partition does not know must have sequence 0
        (KAFKA-14920).
        """
        sequence = header.base_sequence
        if sequence > self.lowest_sequence or (self.epoch_bump and sequence != 0 and not known):
            raise AppendError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                detail=f"producer {header.producer_id} sent sequence {sequence} before {self.lowest_sequence}",
            )


_COPIED_AT_ONCE: Final = 256
_numbers: Final = count(1)


class SnapshotTaking:
    """The producers of one log at the time when this object is created, at `offset`.

    A snapshot of very many producers is taken in pieces while they continue to produce. A producer that is about to
    change is copied before the change. The other producers are copied one by one. The order of producers in a snapshot
    has no meaning.
    """

    __slots__ = ("_changing", "_entries", "count", "number", "offset")

    def __init__(self, entries: Iterable[ProducerEntry], offset: int) -> None:
        self._entries = list(entries)
        self._changing: list[ProducerEntry] = []
        self.offset = offset
        self.count = len(self._entries)
        self.number = next(_numbers)
        """The mark of producers that are already copied, or that are newer than the snapshot."""

    def keep(self, entry: ProducerEntry) -> None:
        """Copy a producer that is about to change."""
        if entry.snapshot != self.number:
            entry.snapshot = self.number
            self._changing.append(entry.copy())

    def pieces(self) -> Iterator[list[ProducerEntry]]:
        """Yield all producers, some at a time, in their state at the start, even if they change meanwhile."""
        for begin in range(0, self.count, _COPIED_AT_ONCE):
            due = [entry for entry in self._entries[begin : begin + _COPIED_AT_ONCE] if entry.snapshot != self.number]
            for entry in due:
                entry.snapshot = self.number
            due += self._changing
            self._changing = []
            yield due
        yield self._changing


RETAINED_BATCHES: Final = 5
CREDIBLE_IDS: Final = 1 << 62
"""Brokers assign only producer ids below this number. Clients have invented all other ids, which are not checked."""

_NO_COORDINATOR_EPOCH: Final = -1


class ProducedBatch(NamedTuple):
    """One of a producer's last batches; timestamp in ms."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & 0x7FFFFFFF

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


def produced_batch(header: BatchHeader, base_offset: int) -> ProducedBatch:
    """Return those fields of a batch at `base_offset` that are kept in memory."""
    delta = header.last_offset_delta
    return ProducedBatch(header.last_sequence, base_offset + delta, delta, header.max_timestamp)


@dataclass(slots=True, eq=False)
class ProducerEntry:
    """One producer's state on one partition; timestamps in ms."""

    producer_id: int
    producer_epoch: int = -1
    coordinator_epoch: int = _NO_COORDINATOR_EPOCH
    last_timestamp: int = -1
    current_txn_first_offset: int = -1
    """The first offset of the producer's open transaction; -1 if there is none."""
    batches: list[ProducedBatch] = field(default_factory=list)
    """The last five data batches of this epoch, oldest first."""
    snapshot: int = 0
    """The number of the last snapshot that contains this producer. A snapshot is taken in pieces."""

    def copy(self) -> ProducerEntry:
        """Return a copy for a snapshot. The copy no longer changes."""
        return replace(self, batches=self.batches[-1:])

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; -1 if none is known."""
        return self.batches[-1].last_sequence if self.batches else -1

    def add(self, epoch: int, batch: ProducedBatch) -> None:
        self.set_epoch(epoch)
        self.batches.append(batch)
        if len(self.batches) > RETAINED_BATCHES:
            del self.batches[0]
        self.last_timestamp = batch.timestamp

    def set_epoch(self, epoch: int) -> None:
        """Begin a new epoch, and remove all earlier batches."""
        if epoch != self.producer_epoch:
            self.producer_epoch = epoch
            self.batches.clear()


_MAX_EPOCH: Final = 32767
_AT_ONCE: Final = 1000
MAX_VERIFICATIONS: Final = 1000
"""The maximum number of guards that a partition keeps.

Nearly all guards are used or removed immediately. If there are more guards than this, the oldest guard is removed,
because a client can send any number of ids.
"""


class CompletedTxn(NamedTuple):
    """A transaction that a marker has just ended. `last_offset` is the offset of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class ProducerState:
    """All producers of one partition."""

    __slots__ = ("_ongoing", "_verifications", "entries", "first_unstable", "taking", "unreplicated")

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.first_unstable = -1
        """The first offset of the earliest transaction that is open or whose marker is not replicated.

        It is -1 if there is no such transaction.
        """
        self.taking: SnapshotTaking | None = None
        """The snapshot that is being taken in pieces; None if there is no such snapshot."""
        self._ongoing: OrderedDict[int, int] = OrderedDict()  # first offset -> producer id, ordered by offset
        self.unreplicated: dict[int, int] = {}
        """The ended transactions whose markers are above the high watermark: first offset -> offset of the marker."""
        self._verifications: dict[int, Verification] = {}  # by producer id

    def reset(self, entries: list[ProducerEntry]) -> None:
        """Replace the complete state by a snapshot."""
        self.entries = {entry.producer_id: entry for entry in entries}
        self._ongoing = OrderedDict(
            sorted(
                (entry.current_txn_first_offset, entry.producer_id)
                for entry in entries
                if entry.current_txn_first_offset >= 0
            )
        )
        self.unreplicated = {}
        self._verifications = {}
        self.taking = None
        self._find_unstable()

    # -- checking ---------------------------------------------------------------------------------------------

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, epoch_bump: bool, now_ms: int
    ) -> Verification | None:
        """Return the guard for the append of a batch that may open a transaction.

        Return None if the transaction is already open. Raises AppendError for an old epoch. If a guard is returned, the
        caller checks with the coordinator whether the partition is in the transaction, and then passes the guard to the
        append.
        """
        entry = self.entries.get(producer_id)
        if entry is not None:
            self._check_epoch(entry, epoch, epoch < entry.producer_epoch)
            if entry.current_txn_first_offset >= 0 and entry.producer_epoch == epoch:
                return None
        held = self._verifications.get(producer_id)
        if held is None:
            if len(self._verifications) >= MAX_VERIFICATIONS:
                del self._verifications[next(iter(self._verifications))]
            held = self._verifications[producer_id] = Verification(epoch, sequence, epoch_bump, now_ms)
        held.note(epoch, sequence)
        return held

    def forget_verification(self, producer_id: int) -> None:
        """Remove the guard of a client that is not a producer of the transaction."""
        self._verifications.pop(producer_id, None)

    def check_batch(self, header: BatchHeader, origin: AppendOrigin, guard: object = UNCHECKED) -> ProducedBatch | None:
        """Check a data batch with a producer id.

        Return the earlier batch that it repeats, or None if it must be appended. Raise AppendError for an invalid
        batch.
        """
        entry = self.entries.get(header.producer_id)
        if origin is CLIENT and entry is not None and header.producer_epoch == entry.producer_epoch:
            first, last = header.base_sequence, header.last_sequence
            for batch in entry.batches:
                if batch.last_sequence == last and batch.first_sequence == first:
                    return batch
        if origin is REPLICATION:
            return None
        held = None
        if header.attributes & TRANSACTIONAL_BIT:
            held = self._check_guard(entry, header, guard)
            if held is not None and origin is CLIENT:
                held.check_sequence(header, known=entry is not None)
        if entry is None:
            return None  # an unknown producer may start with any sequence
        self._check_epoch(entry, header.producer_epoch, header.producer_epoch < entry.producer_epoch)
        if origin is CLIENT:
            _check_sequence(entry, header)
        if entry.current_txn_first_offset >= 0 and not header.attributes & TRANSACTIONAL_BIT:
            raise AppendError(
                ErrorCode.INVALID_TXN_STATE,
                detail=f"producer {header.producer_id} has an open transaction and sent a batch outside of it",
            )
        return None

    def is_repeated(self, header: BatchHeader) -> bool:
        """Whether a client's batch was appended before.

        `check_batch`, which is called for every batch, returns the earlier batch.
        """
        entry = self.entries.get(header.producer_id)
        if entry is None or header.producer_epoch != entry.producer_epoch:
            return False
        place = header.base_sequence, header.last_sequence
        return any((each.first_sequence, each.last_sequence) == place for each in entry.batches)

    def _check_guard(self, entry: ProducerEntry | None, header: BatchHeader, guard: object) -> Verification | None:
        """Refuse a batch that would open an unverified transaction; return the producer's current guard.

        If the transaction ended between the coordinator's response and this append, its guard was removed. Without this
        check the partition would have a transaction that no marker will ever end (KIP-890).
        """
        held = self._verifications.get(header.producer_id)
        if entry is not None:
            self._check_epoch(entry, header.producer_epoch, header.producer_epoch < entry.producer_epoch)
            if entry.current_txn_first_offset >= 0 and entry.producer_epoch == header.producer_epoch:
                return held
        if guard is not UNCHECKED and (held is None or held is not guard):
            raise AppendError(
                ErrorCode.INVALID_TXN_STATE,
                detail=f"producer {header.producer_id} sent a batch that is not part of an open transaction",
            )
        return held

    def check_marker(
        self, header: BatchHeader, marker: EndTxnMarker, origin: AppendOrigin, transaction_version: int
    ) -> None:
        """Check the end of a transaction. Raises AppendError for an outdated producer or coordinator."""
        if origin is REPLICATION:
            return
        entry = self.entries.get(header.producer_id)
        if entry is not None:
            self._check_marker_epoch(entry, header, transaction_version)
        known = _NO_COORDINATOR_EPOCH if entry is None else entry.coordinator_epoch
        if marker.coordinator_epoch < known:
            raise AppendError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                detail=f"marker of coordinator epoch {marker.coordinator_epoch}, known is {known}",
            )

    def _check_marker_epoch(self, entry: ProducerEntry, header: BatchHeader, transaction_version: int) -> None:
        epoch, current = header.producer_epoch, entry.producer_epoch
        if transaction_version >= 2:
            # From transaction version 2 on, the coordinator increases the epoch for the marker. An equal epoch is
            # therefore a retry of a written marker, and is harmless when the transaction has ended.
            is_retry = epoch == current and (entry.current_txn_first_offset < 0 or epoch == _MAX_EPOCH)
            self._check_epoch(entry, epoch, epoch <= current and not is_retry)
        else:
            self._check_epoch(entry, epoch, epoch < current)

    def _check_epoch(self, entry: ProducerEntry, epoch: int, stale: bool) -> None:
        if stale:
            raise AppendError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                detail=f"producer {entry.producer_id} has epoch {entry.producer_epoch}, not {epoch}",
            )

    # -- applying ---------------------------------------------------------------------------------------------

    def apply_batch(self, header: BatchHeader, base_offset: int) -> None:
        """Record a data batch with a producer id that was appended at `base_offset`."""
        entry = self.entries.get(header.producer_id)
        if entry is None:
            entry = self._begin(header.producer_id)
        elif self.taking is not None:
            self.taking.keep(entry)
        entry.add(header.producer_epoch, produced_batch(header, base_offset))
        if header.attributes & TRANSACTIONAL_BIT:
            self._verifications.pop(header.producer_id, None)
        if header.attributes & TRANSACTIONAL_BIT and entry.current_txn_first_offset < 0:
            entry.current_txn_first_offset = base_offset
            self._ongoing[base_offset] = header.producer_id
            self._find_unstable()

    def preview_marker(self, header: BatchHeader, marker: EndTxnMarker, offset: int) -> CompletedTxn | None:
        """Return the transaction that a marker at `offset` will end; None if the producer has no open transaction."""
        entry = self.entries.get(header.producer_id)
        if entry is None or entry.current_txn_first_offset < 0:
            return None
        return CompletedTxn(header.producer_id, entry.current_txn_first_offset, offset, not marker.commit)

    def stable_after(self, completed: CompletedTxn) -> int:
        """Return the last stable offset that will apply when the marker of a transaction is replicated."""
        others = (first for first, producer_id in self._ongoing.items() if producer_id != completed.producer_id)
        return next(others, completed.last_offset + 1)

    def apply_marker(self, header: BatchHeader, marker: EndTxnMarker, offset: int) -> None:
        """Record that a transaction has ended with a marker at `offset`."""
        completed = self.preview_marker(header, marker, offset)
        entry = self.entries.get(header.producer_id)
        if entry is None:
            entry = self._begin(header.producer_id)
        elif self.taking is not None:
            self.taking.keep(entry)
        held = self._verifications.get(header.producer_id)
        if held is not None and not (held.epoch_bump and held.epoch == header.producer_epoch):
            # From transaction version 2 on, a marker has the epoch of the next transaction, which may have begun
            # already.
            del self._verifications[header.producer_id]
        entry.set_epoch(header.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = header.max_timestamp
        entry.current_txn_first_offset = -1
        if completed is not None:
            self._ongoing.pop(completed.first_offset, None)
            self.unreplicated[completed.first_offset] = offset
            self._find_unstable()

    def _begin(self, producer_id: int) -> ProducerEntry:
        entry = self.entries[producer_id] = ProducerEntry(producer_id)
        if self.taking is not None:
            entry.snapshot = self.taking.number
        return entry

    def begin_snapshot(self, offset: int) -> SnapshotTaking:
        """Start taking a snapshot of the producers in their current state, at `offset`."""
        self.taking = SnapshotTaking(self.entries.values(), offset)
        return self.taking

    def end_snapshot(self, taking: SnapshotTaking) -> None:
        """Stop taking a snapshot, whether it is complete or not."""
        if self.taking is taking:
            self.taking = None

    def on_high_watermark(self, offset: int) -> None:
        """Remove ended transactions whose markers are before `offset`."""
        if self.unreplicated:
            self.unreplicated = {first: end for first, end in self.unreplicated.items() if end >= offset}
            self._find_unstable()

    async def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Remove producers without an open transaction that sent no batch for `expiration_ms`.

        Return the number of removed producers.
        """
        known = list(self.entries.values())
        latest = now_ms - expiration_ms
        count = 0
        for begin in range(0, len(known), _AT_ONCE):
            for entry in known[begin : begin + _AT_ONCE]:
                silent = entry.last_timestamp <= latest and entry.current_txn_first_offset < 0
                if silent and self.entries.get(entry.producer_id) is entry:
                    del self.entries[entry.producer_id]
                    count += 1
            await turn
        for producer_id, held in list(self._verifications.items()):
            if held.started_ms <= latest:
                del self._verifications[producer_id]
        return count

    def _find_unstable(self) -> None:
        first = next(iter(self._ongoing), -1)
        if self.unreplicated:
            earliest = min(self.unreplicated)
            first = earliest if first < 0 else min(first, earliest)
        self.first_unstable = first


def _check_sequence(entry: ProducerEntry, header: BatchHeader) -> None:
    sequence = header.base_sequence
    if header.producer_epoch != entry.producer_epoch:
        in_order = sequence == 0 or entry.producer_epoch == -1
    elif entry.batches:
        in_order = sequence == (entry.batches[-1].last_sequence + 1) & 0x7FFFFFFF
    else:
        # Only a marker of this epoch is known: the first data batch must start at 0.
        in_order = sequence == 0 or entry.producer_epoch == -1
    if not in_order:
        raise AppendError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            detail=f"producer {entry.producer_id} sent sequence {sequence} in epoch {header.producer_epoch}; "
            f"the last was {entry.last_sequence} in epoch {entry.producer_epoch}",
        )
