"""The delivery of one intent: the batch that the intent describes is sent to its target until the outcome is known.

Owns the retries, and the meaning of each error: nothing was appended, or the outcome is unknown. The producer id, epoch
and sequence stay the same. So the target appends the batch once, even if several brokers send it several times. After
an error that means that nothing was appended, an earlier request could still arrive. So the batch is sent again for a
while if an earlier outcome was unknown, or if another broker may have sent the batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kbroker.long_work import awaited, in_slices
from kbroker.protocol.errors import ErrorCode
from kbroker.schedules.marks import Intent
from kbroker.scheduling.firing import Chosen, Source, SourceGone
from kbroker.scheduling.shared import Shared

log = logging.getLogger(__name__)
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.05, 5.0
LINGERING_MS: Final = 65_000
"""The time in ms for which a request may still arrive after its sender has given up: more than its timeout."""
_ABSENT_MS: Final = 5_000
"""The time in ms for which a topic must be unknown before it counts as deleted: a broker may learn of topics late."""
_UNKNOWN: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors after which the batch may have been appended.

(A leader that resigns while it waits for its followers returns NOT_LEADER_OR_FOLLOWER.)
"""
_AGAIN: Final = _UNKNOWN | {
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
"""Errors after which the same batch is sent again."""
OF_THE_PRODUCER: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""Errors after which another producer id is needed, because the target has lost records of the present id."""


class Delivery:
    """Sends one intent.

    `was_sent` is True if another broker, or an earlier process, can have sent the intent already.
    """

    def __init__(self, shared: Shared, source: Source, intent: Intent, *, was_sent: bool) -> None:
        self._shared = shared
        self._source = source
        self._intent = intent
        now = shared.clock.monotonic_ms()
        self._doubt_until = now + LINGERING_MS if was_sent else now
        self._absent_since: float | None = None
        self.tries = 0
        self.error = ""
        """The last error."""

    async def run(
        self, chosen: Chosen | None, batch: memoryview | None, on_failure: Callable[[], None] = lambda: None
    ) -> tuple[ErrorCode, Chosen | None]:
        """Send until the outcome is known.

        Return the outcome, with the records if they were appended. `on_failure` is called after each try without
        outcome.
        """
        pause = _FIRST_PAUSE_S
        intent, shared = self._intent, self._shared
        while True:
            self.tries += 1
            code = self._gone() or ErrorCode.NONE
            if code is ErrorCode.NONE:
                try:
                    async with shared.places.place(shared.deliveries.leader_of(intent.topic, intent.partition)):
                        if chosen is None:
                            chosen = await in_slices(self._source.again(intent, shared.clock.now_ms()))
                        if batch is None:
                            batch = await in_slices(chosen.batch(intent.producer_id, intent.base_sequence))
                        outcome = await in_slices(
                            shared.deliveries.produce(intent.topic, intent.partition, batch, intent.topic_id)
                        )
                        batch = None
                    code = await awaited(outcome)
                except SourceGone as error:
                    log.error("an intent for %s-%d is given up: %s", intent.topic, intent.partition, error)
                    return ErrorCode.NONE, None
                except OSError as error:
                    self.error, code = str(error), ErrorCode.NOT_ENOUGH_REPLICAS  # the source cannot be read now
                if code is ErrorCode.NONE:
                    return code, chosen
            now = shared.clock.monotonic_ms()
            if code in _UNKNOWN:
                self._doubt_until = now + LINGERING_MS
            self.error = code.name
            if code is ErrorCode.UNKNOWN_TOPIC_ID and self._is_deleted(now):
                return code, None
            if code not in _AGAIN and now >= self._doubt_until:
                return code, None
            chosen = batch = None  # the records would use memory during the pause
            on_failure()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MOST_PAUSE_S)

    def _gone(self) -> ErrorCode | None:
        """Return an error if the target is not the topic of the intent."""
        known = self._shared.topic(self._intent.topic)
        if known is None or known.topic_id != self._intent.topic_id:
            if self._absent_since is None:
                self._absent_since = self._shared.clock.monotonic_ms()
            return ErrorCode.UNKNOWN_TOPIC_ID
        self._absent_since = None
        return None

    def _is_deleted(self, now: float) -> bool:
        return self._absent_since is not None and now >= self._absent_since + _ABSENT_MS
