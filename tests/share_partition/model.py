"""A share partition kept record by record, as simple as possible: the model for comparison with the real one.

It follows SharePartition, InFlightBatch and InFlightState of Apache Kafka 4.4.0, batch by batch and offset by offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kbroker.share_coordinator.state_batches import StateBatch
from kbroker.share_partition.dead_letters import EXCEEDED, REJECTED, Letter
from kbroker.share_partition.share_partition import Wish
from kbroker.share_partition.states import STATE_AFTER, AckBatch, AcknowledgeType, Acquired, Limits, Span

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = range(5)
GONE = "(gone)"
"""The owner of records whose member has left. If the member comes back, it does not own them."""
DONE = (ACKNOWLEDGED, ARCHIVED)


class RefusedError(Exception):
    """An acknowledgement that the records' states do not allow."""


@dataclass
class Record:
    state: int
    count: int
    owner: str = ""
    deadline: float = float("inf")
    before: tuple[str, float] | None = None
    """The owner and the deadline before a pending change."""
    fixed: bool = False
    until: float | None = None
    """The time until which the record is delayed."""

    @property
    def is_free(self) -> bool:
        return self.state == AVAILABLE and self.before is None and self.until is None

    def fail(self, limits: Limits) -> None:
        """Record a failed delivery: the record becomes available again, or is given up after its last delivery."""
        if self.count < limits.delivery_count:
            self.state = AVAILABLE
        else:
            self.state = ARCHIVING if limits.dead_letters else ARCHIVED

    def come_back(self, limits: Limits, now: float) -> None:
        self.owner, self.deadline = "", float("inf")
        if self.state == AVAILABLE and limits.backoff_ms:
            delay = limits.backoff_ms
            for _ in range(self.count - 1):
                delay *= limits.backoff_multiplier
            self.until = now + min(delay, limits.backoff_max_ms)


@dataclass
class Batch:
    records: dict[int, Record]
    tracked: bool = False
    cut: int = 0
    """The number of records that were below the start and are forgotten."""

    @property
    def first(self) -> int:
        return min(self.records)

    @property
    def last(self) -> int:
        return max(self.records)

    @property
    def one(self) -> Record:
        return self.records[self.first]


@dataclass
class Ticket:
    offsets: dict[int, int] = field(default_factory=dict)
    """The target state of each offset."""
    causes: dict[int, str] = field(default_factory=dict)
    """The reason of each offset that goes to the dead letter topic."""


