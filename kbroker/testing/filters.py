"""The requests that meet a fault: the filters that select them, a request as filters see it, and breaks in its life.

Owns the filters and their bounds: a value that no request could match is refused at once. Never reads a request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypedDict

from kbroker.testing.numbers import check_number, check_whole
from kbroker.testing.subjects import Subjects


class When(Enum):
    """When the connection breaks, in the course of a request.

    REQUEST  the request was read, but nothing was done
    BEFORE   the request was done, but not a byte of the answer was sent
    MIDDLE   half of the answer was sent
    AFTER    all of the answer was sent
    """

    REQUEST = "request"
    BEFORE = "before"
    MIDDLE = "middle"
    AFTER = "after"

    @classmethod
    def of(cls, given: When | str) -> When:
        """Return a member from itself or its value. Raises ValueError that lists the members."""
        try:
            return cls(given)
        except ValueError:
            raise ValueError(f"when is one of {', '.join(each.value for each in cls)}, not {given!r}") from None


@dataclass(frozen=True, slots=True)
class Seen:
    """A request in the form for `where` functions, which return whether the fault applies to it."""

    api: str
    version: int
    client_id: str | None
    principal: str
    listener: str
    request: Any
    """The decoded request; its fields are Kafka's, in snake_case."""
    subjects: Subjects = field(repr=False)
    broker: int = -1
    """The id of the broker that received the request."""

    @property
    def topics(self) -> dict[str, set[int]]:
        """The topics of the request, with their partitions."""
        return self.subjects.topics

    @property
    def groups(self) -> set[str]:
        """The groups that it names."""
        return self.subjects.groups

    @property
    def transactional_ids(self) -> set[str]:
        """The transactional ids that the request names."""
        return self.subjects.transactional_ids


class Filter(TypedDict, total=False):
    """The conditions under which requests meet a fault, and when the fault begins and ends."""

    topic: str
    """Requests that name this topic; a failure applies to this topic alone."""
    partition: int
    """Requests that name this partition: of `topic`, or of any topic without that filter."""
    client_id: str
    group: str
    transactional_id: str
    principal: str
    """Requests of this principal, like "User:alice"."""
    broker: int
    """Requests to the broker with this id, in a cluster."""
    where: Callable[[Seen], bool]
    """Called in the broker's thread. `wait`, `remove` and the end of `with` raise its exception again."""
    times: int
    """The fault ends after so many requests have met it."""
    skip: int
    """So many matching requests pass before the fault begins."""
    rate: float
    """Only this share of the requests meets the fault; `seed` determines which ones."""
    seed: int
    seconds: float
    """The fault ends after so many seconds."""


INT32: Final = 2**31 - 1
LONGEST_DELAY_MS: Final = 24 * 3600 * 1000
LONGEST_THROTTLE_MS: Final = INT32
_NAMES: Final = ("topic", "client_id", "group", "transactional_id", "principal")
_LEAST: Final = {"partition": 0, "times": 1, "skip": 0}


def check_values(wanted: Mapping[str, Any], brokers: Collection[int]) -> None:
    """Raise TypeError for an unknown filter or a wrong type; ValueError for a value that no request could match."""
    unknown = wanted.keys() - Filter.__annotations__.keys()
    if unknown:
        there = ", ".join(Filter.__annotations__)
        raise TypeError(f"a fault has no filter {', '.join(sorted(unknown))}; there are {there}")
    for name in wanted.keys() & set(_NAMES):
        if not isinstance(wanted[name], str):
            raise TypeError(f"{name} is to be a str, not {wanted[name]!r}")
    for name in wanted.keys() & _LEAST.keys():
        check_whole(name, wanted[name], _LEAST[name], INT32)
    for name in wanted.keys() & {"seed", "broker"}:
        check_whole(name, wanted[name])
    if "rate" in wanted:
        check_number("rate", wanted["rate"], 1)
    if "seconds" in wanted:
        check_number("seconds", wanted["seconds"])
    if "where" in wanted and not callable(wanted["where"]):
        raise TypeError(f"where is to be a function of a request, not {wanted['where']!r}")
    _check_met(wanted, brokers)


def _check_met(wanted: Mapping[str, Any], brokers: Collection[int]) -> None:
    """Raise ValueError for names that no request can have."""
    if wanted.get("topic") == "":
        raise ValueError("topic is empty: no request names it")
    if ":" not in wanted.get("principal", ":"):
        raise ValueError(f'principal is to be as "User:alice", not {wanted["principal"]!r}')
    if wanted.get("broker") not in {None, *brokers}:
        there = ", ".join(map(str, sorted(brokers)))
        raise ValueError(f"there is no broker {wanted['broker']}; there {'is' if len(brokers) == 1 else 'are'} {there}")
