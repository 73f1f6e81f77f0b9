"""Faults that a test sets. A fault defines the requests that it affects, and their outcome.

Owns the faults, their filters, and the number of requests that each fault has affected. Never changes a request's bytes
or a connection: interceptor.py carries out the plan that `Faults.plan` returns. A test's thread sets faults and the
broker's thread reads them, so the tuple of active faults is never modified, only replaced.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Final, Self, Unpack

from kbroker.protocol.errors import ErrorCode
from kbroker.testing.calling import NOT_RUNNING
from kbroker.testing.filters import LONGEST_DELAY_MS, LONGEST_THROTTLE_MS, Filter, Seen, When, check_values
from kbroker.testing.known import check_apis, check_filters, error_code
from kbroker.testing.numbers import check_number, check_whole
from kbroker.testing.storm import USUAL_RATE, squall

WRITING: Final = (
    "Produce", "OffsetCommit", "TxnOffsetCommit", "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn",
)  # fmt: skip
"""The APIs whose handlers write to a log before they respond."""


def that_write(filters: Filter) -> Filter:
    """Restrict filters to requests that write. InitProducerId without a transactional id writes to no log."""
    wanted = filters.get("where")

    def writes(seen: Seen) -> bool:
        stands = seen.api != "InitProducerId" or bool(seen.transactional_ids)
        return stands and (wanted is None or wanted(seen))

    return {**filters, "where": writes}


class Kind(Enum):
    """The effect of a fault."""

    FAIL = "fail"
    DELAY = "delay"
    DROP = "drop"
    DISCONNECT = "disconnect"
    THROTTLE = "throttle"
    REFUSE = "refuse"
    STORM = "storm"


_STORMS_KEPT = 100


class Fault:
    """One fault. As a context manager, it is removed at the end of the `with` block."""

    def __init__(
        self, faults: Faults, kind: Kind, apis: frozenset[str], value: Any, wanted: Filter, ends_ms: float | None
    ) -> None:
        self._faults = faults
        self._error: Exception | None = None
        self.kind = kind
        self.apis = apis
        """The names of the APIs; empty if the fault applies to all APIs."""
        self.value = value
        """The value that belongs to `kind`: an error code and text, a number of ms, or a When."""
        self.filter = wanted
        self.hits = 0
        """The number of requests that have met the fault."""
        self._passed = 0
        self._random = random.Random(wanted.get("seed", 0))
        self._ends_ms = ends_ms
        self._met = threading.Condition()

    def __repr__(self) -> str:
        where = "".join(f" {key}={value!r}" for key, value in self.filter.items())
        return f"<Fault {self.kind.value} {','.join(sorted(self.apis)) or 'any'}{where} hits={self.hits}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._faults.remove(self)
        if error is None:
            self._raise_error()
        elif self.kind is Kind.STORM:
            error.add_note(f"in {self.call_text()}")

    def call_text(self) -> str:
        """Return the text of the call that repeats a storm, and the number of requests that the storm has affected."""
        apis = [] if not self.apis else [repr(sorted(self.apis))]
        arguments = ", ".join([*apis, *(f"{name}={value!r}" for name, value in self.filter.items())])
        return f"storm({arguments}), met by {self.hits} request{'' if self.hits == 1 else 's'}"

    def remove(self) -> None:
        """Remove the fault. Raises the error that its `where` function raised, but only once."""
        self._faults.remove(self)
        self._raise_error()

    def _raise_error(self) -> None:
        """Raise the error that `where` has raised in the broker's thread."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self, hits: int = 1, timeout: float = 10.0) -> None:
        """Wait until this many requests have met the fault. Raises AssertionError after `timeout` seconds.

        Raises the error that the fault's `where` function raised, but only once. Raises RuntimeError if the broker has
        stopped.
        """
        check_whole("hits", hits, 0)
        check_number("timeout", timeout)
        with self._met:
            self._faults.waiting.add(self)
            there = self._met.wait_for(
                lambda: self.hits >= hits or self._error is not None or self._faults.has_ended, timeout
            )
            self._faults.waiting.discard(self)
            self._raise_error()
            if there and self.hits < hits:
                raise RuntimeError(f"{NOT_RUNNING}: {self!r} was met {self.hits} times, not {hits} times")
            if not there:
                raise AssertionError(f"{self!r} was met {self.hits} times in {timeout} s, not {hits} times")

    def end(self) -> None:
        """Wake waiting threads, because the broker has stopped."""
        with self._met:
            self._met.notify_all()

    def keeps(self, topic: str | None, partition: int | None) -> bool:
        """Whether the fault applies to a topic, or to one partition."""
        wanted = self.filter
        if "topic" in wanted and topic != wanted["topic"]:
            return False
        return "partition" not in wanted or partition == wanted["partition"]

    def is_over(self, now_ms: float) -> bool:
        """Whether the fault's time has run out."""
        return self._ends_ms is not None and now_ms >= self._ends_ms

    @property
    def of_a_part(self) -> bool:
        """Whether the fault may apply to only some of a request's partitions."""
        return "topic" in self.filter or "partition" in self.filter

    def meets(self, seen: Seen, now_ms: float) -> bool:
        """Count a request, and return whether it meets this fault. Only the broker's thread calls this."""
        wanted = self.filter
        if self.is_over(now_ms):
            self._faults.remove(self)
            return False
        if not self._is_for(seen, wanted):
            return False
        self._passed += 1
        if self._passed <= wanted.get("skip", 0):
            return False
        if "rate" in wanted and self._random.random() >= wanted["rate"]:
            return False
        with self._met:
            self.hits += 1
            self._met.notify_all()
        if self.hits == wanted.get("times"):
            self._faults.remove(self)
        return True

    def happens(self, seen: Seen) -> tuple[Kind, Any]:
        """Return the outcome (kind and value) of a request that meets the fault."""
        if self.kind is not Kind.STORM:
            return self.kind, self.value
        name, value = squall(seen.api, seen.version, self._random)
        kind = Kind(name)
        return kind, (value, None) if kind is Kind.FAIL else value

    def _is_for(self, seen: Seen, wanted: Filter) -> bool:
        if self.apis and seen.api not in self.apis:
            return False
        of_the_asker = (("client_id", seen.client_id), ("principal", seen.principal), ("broker", seen.broker))
        for name, value in of_the_asker:
            if name in wanted and wanted[name] != value:  # type: ignore[literal-required]
                return False
        if "group" in wanted and wanted["group"] not in seen.groups:
            return False
        if "transactional_id" in wanted and wanted["transactional_id"] not in seen.transactional_ids:
            return False
        if self.of_a_part and not any(
            self.keeps(topic, None if not partitions else each)
            for topic, partitions in seen.topics.items()
            for each in (partitions or {wanted.get("partition", -1)})
        ):
            return False
        return "where" not in wanted or self._is_meant(wanted["where"], seen)

    def _is_meant(self, where: Callable[[Seen], bool], seen: Seen) -> bool:
        try:
            return bool(where(seen))
        except Exception as err:  # noqa: BLE001 - raised in the test's thread; the request is served without a fault
            with self._met:
                self._error = self._error or err
                self._met.notify_all()
            return False


