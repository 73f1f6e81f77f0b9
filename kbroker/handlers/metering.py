"""Measures the use of a client's quotas by a request, and the pause that the client must make.

Owns the counts for the current request of a connection: its size, its time on the loop, the fetched bytes, and the
created and deleted partitions. Never mutes a connection (network/connection.py does that), and knows no limit (the
package `quota` has the limits). A meter exists only while there are quotas; handlers find it in their context.

The time is the time on the loop to decode the request, to handle it, and to encode and send its response. Time that is
used after the decision about the pause counts for the next request, like the time of Kafka's network threads.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from time import perf_counter as now
from types import coroutine
from typing import Any, Final, TypeVar, cast

from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.quota.client_quotas import ClientQuotas
from kbroker.security.principal import Principal

_T = TypeVar("_T")
_PERCENT: Final = 100.0
BETWEEN_BROKERS: Final = frozenset(
    {
        "LeaderAndIsr",
        "StopReplica",
        "UpdateMetadata",
        "ControlledShutdown",
        "AlterPartition",
        "AllocateProducerIds",
        "WriteTxnMarkers",
        "InitializeShareGroupState",
        "ReadShareGroupState",
        "WriteShareGroupState",
        "DeleteShareGroupState",
        "ReadShareGroupStateSummary",
    }
)
"""The APIs that never cause a pause."""


class Metering:
    """The meter of one connection, for its current request."""

    __slots__ = (
        "_quotas",
        "_since",
        "_spent",
        "client_id",
        "mutated_until_ms",
        "pause_ms",
        "running",
        "size",
        "user",
    )

    def __init__(self, quotas: ClientQuotas) -> None:
        self._quotas = quotas
        self.running = False
        """Whether the current request is metered. A request that began before there were quotas is not metered."""
        self.user = ""
        self.client_id: str | None = None
        self.size = 0
        self.pause_ms: int | None = None
        """The time in ms for which the client has to pause, once `settle` has computed it."""
        self.mutated_until_ms = 0.0
        self._spent = 0.0
        self._since: float | None = None
        """The time at which the loop resumed its work on this request; None while the loop does other work."""

    def begin(self, principal: Principal, client_id: str | None, size: int, since: float) -> None:
        """Begin a request of `size` bytes. The loop began to work on the request at the time `since` (by `now`)."""
        self.user, self.client_id, self.size = principal.name, client_id, size
        self.running, self.pause_ms = True, None
        self.mutated_until_ms = 0.0
        self._since, self._spent = since, 0.0

    # --- the time

    def timed(self, steps: Coroutine[Any, Any, _T]) -> Coroutine[Any, Any, _T]:
        """Return a coroutine that runs `steps` and measures their time on the loop."""
        return cast("Coroutine[Any, Any, _T]", self._timed(steps))

    @coroutine
    def _timed(self, steps: Coroutine[Any, Any, _T]) -> Generator[Any, None, _T]:
        self._stop()
        try:
            while True:
                self._since = now()
                waits = steps.send(None)
                self._stop()
                yield waits
        except StopIteration as end:
            self._stop()
            result: _T = end.value
            return result
        finally:
            self.running = False
            steps.close()

    def _stop(self) -> None:
        if self._since is not None:
            self._spent += now() - self._since
            self._since = None

    def _take_time(self) -> float:
        """Return the time used since the last call, in percent of a second."""
        if self._since is not None:
            at = now()
            self._spent += at - self._since
            self._since = at
        spent, self._spent = self._spent, 0.0
        return spent * _PERCENT

    def sent(self, seconds: float) -> None:
        """Count the rest of the encoding time, and `seconds` of sending.

        Does nothing before `settle` has computed the pause.
        """
        if self.pause_ms is not None:
            percent = (self._spent + seconds) * _PERCENT
            self._quotas.worked.note(self.user, self.client_id, percent, self._quotas.now_ms())

    # --- usage

    def settle(self, *, produces: bool, counts_time: bool) -> int:
        """Return the pause in ms that the client must make because of the quotas that the finished request used."""
        if self.pause_ms is None:
            now_ms = self._quotas.now_ms()
            pause_ms = max(0, int(self.mutated_until_ms - now_ms))
            if produces:
                pause_ms = max(pause_ms, self._quotas.produced.record(self.user, self.client_id, self.size, now_ms))
            if counts_time:
                pause_ms = max(pause_ms, self._worked(now_ms))
            self.pause_ms = pause_ms
        return self.pause_ms

    def _worked(self, now_ms: float) -> int:
        return self._quotas.worked.record(self.user, self.client_id, self._take_time(), now_ms)

    def settle_fetch(self, size: int, *, is_sent: bool = False) -> int:
        """Settle the pause for a Fetch response of `size` bytes.

        A client that must pause is not charged for these bytes. With `is_sent` the response is sent in any case, and
        its bytes are always charged.
        """
        now_ms = self._quotas.now_ms()
        fetched = self._quotas.fetched
        pause_ms = max(self._worked(now_ms), fetched.record(self.user, self.client_id, size, now_ms))
        if pause_ms and not is_sent:
            fetched.note(self.user, self.client_id, -size, now_ms)
        self.pause_ms = pause_ms
        return pause_ms

    def largest_fetch(self) -> float | None:
        """Return the maximum number of bytes that one fetch may return without causing a pause by itself.

        None means no limit.
        """
        return self._quotas.fetched.at_once(self.user, self.client_id)

    def mutate(self, count: int, *, strict: bool) -> None:
        """Charge for `count` partitions to create or delete. If `strict`, raise ApiError when the quota is exceeded."""
        if not self.running:
            return
        now_ms = self._quotas.now_ms()
        allowed, pause_ms = self._quotas.mutated.mutate(self.user, self.client_id, count, now_ms, strict=strict)
        if pause_ms:
            self.mutated_until_ms = now_ms + pause_ms
        if not allowed:
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
