"""Options of the command line from the control API's declarations.

Owns the form of a field as an option. The API itself checks the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import click

from kbroker.control.values import Field

_TYPES: Final = {"string": str, "integer": int, "number": float}
_METAVARS: Final = {
    "when": None,
    "api": "NAME",
    "transactional_id": "ID",
    "client_id": "ID",
    "group": "ID",
    "error": "NAME",
    "topic": "NAME",
}


def field_options(fields: Iterable[Field]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option for each field; the function gets each by its name, None if it is missing."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for field in reversed(list(fields)):
            function = click.option(
                f"--{field.name.replace('_', '-')}",
                field.name,
                type=click.Choice(field.choices) if field.choices else _TYPES[field.kind],
                metavar=_METAVARS.get(field.name, "N" if field.kind != "string" else field.name.upper()),
                help=field.meaning.replace("`", ""),
            )(function)
        return function

    return add
