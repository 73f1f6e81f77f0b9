"""The requests of clients to an embedded broker, and their answers: a bounded list.

Owns the recorded requests, their limits, and the wait for requests. Never changes a request. The broker's thread writes
the list, and tests read it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack, overload

from kbroker.testing.calling import NOT_RUNNING
from kbroker.testing.filters import Seen
from kbroker.testing.known import check_apis, check_filters

KEPT = 10_000
"""The maximum number of requests that are kept; the oldest are dropped first."""
KEPT_BYTES = 16 * 1024 * 1024
"""The maximum number of bytes of requests and answers that are kept."""


class About(TypedDict, total=False):
    """The filters by subject: the topic, group or transactional id that a request names, or the client that sent it."""

    topic: str | None
    group: str | None
    transactional_id: str | None
    client_id: str | None


def _check(about: Mapping[str, Any]) -> None:
    """Raise TypeError for an unknown filter, which code without type checks would silently ignore."""
    known = About.__annotations__
    for name, value in about.items():
        if name not in known:
            raise TypeError(f"requests are not filtered by {name!r}, only by {', '.join(known)}")
        if not isinstance(value, str | None):
            raise TypeError(f"{name} must be a name, not {value!r}")


class Request:
    """One request as it arrived, and its answer, if there is one."""

    __slots__ = ("_answer", "_read", "_seen", "duration_ms", "fault", "is_kept", "number", "size", "time_ms")

    def __init__(
        self,
        seen: Seen | Callable[[], Seen],
        size: int,
        time_ms: int,
        answer: bytes | None = None,
        read: Callable[[bytes], Any] | None = None,
        duration_ms: float | None = None,
    ) -> None:
        """Create the request.

        `seen` may be a function; the thread of the first reader then calls it. `end` adds an answer.
        """
        self._seen = seen
        self.size = size if answer is None else size + len(answer)
        """The size of request and answer, in bytes."""
        self._answer = answer
        self._read = read
        self.time_ms = time_ms
        """The time when the request arrived, in ms since the epoch, by the broker's clock."""
        self.duration_ms = duration_ms
        """The duration of the request, in ms; None until the request is done."""
        self.fault: str | None = None
        """The fault that the request met, like "fail NOT_LEADER_OR_FOLLOWER"."""
        self.number = 0
        """The position among the answered requests, starting at 1."""
        self.is_kept = True

    @property
    def seen(self) -> Seen:
        """The view of the request that faults use."""
        if not isinstance(self._seen, Seen):
            self._seen = self._seen()
        return self._seen

    @property
    def api(self) -> str:
        """Kafka's name of the API, like "Produce"."""
        return self.seen.api

    @property
    def version(self) -> int:
        return self.seen.version

    @property
    def client_id(self) -> str | None:
        return self.seen.client_id

    @property
    def request(self) -> Any:
        """The decoded request. Its fields have Kafka's names in snake_case."""
        return self.seen.request

    @property
    def answer(self) -> Any:
        """The decoded answer.

        None if there is no answer yet, if the client requested none, or if a fault dropped it.
        """
        if self._answer is None or self._read is None:
            return None
        return self._read(self._answer)

    def is_about(self, api: str | None = None, **about: Unpack[About]) -> bool:
        """Whether this is a request of an API and matches the filters."""
        seen = self.seen
        return (
            api in (None, seen.api)
            and (about.get("topic") is None or about["topic"] in seen.topics)
            and (about.get("group") is None or about["group"] in seen.groups)
            and (about.get("transactional_id") is None or about["transactional_id"] in seen.transactional_ids)
            and (about.get("client_id") is None or about["client_id"] == seen.client_id)
        )

    def end(self, answer: bytes | None, read: Callable[[bytes], Any], duration_ms: float) -> None:
        """Store the answer, or None if there is no answer."""
        self._answer, self._read, self.duration_ms = answer, read, duration_ms
        self.size += len(answer or b"")

    def __repr__(self) -> str:
        took = "not answered yet" if self.duration_ms is None else f"{self.duration_ms:.1f} ms"
        about = [*self.seen.topics, *sorted(self.seen.groups), *sorted(self.seen.transactional_ids)]
        what = f"{self.api} v{self.version} from {self.client_id}{' about ' + ', '.join(about) if about else ''}"
        return f"<{what}, {took}{f', fault: {self.fault}' if self.fault else ''}>"


