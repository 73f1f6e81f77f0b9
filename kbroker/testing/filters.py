"""The selection of requests for a fault: the filters, the view of a request, and the moments when a connection breaks.

Owns the filters and their bounds: a value that no request could match is refused immediately. Never reads a request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypedDict

from kbroker.testing.numbers import check_number, check_whole
from kbroker.testing.subjects import Subjects


class When(Enum):
    """The moment, during a request, when the connection breaks.

    REQUEST  the request was read, but not executed
    BEFORE   the request was executed, but no byte of the answer was sent
    MIDDLE   half of the answer was sent
    AFTER    the complete answer was sent
    """

    REQUEST = "request"
    BEFORE = "before"
    MIDDLE = "middle"
    AFTER = "after"

    @classmethod
    def of(cls, given: When | str) -> When:
        """Return a member. `given` is the member or its value. Raises ValueError, whose text lists all members."""
        try:
            return cls(given)
        except ValueError:
            raise ValueError(f"when is one of {', '.join(each.value for each in cls)}, not {given!r}") from None


@dataclass(frozen=True, slots=True)
class Seen:
    """The view of a request that a `where` function receives.

    The function returns whether the fault applies to the request.
    """

    api: str
    version: int
    client_id: str | None
    principal: str
    listener: str
    request: Any
    """The decoded request. Its fields have Kafka's names in snake_case."""
    subjects: Subjects = field(repr=False)
    broker: int = -1
    """The id of the broker that received the request."""

    @property
    def topics(self) -> dict[str, set[int]]:
        """The topics that the request names, with their partitions."""
        return self.subjects.topics

    @property
    def groups(self) -> set[str]:
        """The groups that the request names."""
        return self.subjects.groups

    @property
    def transactional_ids(self) -> set[str]:
        """The transactional ids that the request names."""
        return self.subjects.transactional_ids


class Filter(TypedDict, total=False):
    """The conditions under which a request meets a fault, and the conditions under which the fault begins and ends."""

    topic: str
    """Selects requests that name this topic. A failure applies only to this topic."""
    partition: int
    """Selects requests that name this partition of `topic`, or of any topic if `topic` is not given."""
    client_id: str
    group: str
    transactional_id: str
    principal: str
    """Selects requests of this principal, like "User:alice"."""
    broker: int
    """Selects requests to the broker with this id, in a cluster."""
    where: Callable[[Seen], bool]
    """A function that the broker's thread calls.

    `wait`, `remove` and the end of the `with` block raise its exception again.
    """
    times: int
    """The fault ends after this number of requests have met it."""
    skip: int
    """The number of matching requests that pass before the fault begins."""
    rate: float
    """The share of the matching requests that meet the fault. `seed` determines which requests these are."""
    seed: int
    seconds: float
    """The fault ends after this number of seconds."""


INT32: Final = 2**31 - 1
LONGEST_DELAY_MS: Final = 24 * 3600 * 1000
LONGEST_THROTTLE_MS: Final = INT32
_NAMES: Final = ("topic", "client_id", "group", "transactional_id", "principal")
_LEAST: Final = {"partition": 0, "times": 1, "skip": 0}


def check_values(wanted: Mapping[str, Any], brokers: Collection[int]) -> None:
    """Raise TypeError for an unknown filter or a wrong type, and ValueError for a value that no request can match."""
    unknown = wanted.keys() - Filter.__annotations__.keys()
    if unknown:
        there = ", ".join(Filter.__annotations__)
        raise TypeError(f"a fault has no filter {', '.join(sorted(unknown))}; there are {there}")
    for name in wanted.keys() & set(_NAMES):
        if not isinstance(wanted[name], str):
            raise TypeError(f"{name} must be a str, not {wanted[name]!r}")
    for name in wanted.keys() & _LEAST.keys():
        check_whole(name, wanted[name], _LEAST[name], INT32)
    for name in wanted.keys() & {"seed", "broker"}:
        check_whole(name, wanted[name])
    if "rate" in wanted:
        check_number("rate", wanted["rate"], 1)
    if "seconds" in wanted:
        check_number("seconds", wanted["seconds"])
    if "where" in wanted and not callable(wanted["where"]):
        raise TypeError(f"where must be a function of a request, not {wanted['where']!r}")
    _check_met(wanted, brokers)


def _check_met(wanted: Mapping[str, Any], brokers: Collection[int]) -> None:
    """Raise ValueError for names that no request can have."""
    if wanted.get("topic") == "":
        raise ValueError("topic is empty: no request names it")
    if ":" not in wanted.get("principal", ":"):
        raise ValueError(f'principal must be like "User:alice", not {wanted["principal"]!r}')
    if wanted.get("broker") not in {None, *brokers}:
        there = ", ".join(map(str, sorted(brokers)))
        raise ValueError(f"there is no broker {wanted['broker']}; there {'is' if len(brokers) == 1 else 'are'} {there}")
