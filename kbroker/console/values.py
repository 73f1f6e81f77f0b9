"""The fields that a browser sends in queries and forms, read with limits and checks.

Owns the accepted form of each kind of field. Invalid input raises WrongInput with a message of one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from kbroker.admin.errors import WrongInput
from kbroker.admin.partition_offsets import parse_time
from kbroker.console.guard import MAX_BODY

_MOST_FIELDS: Final = 10_000
_LARGEST: Final = 2**63 - 1


class Values:
    """Fields by name; a name may occur more than once."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._fields: dict[str, list[str]] = {}
        for name, value in pairs:
            self._fields.setdefault(name, []).append(value)

    def text(self, name: str, default: str = "") -> str:
        """Return a field without blanks around it. Raises WrongInput if it is not valid text."""
        found = self.raw(name, default).strip()
        try:
            found.encode()
        except UnicodeEncodeError:
            raise WrongInput(f"{name} is no UTF-8") from None
        return found

    def raw(self, name: str, default: str = "") -> str:
        """Return a field as it was typed, with Unix line ends."""
        return self._fields.get(name, [default])[-1].replace("\r\n", "\n")

    def needed(self, name: str, what: str) -> str:
        """Return a field. If it is empty, raises WrongInput; the error's text calls the field `what`."""
        found = self.text(name)
        if not found:
            raise WrongInput(f"{what} is missing")
        return found

    def all(self, name: str) -> list[str]:
        """Return all values of a field, except empty ones."""
        return [each for each in (value.strip() for value in self._fields.get(name, ())) if each]

    def items(self) -> Iterator[tuple[str, str]]:
        """Yield names and values, in order of the names' first occurrence."""
        for name, values in self._fields.items():
            for value in values:
                yield name, value

    def flag(self, name: str) -> bool:
        """Whether a checkbox is ticked."""
        return self.text(name) in ("1", "on", "true", "yes")

    def optional_number(self, name: str, what: str, *, least: int = 0) -> int | None:
        """Return an integer, or None if the field is empty."""
        found = self.text(name)
        if not found:
            return None
        try:
            value = int(found)
        except ValueError:
            value = least - 1
        if not least <= value <= _LARGEST:
            raise WrongInput(f"{what} is a whole number from {least} on, not {found[:50]!r}")
        return value

    def number(self, name: str, what: str, default: int = 0, *, least: int = 0) -> int:
        """Return an integer, or `default` if the field is empty."""
        found = self.optional_number(name, what, least=least)
        return default if found is None else found

    def needed_number(self, name: str, what: str, *, least: int = 0) -> int:
        """Return an integer. Raises WrongInput if the field is empty."""
        self.needed(name, what)
        return self.number(name, what, least=least)

    def time(self, name: str) -> int | None:
        """Return a time in ms since 1970; None if the field is empty."""
        found = self.text(name)
        return parse_time(found) if found else None

    def one_of(self, name: str, known: Sequence[str]) -> str:
        """Return one of the known values; the first if the field is empty."""
        found = self.text(name) or known[0]
        if found not in known:
            raise WrongInput(f"{name} is one of {', '.join(known)}, not {found[:50]!r}")
        return found

    def page(self) -> int:
        """Return the page number of a list; the first page is 1."""
        return max(self.number("page", "the page", 1), 1)


def queried(request: Request) -> Values:
    """Return the fields of an address: its query and its path parameters."""
    return Values([*request.query_params.multi_items(), *((k, str(v)) for k, v in request.path_params.items())])


async def form_of(request: Request) -> Values:
    """Return the fields of a sent form. Raises WrongInput."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise WrongInput("a form is sent as application/x-www-form-urlencoded")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:
            raise WrongInput(f"a form has at most {MAX_BODY:,} bytes")
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="surrogateescape"
        )
    except ValueError:
        raise WrongInput("the form cannot be read") from None
    return Values(pairs)
