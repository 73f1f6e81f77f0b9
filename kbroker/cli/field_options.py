"""Options generated from declared fields (kbroker/fields.py). Loads no client: `kbroker fault|requests` need none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import click

from kbroker.cli.completion import complete_topics
from kbroker.cli.output import Decorator, with_options
from kbroker.fields import Field

_TYPES: Final = {"string": str, "names": str, "integer": int, "number": float}
_METAVARS: Final = {
    "when": None,
    "api": "NAME",
    "transactional_id": "ID",
    "client_id": "ID",
    "group": "ID",
    "error": "NAME",
    "topic": "NAME",
}


def field_options(fields: Iterable[Field]) -> Decorator:
    """Add an option for each field. The function gets the values under the fields' names; None for a missing value."""
    return with_options(
        *(
            click.option(
                f"--{field.name.replace('_', '-')}",
                field.name,
                type=click.Choice(field.choices) if field.choices else _TYPES[field.kind],
                multiple=field.kind == "names",
                required=field.required,
                shell_complete=complete_topics if field.name == "topic" else None,
                metavar=field.form
                or _METAVARS.get(field.name, field.name.upper() if _TYPES[field.kind] is str else "N"),
                help=field.meaning.replace("`", "") + (" Repeatable." if field.kind == "names" else ""),
            )
            for field in fields
        )
    )