@dataclass(frozen=True, slots=True)
class End:
    """The way in which a request fails, is dropped, or loses its connection. For `value` see Fault."""

    kind: Kind
    value: Any
    fault: Fault


@dataclass(slots=True)
class Plan:
    """The outcome of one request."""

    delay_ms: float = 0.0
    throttle_ms: int = 0
    end: End | None = None
    """The way in which the request fails, is dropped, or loses its connection; None if none of these happens."""

    def in_words(self) -> str:
        """Return a description of the plan."""
        parts = []
        if self.delay_ms:
            parts.append(f"delay {self.delay_ms:.0f} ms")
        if self.throttle_ms:
            parts.append(f"throttle {self.throttle_ms} ms")
        if self.end is not None:
            value = self.end.value[0] if self.end.kind is Kind.FAIL else self.end.value
            parts.append(" ".join(filter(None, (self.end.kind.value, getattr(value, "name", "")))))
        return ", ".join(parts)


class Faults:
    """The faults of a broker. Each method that sets a fault returns the fault, for a `with` block or for inspection.

    `api` is Kafka's name of an API ("Produce"), several of them, or "*". See `Filter` for the filters. Raises
    ValueError or TypeError for an invalid argument, and for a filter that no request can match.
    """

    def __init__(
        self,
        known_apis: Iterable[str],
        now_ms: Callable[[], float],
        changed: Callable[[], None],
        brokers: Collection[int],
    ) -> None:
        """Create the faults. `brokers` are the ids of all brokers, `known_apis` the APIs that they serve.

        `changed` is called whenever the set of faults changes.
        """
        self._known = frozenset(known_apis)
        self._brokers = frozenset(brokers)
        self._now_ms = now_ms
        self._changed = changed
        self._lock = threading.Lock()
        self.active: tuple[Fault, ...] = ()
        """The active faults, in the order in which they were set."""
        self.storms: deque[Fault] = deque(maxlen=_STORMS_KEPT)
        """The latest storms, including removed storms."""
        self.waiting: set[Fault] = set()
        """The faults for which a thread waits (`Fault.wait`)."""
        self.has_ended = False
        """Whether the broker has stopped, so that no request can meet a fault any more."""

    def __repr__(self) -> str:
        return f"<Faults {list(self.active)!r}>"

    def fail(
        self, api: str | Iterable[str], error: ErrorCode | str, message: str | None = None, **filters: Unpack[Filter]
    ) -> Fault:
        """Respond with an error, and do not execute the request: a failed append writes nothing.

        `error` may be Kafka's name, like "ILLEGAL_GENERATION". `message` is the text of the error. With `topic` or
        `partition`, only that part of the request fails; the broker executes the other parts normally.
        """
        if not isinstance(message, str | None):
            raise TypeError(f"message must be a str, not {message!r}")
        return self._set(Kind.FAIL, api, (error_code(error), message), filters)

    def delay(self, api: str | Iterable[str], seconds: float, /, **filters: Unpack[Filter]) -> Fault:
        """Delay a request before it is executed. Later requests of the same connection wait as well."""
        check_number("seconds", seconds, LONGEST_DELAY_MS / 1000)
        return self._set(Kind.DELAY, api, seconds * 1000, filters)

    def drop(self, api: str | Iterable[str], **filters: Unpack[Filter]) -> Fault:
        """Execute a request, but send no response.

        Later requests of its connection get no response either, because responses keep their order.
        """
        return self._set(Kind.DROP, api, None, filters)

    def disconnect(self, api: str | Iterable[str], when: When | str = When.BEFORE, **filters: Unpack[Filter]) -> Fault:
        """Close the connection of a request, at the moment given by `When`."""
        return self._set(Kind.DISCONNECT, api, When.of(when), filters)

    def throttle(self, ms: int, api: str | Iterable[str] = "*", **filters: Unpack[Filter]) -> Fault:
        """Set throttle_time_ms in responses, as if a quota were exceeded. Clients then pause for this number of ms."""
        check_whole("ms", ms, 0, LONGEST_THROTTLE_MS)
        return self._set(Kind.THROTTLE, api, ms, filters)

    def full_disk(self, **filters: Unpack[Filter]) -> Fault:
        """Refuse all requests that would write to a log, as a broker with a full disk does."""
        return self._set(Kind.FAIL, WRITING, (ErrorCode.KAFKA_STORAGE_ERROR, None), filters, that_write)

    def slow_disk(self, ms: float, **filters: Unpack[Filter]) -> Fault:
        """Delay each request that writes to a log by this number of ms."""
        check_number("ms", ms, LONGEST_DELAY_MS)
        return self._set(Kind.DELAY, WRITING, ms, filters, that_write)

    def storm(self, api: str | Iterable[str] = "*", **filters: Unpack[Filter]) -> Fault:
        """Let a share of all requests fail in ways that Kafka permits (see storm.py).

        The share is `rate`, by default 5 %. With the same `seed`, the same requests in the same order have the same
        outcome.
        """
        if "seed" not in filters:
            raise TypeError("a storm needs a seed, so that it can be repeated")
        storm = self._set(Kind.STORM, api, None, {"rate": USUAL_RATE, **filters})
        self.storms.append(storm)
        return storm

    def refuse_connections(self) -> Fault:
        """Close each new connection immediately. Open connections stay open."""
        return self._set(Kind.REFUSE, "*", None, {})

    @property
    def apis(self) -> frozenset[str]:
        """The names of the known APIs."""
        return self._known

    @property
    def refuses_connections(self) -> bool:
        """Whether new connections are refused."""
        return any(each.kind is Kind.REFUSE for each in self.active)

    def standing(self) -> list[Fault]:
        """Return the active faults that later requests could meet."""
        now_ms = self._now_ms()
        return [each for each in self.active if not each.is_over(now_ms)]

    def remove(self, fault: Fault) -> None:
        """Remove a fault. No request meets the fault any more."""
        with self._lock:
            self.active = tuple(each for each in self.active if each is not fault)
        self._changed()

    def end(self) -> None:
        """Refuse to set more faults, and wake waiting threads. Call this after the broker has stopped."""
        self.has_ended = True
        for each in {*self.waiting, *self.active}:
            each.end()

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self.active = ()
        self._changed()

    def plan(self, seen: Seen) -> Plan | None:
        """Return the outcome of a request; None if the request meets no fault. Only the broker's thread calls this."""
        plan = None
        now_ms = self._now_ms()
        for fault in self.active:
            if fault.kind is Kind.REFUSE:
                continue
            ends = fault.kind not in (Kind.DELAY, Kind.THROTTLE)
            if (ends and plan is not None and plan.end is not None) or not fault.meets(seen, now_ms):
                continue
            plan = plan or Plan()
            kind, value = fault.happens(seen)
            if kind is Kind.DELAY:
                plan.delay_ms += value
            elif kind is Kind.THROTTLE:
                plan.throttle_ms = max(plan.throttle_ms, value)
            else:
                plan.end = End(kind, value, fault)
        return plan

    def _set(
        self,
        kind: Kind,
        api: str | Iterable[str],
        value: Any,
        filters: Filter,
        narrowed: Callable[[Filter], Filter] = lambda same: same,
    ) -> Fault:
        if not isinstance(api, Iterable):
            raise TypeError(f'an API is named as "Produce", not {api!r}')
        names = frozenset([api] if isinstance(api, str) else api)
        if not names:
            raise ValueError('no API is named: "*" is all of them')
        names = check_apis(frozenset() if "*" in names else names, self._known)
        check_values(filters, self._brokers)
        check_filters(names, filters)
        ends_ms = self._now_ms() + filters["seconds"] * 1000 if "seconds" in filters else None
        if self.has_ended:
            raise RuntimeError(NOT_RUNNING)
        fault = Fault(self, kind, names, value, narrowed(filters), ends_ms)
        with self._lock:
            self.active = (*self.active, fault)
        self._changed()
        return fault