class Requests(Sequence[Request]):
    """The recorded requests, the oldest first, since the last `clear`. At most KEPT requests are kept."""

    def __init__(self, known_apis: Iterable[str] = ()) -> None:
        """Create the list. `known_apis` are the APIs that a test may name."""
        self._known = frozenset(known_apis)
        self.on = False
        """Whether requests are recorded."""
        self._kept: deque[Request] = deque()
        self._bytes = 0
        self._count = 0
        self._is_late = False
        self._has_ended = False
        self._changed = threading.Condition()

    def start(self, *, late: bool) -> None:
        """Start to record. `late` means that clients may have sent requests before the start."""
        self.on = True
        self._is_late = late

    @property
    def is_late_and_empty(self) -> bool:
        """Whether clients connected before the recording began, but no request has been recorded."""
        return self._is_late and not self._count and not self._kept

    def __repr__(self) -> str:
        if not self.on:
            return "<Requests, not recorded yet>"
        apis = Counter(each.api for each in self)
        counts = ", ".join(f"{count} {api}" for api, count in apis.most_common())
        return f"<Requests: {counts or 'none'}>"

    def __len__(self) -> int:
        return len(self._kept)

    @overload
    def __getitem__(self, index: int) -> Request: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Request]: ...

    def __getitem__(self, index: int | slice) -> Request | Sequence[Request]:
        with self._changed:
            return list(self._kept)[index]

    def __iter__(self) -> Iterator[Request]:
        with self._changed:
            return iter(list(self._kept))

    def of(self, api: str | None = None, **about: Unpack[About]) -> list[Request]:
        """Return an API's requests that match the filters `topic`, `group`, `transactional_id`, `client_id`.

        Raises ValueError for filters that no request can match, and TypeError for an unknown filter.
        """
        _check(about)
        if api is not None and self._known:
            check_filters(check_apis([api], self._known), about)
        return [each for each in self if each.is_about(api, **about)]

    @property
    def answered(self) -> int:
        """The number of requests that have been answered since the recording began."""
        return self._count

    def after(self, number: int) -> list[Request]:
        """Return the requests that were answered after request `number`, in the order of answers.

        Old requests may be missing.
        """
        with self._changed:
            return self._after(number)

    def _after(self, number: int) -> list[Request]:
        return sorted((each for each in self._kept if each.number > number), key=lambda each: each.number)

    def clear(self) -> None:
        """Delete all recorded requests."""
        with self._changed:
            if self.on:
                self._is_late = False  # the caller wants only later requests
            while self._kept:
                self._forget()

    def wait_for(self, api: str, count: int = 1, *, timeout: float = 10.0, **about: Unpack[About]) -> list[Request]:
        """Wait until `count` requests of an API are answered, and return them. For `about` see `of`.

        After `timeout` seconds, raises AssertionError with a list of all requests. Raises RuntimeError if the broker
        has stopped.
        """

        def found() -> list[Request]:
            return [each for each in self.of(api, **about) if each.duration_ms is not None]

        deadline = time.monotonic() + timeout
        while True:
            with self._changed:
                seen = self._count
            there = found()
            if len(there) >= count:
                return there
            with self._changed:
                left = deadline - time.monotonic()
                if self._has_ended:
                    raise RuntimeError(f"{NOT_RUNNING}: {len(found())} of {count} {api}; there are {self!r}")
                if left <= 0 or not self._changed.wait_for(partial(self._is_past, seen), left):
                    if len(found()) >= count:
                        continue
                    raise AssertionError(f"{len(found())} of {count} {api} in {timeout} s; there are {list(self)!r}")

    def live(self, timeout: float = 10.0) -> Iterator[Request]:
        """Yield newly answered requests. End after `timeout` seconds without a request, or when the broker stops."""
        return self._live(self._count, timeout)

    def _live(self, given: int, timeout: float) -> Iterator[Request]:
        while True:
            with self._changed:
                if not self._changed.wait_for(partial(self._is_past, given), timeout):
                    return
                has_ended, new, given = self._has_ended, self._after(given), self._count
            yield from new
            if has_ended:
                return

    def _is_past(self, count: int) -> bool:
        return self._count != count or self._has_ended

    def end(self) -> None:
        """Wake waiting threads, because no more requests will arrive."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    # --- called by the broker's thread

    def add(self, request: Request) -> None:
        """Add a request that has arrived, with or without its answer."""
        with self._changed:
            self._kept.append(request)
            self._bytes += request.size
            if len(self._kept) > KEPT or self._bytes > KEPT_BYTES:
                self._trim()
            if request.duration_ms is not None:
                self._count += 1
                request.number = self._count
                self._changed.notify_all()

    def end_request(
        self, request: Request, answer: bytes | None, read: Callable[[bytes], Any], duration_ms: float
    ) -> None:
        """Store the answer to a request that was added without an answer."""
        with self._changed:
            request.end(answer, read, duration_ms)
            self._count += 1
            request.number = self._count
            if request.is_kept:
                self._bytes += len(answer or b"")
                self._trim()
            self._changed.notify_all()

    def _trim(self) -> None:
        while self._kept and (len(self._kept) > KEPT or self._bytes > KEPT_BYTES):
            self._forget()

    def _forget(self) -> None:
        oldest = self._kept.popleft()
        oldest.is_kept = False
        self._bytes -= oldest.size
