"""Internal topics of streams groups that could not be created recently, and the reasons.

Owns the limit on their number: the oldest failure is removed first.
"""

from __future__ import annotations

from collections.abc import Iterable

MOST = 1_000
"""The maximum number of failures to keep, as in Apache Kafka."""


class FailedTopics:
    """The failures by topic. Each failure is kept until its own time, in ms of the monotonic clock."""

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[str, float]] = {}

    def add(self, name: str, why: str, until_ms: float) -> None:
        """Record that a topic could not be created."""
        self._by_name.pop(name, None)
        self._by_name[name] = why, until_ms
        if len(self._by_name) > MOST:
            del self._by_name[next(iter(self._by_name))]

    def of(self, names: Iterable[str], now_ms: float) -> dict[str, str]:
        """Return the errors of the topics in `names` whose creation failed recently."""
        found = {}
        for name in names:
            why, until_ms = self._by_name.get(name, ("", 0.0))
            if now_ms < until_ms:
                found[name] = why
            else:
                self._by_name.pop(name, None)
        return found
