"""Counts the requests of each endpoint of a registry by status, and sums their time.

Owns the counts. The registry's server increases them in its thread, and metrics read them in the broker's thread.
An endpoint is counted by the pattern of its path, so clients cannot increase the number of counts without limit.
"""

from __future__ import annotations

from collections import Counter

ELSEWHERE = "none"
"""The name for requests that another broker answered, or that were refused before they reached an endpoint."""


class Tally:
    """Counts since the start of the registry."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, float] = {}

    def add(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request; `status` is the HTTP status, or 0 without an answer."""
        self._requests[endpoint, status] += 1
        self._seconds[endpoint] = self._seconds.get(endpoint, 0.0) + seconds

    def requests(self) -> dict[tuple[str, int], int]:
        """Return the number of requests by endpoint and status."""
        return self._requests.copy()

    def seconds(self) -> dict[str, float]:
        """Return the total seconds of each endpoint's requests, from a request's head to the end of its answer."""
        return self._seconds.copy()
