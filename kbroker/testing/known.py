"""The APIs and errors that a test may name, and the filters that requests can match. Other names are refused.

Owns the refusals. Never reads a request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

from kbroker.handlers.registry import APIS
from kbroker.protocol.errors import ErrorCode
from kbroker.testing.subjects import could_name

_SUBJECTS: Final = ("topic", "partition", "group", "transactional_id")
_LONGEST: Final = 100
"""The maximum number of characters of a wrong name that are compared and shown."""
_MOST: Final = 150
"""The maximum number of names that a message lists if no name is similar."""


def check_apis(names: Iterable[str], served: Collection[str]) -> frozenset[str]:
    """Return the names of APIs. Raises ValueError for an API that is not served."""
    wanted = frozenset(names)
    for each in wanted:
        if not isinstance(each, str):
            raise TypeError(f'an API is named as "Produce", not {each!r}')
    for name in sorted(wanted.difference(served)):
        raise ValueError(unknown("API", name, served))
    return wanted


def error_code(given: object) -> ErrorCode:
    """Return an error from its code, name or number.

    Raises ValueError for an unknown error, TypeError for another type.
    """
    if isinstance(given, str):
        known = ErrorCode.__members__.keys() - {"NONE"}
        if given not in known:
            raise ValueError(unknown("error", given, known))
        return ErrorCode[given]
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f'an error is an ErrorCode, or its name, like "NOT_LEADER_OR_FOLLOWER", not {given!r}')
    if given == ErrorCode.NONE:
        raise ValueError("NONE is no error: a request that is to be answered normally needs no fault")
    try:
        return ErrorCode(given)
    except ValueError:
        raise ValueError(f"there is no error {given}") from None


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name.

    The message has the most similar name, or all names if no name is similar.
    """
    names = sorted(known)
    near = get_close_matches(name[:_LONGEST], names, 1, 0.5)
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names[:_MOST]) or 'none'}{more}"
    return f"there is no {what} {name[:_LONGEST]!r}; {hint}"


def check_filters(names: frozenset[str], filters: Mapping[str, Any]) -> None:
    """Raise ValueError for a filter that no request of these APIs can match. An empty `apis` means all APIs."""
    wanted = [each for each in _SUBJECTS if filters.get(each) is not None]
    if not wanted or not names:
        return
    possible = [could_name(api.request) for api in APIS.values() if api.name in names]
    for each in wanted:
        if not any(each in one for one in possible):
            raise ValueError(f"no request of {', '.join(sorted(names))} names a {each.replace('_', ' ')}")
