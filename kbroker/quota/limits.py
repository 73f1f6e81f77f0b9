"""The limit of a client: the most specific one, in Kafka's order (ClientQuotaManager).

Owns that order. A bucket shares one limit: all connections of a user, whatever their client ids, if the limit is the
user's; one client id of one user if it is for both; all with one client id if it is for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kbroker.quota.entities import DEFAULT

Bucket = tuple[str | None, str | None]
"""A user and a client id; None for any."""
_SPECIFIC: tuple[tuple[bool | None, bool | None], ...] = (
    (True, True), (True, False), (True, None),
    (False, True), (False, False), (False, None),
    (None, True), (None, False),
)  # fmt: skip
"""From most to least specific, by user and client id: True for its own, False for the default, None for neither."""


class Limit(NamedTuple):
    """The limit of a client."""

    bucket: Bucket
    value: float


class Limits:
    """Limits of one key by user and client id."""

    def __init__(self, limits: Mapping[Bucket, float]) -> None:
        """`limits` are by entity names, including DEFAULT."""
        self._limits = dict(limits)
        self._counts = Counter(map(_specific, self._limits))
        self._look()

    def _look(self) -> None:
        """Find the levels in use: the others need no look-up."""
        self._levels = [level for level in _SPECIFIC if self._counts[level]]

    def alter(self, bucket: Bucket, value: float | None) -> None:
        """Set a limit, or remove it."""
        level = _specific(bucket)
        self._counts[level] += (value is not None) - (bucket in self._limits)
        if value is not None:
            self._limits[bucket] = value
        else:
            self._limits.pop(bucket, None)
        self._look()

    def __bool__(self) -> bool:
        return bool(self._limits)

    def of(self, user: str, client_id: str | None) -> Limit | None:
        """Return a client's limit; None without one. A client without an id has no limit by client id."""
        for by_user, by_client in self._levels:
            if by_client is not None and not client_id:
                continue
            key = (_wanted(by_user, user), _wanted(by_client, client_id))
            value = self._limits.get(key)
            if value is not None:
                return Limit((None if by_user is None else user, None if by_client is None else client_id), value)
        return None

    def of_bucket(self, bucket: Bucket) -> float | None:
        """Return the limit of a bucket from `of`; None if it was removed since."""
        user, client_id = bucket
        for by_user, by_client in self._levels:
            if (by_user is None, by_client is None) == (user is None, client_id is None):
                value = self._limits.get((_wanted(by_user, user), _wanted(by_client, client_id)))
                if value is not None:
                    return value
        return None


def _wanted(level: bool | None, name: str | None) -> str | None:
    if level is None:
        return None
    return name if level else DEFAULT


def _specific(bucket: Iterable[str | None]) -> tuple[bool | None, bool | None]:
    user, client_id = (None if name is None else name != DEFAULT for name in bucket)
    return user, client_id
