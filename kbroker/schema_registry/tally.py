"""How often each endpoint of a registry was requested, with which status, and for how long.

Owns the counts, which the registry's server adds to in its thread, and metrics read in the broker's. Endpoints are the
patterns of their paths, so there is a limit to the counts whatever clients request.
"""

from __future__ import annotations

from collections import Counter

ELSEWHERE = "none"
"""The endpoint of requests that another broker answered, or that were refused before they reached an endpoint."""


class Tally:
    """Counts since the start of the registry."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, float] = {}

    def add(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request; `status` is that of HTTP, 0 without an answer."""
        self._requests[endpoint, status] += 1
        self._seconds[endpoint] = self._seconds.get(endpoint, 0.0) + seconds

    def requests(self) -> dict[tuple[str, int], int]:
        """Return the number of requests by endpoint and status."""
        return self._requests.copy()

    def seconds(self) -> dict[str, float]:
        """Return the time from the head of a request to the end of its answer, in seconds, summed by endpoint."""
        return self._seconds.copy()
