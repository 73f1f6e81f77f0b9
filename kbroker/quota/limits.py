"""Which limit holds for a client: the most specific one, in Kafka's order (ClientQuotaManager).

Owns that order. What one limit holds for together is a bucket: a user's connections, whatever their client ids, where
the limit is the user's; one client id of one user where it is for both; all with one client id where it is for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kbroker.quota.entities import DEFAULT

Bucket = tuple[str | None, str | None]
"""A user and a client id; None: whichever."""
_SPECIFIC: tuple[tuple[bool | None, bool | None], ...] = (
    (True, True), (True, False), (True, None),
    (False, True), (False, False), (False, None),
    (None, True), (None, False),
)  # fmt: skip
"""From the most specific on, of user and client id: True its own, False the default, None neither."""


class Limit(NamedTuple):
    """What holds for a client."""

    bucket: Bucket
    value: float


class Limits:
    """Limits of one key by user and client id."""

    def __init__(self, limits: Mapping[Bucket, float]) -> None:
        """`limits` are by the names of entities, of which DEFAULT is one."""
        self._limits = dict(limits)
        self._counts = Counter(map(_specific, self._limits))
        self._look()

    def _look(self) -> None:
        """See which levels there are: of the others none is looked up."""
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
        """Return what holds for a client; None: nothing does. Without a client id no limit of client ids does."""
        for by_user, by_client in self._levels:
            if by_client is not None and not client_id:
                continue
            key = (_wanted(by_user, user), _wanted(by_client, client_id))
            value = self._limits.get(key)
            if value is not None:
                return Limit((None if by_user is None else user, None if by_client is None else client_id), value)
        return None

    def of_bucket(self, bucket: Bucket) -> float | None:
        """Return what holds for a bucket that `of` has named; None where its limit has gone since."""
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
