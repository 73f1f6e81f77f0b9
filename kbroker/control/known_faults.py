"""The faults that were set over HTTP. Operations read, await or remove a fault by its id.

Owns the ids, and the meaning of a fault's fields; testing/faults.py has the faults themselves. A filter function
(`where`) cannot be sent.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Final

from kbroker.control.values import ABOUT, Refused, Values
from kbroker.fields import Field
from kbroker.testing.faults import Fault, Faults
from kbroker.testing.filters import INT32, LONGEST_DELAY_MS, When

KEPT: Final = 1_000
"""The maximum number of known faults, including finished faults. The oldest finished faults are dropped first."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """The required and the optional fields of one kind of fault, in addition to the filters."""

    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    is_filtered: bool = True


KINDS: Final = {
    "fail": _Kind(("api", "error"), ("message",)),
    "delay": _Kind(("api", "ms")),
    "drop": _Kind(("api",)),
    "disconnect": _Kind(("api",), ("when",)),
    "throttle": _Kind(("ms",), ("api",)),
    "full_disk": _Kind(),
    "slow_disk": _Kind(("ms",)),
    "refuse_connections": _Kind(is_filtered=False),
    "storm": _Kind(("seed",), ("api",)),
}
OWN: Final = (
    Field("kind", "string", f"The kind of the fault: {', '.join(KINDS)}.", required=True, choices=tuple(KINDS)),
    Field("api", "names", 'Kafka\'s name of an API, such as "Produce"; or several names; or "*".'),
    Field(
        "error",
        "string",
        'For `fail`: Kafka\'s name of the error, such as "NOT_LEADER_OR_FOLLOWER". With `topic` or `partition`, only '
        "this part of a request fails.",
    ),
    Field("message", "string", "For `fail`: the message of the error."),
    Field("ms", "number", "For `delay`, `slow_disk` and `throttle`: the time in ms.", least=0, most=LONGEST_DELAY_MS),
    Field(
        "when",
        "string",
        "For `disconnect`: the moment: at the request, which is then not executed; before, during or after the answer.",
        choices=tuple(each.value for each in When),
    ),
)
FILTERS: Final = (
    *(each for each in ABOUT if each.name != "api"),
    Field("partition", "integer", "Requests that name this partition.", least=0, most=INT32),
    Field("principal", "string", 'Requests of this user, such as "User:alice".'),
    Field(
        "skip",
        "integer",
        "The number of matching requests without the fault before the first one with it.",
        least=0,
        most=INT32,
    ),
    Field("times", "integer", "The fault ends after this number of hits.", least=1, most=INT32),
    Field("rate", "number", "The share of matching requests that get the fault.", least=0, most=1),
    Field("seed", "integer", "The seed for `rate` and `storm`: the same seed makes the same choices."),
    Field("seconds", "number", "The fault ends after this number of seconds.", least=0, most=LONGEST_DELAY_MS / 1000),
)
FIELDS: Final = (*OWN, *FILTERS)
_FILTER_NAMES: Final = frozenset(field.name for field in FILTERS)


@dataclass(frozen=True, slots=True)
class _Known:
    """One fault, with the fields of the request that set it."""

    id: int
    fault: Fault
    given: Values

    def as_json(self, standing: frozenset[int]) -> dict[str, Any]:
        return {"id": self.id, **self.given, "active": id(self.fault) in standing, "hits": self.fault.hits}


class KnownFaults:
    """The faults that were set over HTTP, by id. Finished faults are kept, because their hits may still be read."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._lock = threading.Lock()
        self._by_id: dict[int, _Known] = {}
        self._count = 0

    def add(self, given: Values) -> dict[str, Any]:
        """Set a fault. Raises Refused."""
        with self._lock:
            self._make_room()
            fault = _set(self._faults, given)
            self._count += 1
            made = self._by_id[self._count] = _Known(self._count, fault, given)
        return made.as_json(self._standing())

    def all(self) -> list[dict[str, Any]]:
        with self._lock:
            known = list(self._by_id.values())
        standing = self._standing()
        return [each.as_json(standing) for each in known]

    def fault(self, number: int) -> Fault:
        """Return a fault. Raises Refused if it does not exist."""
        return self._one(number).fault

    def as_json(self, number: int) -> dict[str, Any]:
        return self._one(number).as_json(self._standing())

    def remove(self, number: int) -> dict[str, Any]:
        """Remove a fault and its id. Return its final state."""
        known = self._one(number)
        known.fault.remove()
        with self._lock:
            self._by_id.pop(number, None)
        return known.as_json(frozenset())

    def clear(self) -> list[dict[str, Any]]:
        """Remove all faults and their ids. Return their final states."""
        self._faults.clear()
        with self._lock:
            known, self._by_id = list(self._by_id.values()), {}
        return [each.as_json(frozenset()) for each in known]

    def _standing(self) -> frozenset[int]:
        return frozenset(id(each) for each in self._faults.standing())

    def _one(self, number: int) -> _Known:
        found = self._by_id.get(number)  # without the lock, because the lock is held while a broker sets a fault
        if found is None:
            raise Refused(404, f"there is no fault {number}")
        return found

    def _make_room(self) -> None:
        if len(self._by_id) < KEPT:
            return
        standing = self._standing()
        expired = next((each for each in self._by_id.values() if id(each.fault) not in standing), None)
        if expired is None:
            raise Refused(409, f"there are {KEPT} faults already, and no more are possible")
        expired.fault.remove()  # an expired fault stays in the broker until the next request arrives
        del self._by_id[expired.id]


def _set(faults: Faults, given: Values) -> Fault:
    kind = given["kind"]
    needed = KINDS[kind]
    missing = [name for name in needed.needs if name not in given]
    if missing:
        raise Refused(400, f"{kind} needs {' and '.join(missing)}")
    filters = {name: value for name, value in given.items() if name in _FILTER_NAMES}
    known = {"kind", *needed.needs, *needed.takes, *(_FILTER_NAMES if needed.is_filtered else ())}
    surplus = sorted(given.keys() - known)
    if surplus:
        there = ", ".join(sorted(known - {"kind"})) or "nothing"
        raise Refused(400, f"{kind} has no {' and no '.join(surplus)}; it has {there}")
    apis = given.get("api", ["*"])
    match kind:
        case "fail":
            return faults.fail(apis, given["error"], given.get("message"), **filters)
        case "delay":
            return faults.delay(apis, given["ms"] / 1000, **filters)
        case "drop":
            return faults.drop(apis, **filters)
        case "disconnect":
            return faults.disconnect(apis, given.get("when", When.BEFORE.value), **filters)
        case "throttle":
            return faults.throttle(round(given["ms"]), apis, **filters)
        case "full_disk":
            return faults.full_disk(**filters)
        case "slow_disk":
            return faults.slow_disk(given["ms"], **filters)
        case "refuse_connections":
            return faults.refuse_connections()
        case _:
            return faults.storm(apis, **filters)
