"""The members' actions on acquired records, and the effects when a lock ends.

Owns acknowledgement, renewal, the release of all records that a member has acquired, and the end of locks and delays.
Also owns the dead letters about records that are given up, and the settling of each change when its write has ended.
share_partition.py decides which records a member gets. Never writes: a change is decided here and marked as pending.
Its `Transition` contains the state to store. Later `settle` confirms or undoes the change.

While a change is pending, no other caller is allowed to change or acquire the record. Every pending change must be
settled, even if the client that requested it is gone. The end of a lock is different, as in Apache Kafka: the record is
available immediately, and stays available even if this cannot be stored.

A record that is released may be delayed (Limits.backoff_after). The delay is not stored: after a new load the record is
available immediately. If there is a dead letter topic, a record that is given up is archiving until its dead letter is
written; only then `bury` archives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from kbroker.long_work import turn, whole
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.share_coordinator.state_batches import StateBatch
from kbroker.share_partition.dead_letters import EXCEEDED, REJECTED, Letter
from kbroker.share_partition.delivery_state import AT_ONCE, DeliveryState
from kbroker.share_partition.runs import DELAYED, FIXED, GAP, HEAD, NO_LOCK, PENDING, STATE, TRACKED, Run
from kbroker.share_partition.states import (
    STATE_AFTER,
    AckBatch,
    AcknowledgeType,
    Limits,
    RecordState,
    Span,
    refused,
)

_ACQUIRED: Final = int(RecordState.ACQUIRED)
_AVAILABLE: Final = int(RecordState.AVAILABLE)
_ARCHIVING: Final = int(RecordState.ARCHIVING)
_ARCHIVED: Final = int(RecordState.ARCHIVED)
_TERMINAL: Final = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
_FLAGS: Final = HEAD | TRACKED
_NOT_ACQUIRED_BATCH: Final = "The batch cannot be acknowledged. The batch is not in the acquired state."
_NOT_ACQUIRED_OFFSET: Final = "The offset cannot be acknowledged. The offset is not acquired."
_NOT_FOUND: Final = "Batch record not found. The request batch offsets are not found in the cache."


class Transition:
    """A decided change: the state to store, and the offsets that are pending until it is stored."""

    __slots__ = ("batches", "has_freed", "letters", "limits", "spans")

    def __init__(self, limits: Limits) -> None:
        self.batches: list[StateBatch] = []
        self.spans: list[Span] = []
        self.letters: list[Letter] = []
        """The dead letters to write when the change is stored."""
        self.limits = limits
        self.has_freed = False
        """Whether delays have ended, so that more records can be acquired although there is nothing to store."""

    def add(self, first: int, last: int, state: int, count: int, cause: str = "") -> None:
        """Add records whose new state must be stored.

        If the records are archiving, `cause` is the cause in their dead letters.
        """
        if state == _ARCHIVING:
            self._add_letter(Letter(first, last, count, cause))
        if self.batches:
            before = self.batches[-1]
            if before[1] == first - 1 and before[2:] == (state, count):
                self.batches[-1] = StateBatch(before.first_offset, last, state, count)
            else:
                self.batches.append(StateBatch(first, last, state, count))
            if self.spans[-1].last_offset == first - 1:
                self.spans[-1] = Span(self.spans[-1].first_offset, last)
                return
        else:
            self.batches.append(StateBatch(first, last, state, count))
        self.spans.append(Span(first, last))

    def _add_letter(self, letter: Letter) -> None:
        before = self.letters[-1] if self.letters else None
        if before is not None and before.last_offset == letter.first_offset - 1 and before[2:] == letter[2:]:
            self.letters[-1] = letter._replace(first_offset=before.first_offset)
        else:
            self.letters.append(letter)


class Transitions(DeliveryState):
    """A share partition, with the changes that members make. All times are in ms of the monotonic clock."""

    __slots__ = ()

    # -- acknowledgements

    async def acknowledge(self, member: str, batches: Sequence[AckBatch], limits: Limits, now_ms: float) -> Transition:
        """Decide about all of a member's acknowledgements, or about none of them. Raises ApiError.

        Locks are renewed immediately, without a write. If the work is cancelled, everything is undone.
        """
        decided = Transition(limits)
        is_settled = False
        try:
            try:
                for batch in batches:
                    if batch.last_offset >= self.runs.start:
                        await self._acknowledge_batch(member, batch, limits, now_ms, decided)
                    await turn
            except ApiError:
                await self.settle(decided, now_ms, is_stored=False)
                raise
            is_settled = True
        finally:
            if not is_settled:  # this also happens if the request's connection has ended
                whole(self.settle(decided, now_ms, is_stored=False))
        return decided

    async def _acknowledge_batch(
        self, member: str, batch: AckBatch, limits: Limits, now_ms: float, decided: Transition
    ) -> None:
        self._check_bounds(batch)
        types, has_one = batch.types, len(batch.types) == 1

        def how(run: Run, low: int, high: int) -> Run | list[Run] | None:
            if run.what & STATE >= GAP:
                return None
            self._check_owner(run, member)
            own = types if has_one else types[low - batch.first_offset : high - batch.first_offset + 1]
            if AcknowledgeType.RENEW in own and not limits.renews:
                raise refused("Renewing acquisition locks is not enabled for the group.")
            if has_one:
                return self._acknowledged(run, low, high, types[0], limits, now_ms, decided)
            parts, at = [], low
            for kind, same in groupby(own):
                last = at + sum(1 for _ in same) - 1
                part = self._acknowledged(run, at, last, kind, limits, now_ms, decided)
                parts.append(part._replace(first=at, what=part.what | TRACKED))
                at = last + 1
            return parts

        at = max(batch.first_offset, self.runs.start)
        while at <= batch.last_offset:
            last = batch.last_offset if has_one else min(batch.last_offset, at + AT_ONCE - 1)
            at = self.change(at, last, how)
            await turn

    def _check_owner(self, run: Run, member: str) -> None:
        """Refuse an acknowledgement of records that a member has not acquired. Raises ApiError."""
        if run.what & (STATE | PENDING) != _ACQUIRED:
            raise refused(_NOT_ACQUIRED_OFFSET if run.what & TRACKED else _NOT_ACQUIRED_BATCH)
        if run.owner is not self.runs.known_owner(member):
            raise refused(f"Member is not the owner of {'offset' if run.what & TRACKED else 'batch record'}")

    def _acknowledged(
        self, run: Run, low: int, high: int, kind: int, limits: Limits, now_ms: float, decided: Transition
    ) -> Run:
        if kind == AcknowledgeType.REJECT and limits.dead_letters:
            return self._decide(run, low, high, _ARCHIVING, decided)
        if kind != AcknowledgeType.RENEW:
            return self._decide(run, low, high, STATE_AFTER[AcknowledgeType(kind)], decided)
        deadline = now_ms + limits.lock_ms
        self.next_deadline = min(self.next_deadline, deadline)
        return run._replace(deadline=deadline)

    def _check_bounds(self, batch: AckBatch) -> None:
        """Refuse a range that does not begin and end with records of batches in flight. Raises ApiError."""
        runs = self.runs
        first, last = max(batch.first_offset, runs.start), batch.last_offset
        known = runs.first_known()
        if known < 0 or runs.first[known] > first:
            raise refused(_NOT_FOUND)
        if last < runs.end and runs.what[runs.index(last)] & STATE < GAP:
            return
        place = runs.index(min(last, runs.end - 1))
        while runs.what[place] & STATE >= GAP:
            place -= 1
        which = "first" if runs.last(place) < first else "last"
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Batch record not found. The {which} offset in request is past acquired records.",
        )

    # -- the end of a member, and of locks

    async def release(self, member: str, limits: Limits) -> Transition:
        """Decide to release all records that a member has acquired.

        If the member joins again meanwhile, it keeps the records that it acquires from then on.
        """
        decided = Transition(limits)
        owner = self.runs.retire(member)
        if owner is None:
            return decided

        def how(run: Run, low: int, high: int) -> Run | None:
            if run.what & (STATE | PENDING) != _ACQUIRED or run.owner is not owner:
                return None
            return self._decide(run, low, high, _AVAILABLE, decided)

        await self.change_all(self.runs.start, self.runs.end - 1, how)
        return decided

    async def expire(self, now_ms: float, limits: Limits) -> Transition:
        """End the locks and delays whose time is over.

        Return the state to store. Do not call `settle` for this result.
        """
        decided = Transition(limits)
        self.next_deadline = NO_LOCK

        def how(run: Run, low: int, high: int) -> Run | None:
            if run.what & (STATE | PENDING) not in (_ACQUIRED, DELAYED):
                return None
            if run.deadline > now_ms:
                self.next_deadline = min(self.next_deadline, run.deadline)
                return None
            if run.what & STATE == DELAYED:
                decided.has_freed = True
                return run._replace(what=_AVAILABLE | run.what & _FLAGS, deadline=NO_LOCK)
            state = _after_failure(run, limits)
            if state == _ARCHIVED:
                self.complete_count += high - low + 1
            decided.add(low, high, state, run.deliveries, EXCEEDED)
            return self._without_owner(run, state, limits, now_ms)

        await self.change_all(self.runs.start, self.runs.end - 1, how)
        self.advance()
        return decided

    # -- decisions and their end

    def _decide(self, run: Run, low: int, high: int, state: int, decided: Transition) -> Run:
        """Return a part of an acquired run with a new, pending state. The part keeps the data that an undo needs."""
        cause = REJECTED
        if state == _AVAILABLE:
            state, cause = _after_failure(run, decided.limits), EXCEEDED
        if state in _TERMINAL:
            self.complete_count += high - low + 1
        decided.add(low, high, state, run.deliveries, cause)
        return run._replace(what=state | PENDING | run.what & _FLAGS)

    def _without_owner(self, run: Run, state: int, limits: Limits, now_ms: float) -> Run:
        """Return a run in a new state without an owner.

        If the group delays redeliveries, an available run becomes delayed.
        """
        deadline = NO_LOCK
        if state == _AVAILABLE and (delay_ms := limits.backoff_after(run.deliveries)):
            state, deadline = DELAYED, now_ms + delay_ms
            self.next_deadline = min(self.next_deadline, deadline)
        return run._replace(what=state | run.what & _FLAGS, owner=None, deadline=deadline)

    async def settle(self, decided: Transition, now_ms: float, *, is_stored: bool) -> None:
        """Confirm a decision, or undo it; after an undo, a lock that has not ended meanwhile is valid again.

        If the lock of an undone record has ended and the record must go to the dead letter topic, `expire` handles it.
        """
        limits = decided.limits

        def confirm(run: Run, _low: int, _high: int) -> Run | None:
            if not run.what & PENDING:
                return None
            return self._without_owner(run, run.what & STATE, limits, now_ms)

        def undo(run: Run, low: int, high: int) -> Run | None:
            if not run.what & PENDING or run.what & FIXED:
                return confirm(run, low, high)
            has_ended = run.deadline <= now_ms
            state = _after_failure(run, limits) if has_ended else _ACQUIRED
            if state == _ARCHIVING:
                state = _ACQUIRED
            if run.what & STATE in _TERMINAL:
                self.complete_count -= 0 if state == _ARCHIVED else high - low + 1
            elif state == _ARCHIVED:
                self.complete_count += high - low + 1
            if state != _ACQUIRED:
                return self._without_owner(run, state, limits, now_ms)
            self.next_deadline = min(self.next_deadline, run.deadline)
            return run._replace(what=state | run.what & _FLAGS)

        spans, how = decided.spans, confirm if is_stored else undo
        while spans:  # remove each settled span: at the next turn, its records may become pending again
            first, last = spans[-1]
            following = self.change(first, last, how)
            if following > last:
                spans.pop()
            else:
                spans[-1] = Span(following, last)
            if spans:
                await turn
        if is_stored:
            self.advance()

    async def bury(self, letters: Sequence[Letter]) -> Transition:
        """Archive records whose dead letters are written or given up. The state to store needs no `settle`."""
        decided = Transition(Limits())

        def how(run: Run, low: int, high: int) -> Run | None:
            if run.what & (STATE | PENDING) != _ARCHIVING:
                return None
            decided.add(low, high, _ARCHIVED, run.deliveries)
            return self._archived(run, low, high)

        for letter in letters:
            await self.change_all(letter.first_offset, letter.last_offset, how)
        self.advance()
        return decided


def _after_failure(run: Run, limits: Limits) -> int:
    """Return the state of a record after a delivery that was not accepted."""
    if run.deliveries < limits.delivery_count:
        return _AVAILABLE
    return _ARCHIVING if limits.dead_letters else _ARCHIVED
