"""How the client verbs print what they list and describe.

Owns tables and JSON. On a terminal a table has rich's looks; otherwise it is plain text in columns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

NOTHING = "-"

json_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON."
)


def print_json(value: object) -> None:
    """Print a value as JSON for programs to read."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under headers; columns of numbers are aligned right, None is a dash."""
    rows = [list(row) for row in rows]
    numeric = [_numeric([row[i] for row in rows]) for i in range(len(headers))]
    texts = [[NOTHING if cell is None else str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(headers, texts, numeric)
        return
    widths = [max([len(h), *(len(row[i]) for row in texts)]) for i, h in enumerate(headers)]
    for row in [[h.upper() for h in headers], *texts]:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair a line."""
    pairs = [(name, NOTHING if value is None else str(value)) for name, value in facts]
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        click.echo(f"{name.ljust(width)}  {value}".rstrip())


def _numeric(column: list[object]) -> bool:
    return any(isinstance(cell, int) for cell in column) and all(isinstance(cell, int | None) for cell in column)


def _print_rich(headers: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header, right in zip(headers, numeric, strict=True):
        table.add_column(header.upper(), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