class Model:
    def __init__(self, start: int, stored: list[StateBatch]) -> None:
        self.start = start
        self.batches: list[Batch] = []
        self.gaps: set[int] = set()
        self.empty_end = start
        at = start
        for first, last, state, count in stored:
            self.gaps |= set(range(at, first))
            self.batches.append(Batch({offset: Record(state, count) for offset in range(first, last + 1)}))
            at = last + 1
        self.advance()

    # -- offsets

    @property
    def records(self) -> dict[int, Record]:
        return {offset: record for batch in self.batches for offset, record in batch.records.items()}

    @property
    def end(self) -> int:
        """The offset after the last one."""
        return self.batches[-1].last + 1 if self.batches else self.empty_end

    @property
    def next_fetch_offset(self) -> int:
        free = [offset for offset, record in self.records.items() if record.is_free]
        return min(free + [gap for gap in self.gaps if gap >= self.start], default=self.end)

    @property
    def complete_count(self) -> int:
        return sum(record.state in DONE for record in self.records.values())

    def advance(self) -> None:
        at = self.start
        records = self.records
        while at < self.end:
            record = records.get(at)
            if at in self.gaps or (record and (record.state not in DONE or record.before)):
                break
            at += 1
        self.drop_below(at)

    def drop_below(self, offset: int) -> None:
        if offset <= self.start:
            return
        self.empty_end = max(self.end, offset)
        self.start = offset
        self.gaps = {gap for gap in self.gaps if gap >= offset}
        kept = []
        for batch in self.batches:
            if batch.last >= offset:
                if batch.first < offset:
                    batch.cut += offset - batch.first
                batch.records = {at: record for at, record in batch.records.items() if at >= offset}
                kept.append(batch)
        self.batches = kept

    # -- acquisition

    def acquire(self, wish: Wish, fetch_offset: int, read: list[Span], limits: Limits, now: float) -> list[Acquired]:
        if not read or wish.max_records <= 0 or read[-1].last_offset < self.start:
            return []
        last = read[-1].last_offset
        room = min(wish.max_records, limits.record_locks - (self.end - self.start))
        if room <= 0:
            if fetch_offset >= self.end:
                return []
            room, last = min(wish.max_records, self.end - fetch_offset), min(last, self.end - 1)
        base = request = read[0].first_offset
        missing = Span(fetch_offset, base - 1)
        for offset, record in self.records.items():
            if fetch_offset <= offset < base and record.state == AVAILABLE:
                self.archive_of([missing], offset, record)
        self.gaps -= set(range(fetch_offset, base))
        floor = [batch for batch in self.batches if batch.first <= base]
        if not floor:
            base = max(base, self.start)
        elif floor[-1].last >= base:
            base = floor[-1].first
        found = [batch for batch in self.batches if base <= batch.first <= last]
        got: list[Acquired] = []
        taken = 0
        throttled = False

        def new(first: int, end: int) -> None:
            nonlocal taken
            if not self.batches and self.end > first:
                first = self.end
            if first > end:
                return
            more, count = self.new_batches(wish, read, first, end, room - taken, limits, now)
            got.extend(more)
            taken += count

        at = base
        for batch in found:
            if taken >= room:
                break
            if self.gaps & set(range(at, batch.first)):
                new(max(at, request), batch.first - 1)
            at = batch.last + 1
            if taken >= room:
                break
            full = batch.first >= request and batch.last <= last
            subset = wish.record_limit and len(batch.records) > room - taken
            free = [r.count for o, r in batch.records.items() if request <= o <= last and r.is_free]
            throttle = max(free, default=0) >= limits.throttled_from
            if throttle and taken:
                throttled = True
                break
            if full and not batch.tracked and not subset and not throttle:
                if batch.one.is_free:
                    for record in batch.records.values():
                        self.take(record, wish.member, limits, now)
                    got.append(Acquired(batch.first, batch.last, batch.one.count))
                    taken += len(batch.records)
                continue
            if not batch.tracked:
                if not batch.one.is_free:
                    continue
                batch.tracked = True
            count = self.part(batch, wish, room - taken, request, last, limits, now, got)
            taken += count
            if throttle and count:
                throttled = True
                break
        if not throttled and taken < room:
            if not found:
                new(base, last)
            elif found[-1].last < last:
                new(found[-1].last + 1, last)
        self.advance()
        return got

    def take(self, record: Record, member: str, limits: Limits, now: float) -> None:
        record.state, record.count = ACQUIRED, record.count + 1
        record.owner, record.deadline = member, now + limits.lock_ms

    def part(
        self,
        batch: Batch,
        wish: Wish,
        left: int,
        first: int,
        last: int,
        limits: Limits,
        now: float,
        got: list[Acquired],
    ) -> int:
        taken, most, limit = 0, -1, limits.delivery_count
        parts: list[Acquired] = []
        for offset, record in batch.records.items():
            if not first <= offset <= last or not record.is_free:
                continue
            if limit > 2 and record.count == limit - 1 and taken:
                break
            if record.count >= limits.throttled_from and most < 0:
                most = max(1, (len(batch.records) + batch.cut) >> (record.count - limits.throttled_from + 1))
            self.take(record, wish.member, limits, now)
            taken += 1
            if parts and parts[-1].last_offset == offset - 1 and parts[-1].delivery_count == record.count:
                parts[-1] = parts[-1]._replace(last_offset=offset)
            else:
                parts.append(Acquired(offset, offset, record.count))
            if (record.count == limit and limit > 2) or (wish.record_limit and taken == left) or taken == most:
                break
        got += parts
        return taken

    def new_batches(
        self, wish: Wish, read: list[Span], first: int, last: int, left: int, limits: Limits, now: float
    ) -> tuple[list[Acquired], int]:
        bound, in_gap = last, first in self.gaps
        if left < last - first + 1:
            last = first + left - 1
            last = next((span.last_offset for span in read if span[0] <= last <= span[1]), last)
            last = min(last, bound) if in_gap else last
        spans = []
        begin = first
        if not wish.record_limit and last - first + 1 > wish.batch_size:
            for span in read:
                if span.first_offset <= last and span.first_offset - begin >= wish.batch_size:
                    spans.append(Span(begin, span.first_offset - 1))
                    begin = span.first_offset
        spans.append(Span(begin, last))
        if not self.batches:
            self.start = max(self.start, first)
        count = last - first + 1
        acquired = [Acquired(*span, 1) for span in spans]
        new = [Batch({o: Record(AVAILABLE, 0) for o in range(span[0], span[1] + 1)}) for span in spans]
        if wish.record_limit and count > left:
            count = left
            new[0].tracked = True
            acquired = [Acquired(first, first + left - 1, 1)]
        for batch in new:
            for offset, record in batch.records.items():
                if offset < first + count:
                    self.take(record, wish.member, limits, now)
        self.gaps -= set(range(first, last + 1))
        self.batches = sorted(self.batches + new, key=lambda batch: batch.first)
        return acquired, count

    def archive(self, record: Record) -> None:
        record.state, record.owner, record.deadline, record.until = ARCHIVED, "", float("inf"), None
        record.fixed = record.before is not None

    def archive_useless(self, spans: list[Span]) -> None:
        for offset, record in self.records.items():
            if (record.state == ACQUIRED or record.is_free) and any(first <= offset <= last for first, last in spans):
                self.archive_of(spans, offset, record)
        self.advance()

    def archive_of(self, spans: list[Span], offset: int, record: Record) -> None:
        self.archive(record)
        batch = next(batch for batch in self.batches if offset in batch.records)
        if not any(first <= batch.first and batch.last <= last for first, last in spans):
            batch.tracked = True

    # -- changes

    def acknowledge(self, member: str, batches: list[AckBatch], limits: Limits, now: float) -> Ticket:
        ticket = Ticket()
        try:
            for batch in batches:
                if batch.last_offset >= self.start:
                    self.acknowledge_batch(member, batch, limits, now, ticket)
        except RefusedError:
            self.settle(ticket, limits, now, is_stored=False)
            raise
        return ticket

    def acknowledge_batch(self, member: str, ack: AckBatch, limits: Limits, now: float, ticket: Ticket) -> None:
        first = max(ack.first_offset, self.start)
        floor = [batch for batch in self.batches if batch.first <= first]
        if not floor:
            raise RefusedError("not found")
        below = [batch for batch in self.batches if floor[-1].first <= batch.first <= ack.last_offset]
        if below[-1].last < ack.last_offset:
            raise RefusedError("beyond")
        for batch in below:
            for offset, record in batch.records.items():
                if not first <= offset <= ack.last_offset:
                    continue
                if record.state != ACQUIRED or record.before is not None or record.owner != member:
                    raise RefusedError(f"{offset}")
                kind = ack.types[0] if len(ack.types) == 1 else ack.types[offset - ack.first_offset]
                if kind == AcknowledgeType.RENEW:
                    if not limits.renews:
                        raise RefusedError("renew")
                    record.deadline = now + limits.lock_ms
                else:
                    state = STATE_AFTER[AcknowledgeType(kind)]
                    if kind == AcknowledgeType.REJECT and limits.dead_letters:
                        state = ARCHIVING
                    self.decide(offset, record, state, limits, ticket)
            whole = batch.first >= ack.first_offset and batch.last <= ack.last_offset
            if (not whole or len(ack.types) > 1) and batch.last >= first:
                batch.tracked = True

    def decide(self, offset: int, record: Record, state: int, limits: Limits, ticket: Ticket) -> None:
        record.before = (record.owner, record.deadline)
        record.state = state
        if state == AVAILABLE:
            record.fail(limits)
        ticket.offsets[offset] = record.state
        if record.state == ARCHIVING:
            ticket.causes[offset] = EXCEEDED if state == AVAILABLE else REJECTED

    def release(self, member: str, limits: Limits) -> Ticket:
        ticket = Ticket()
        for offset, record in self.records.items():
            if record.state == ACQUIRED and record.before is None and record.owner == member:
                self.decide(offset, record, AVAILABLE, limits, ticket)
        for record in self.records.values():
            if record.owner == member:
                record.owner = GONE
            if record.before is not None and record.before[0] == member:
                record.before = (GONE, record.before[1])
        return ticket

    def settle(self, ticket: Ticket, limits: Limits, now: float, *, is_stored: bool) -> None:
        for offset, record in self.records.items():
            if offset not in ticket.offsets or record.before is None:
                continue
            (owner, deadline), record.before = record.before, None
            if record.fixed:
                record.fixed, record.owner, record.deadline = False, "", float("inf")
            elif is_stored:
                record.come_back(limits, now)
            elif deadline <= now and not (record.count >= limits.delivery_count and limits.dead_letters):
                record.fail(limits)
                record.come_back(limits, now)
            else:
                record.state, record.owner, record.deadline = ACQUIRED, owner, deadline
        if is_stored:
            self.advance()

    def expire(self, now: float, limits: Limits) -> tuple[Ticket, bool]:
        """End expired locks and delays; return the changes, and whether a delay has ended."""
        ticket, has_freed = Ticket(), False
        for offset, record in self.records.items():
            if record.state == ACQUIRED and record.before is None and record.deadline <= now:
                record.fail(limits)
                record.come_back(limits, now)
                ticket.offsets[offset] = record.state
                if record.state == ARCHIVING:
                    ticket.causes[offset] = EXCEEDED
            elif record.until is not None and record.until <= now:
                record.until, has_freed = None, True
        return ticket, has_freed

    def bury(self, letter: Letter) -> dict[int, int]:
        buried = {}
        for offset, record in self.records.items():
            if record.state == ARCHIVING and record.before is None and letter[0] <= offset <= letter[1]:
                self.archive_of([Span(letter[0], letter[1])], offset, record)
                buried[offset] = ARCHIVED
        self.advance()
        return buried
