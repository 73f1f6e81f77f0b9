"""The output of verbs that list and describe: the option -o, and the only code that prints rows, facts and documents.

A verb passes its result as a value (a document), and its form for people as parts: tables and facts. This module prints
one of the two forms. On a terminal rich draws a table; otherwise a table is plain text in columns. YAML is written in
block style, and its parsed value is exactly the parsed value of the JSON. A text is in double quotes unless every
version of YAML parses it as a text. `Verbs` prints the help of a group of verbs. Never sends a request.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

Result = TypeVar("Result")

NOTHING: Final = "-"
FORMATS: Final = ("table", "wide", "json", "yaml")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its header, and its value in a row, given by key or by function."""

    header: str
    of: str | Callable[[Any], object] = ""
    wide: bool = False
    """Whether only -o wide shows this column."""

    def cell(self, row: Any) -> object:
        """Return a row's value in this column."""
        if callable(self.of):
            return self.of(row)
        return row[self.of or self.header.replace(" ", "_").replace("-", "_")]


def wide(header: str, of: str | Callable[[Any], object] = "") -> Column:
    """Return a column that only -o wide shows."""
    return Column(header, of, wide=True)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, and the columns that people see. A column that is only a text shows the value of this key in each row."""

    rows: Sequence[Any]
    columns: Sequence[Column | str]
    even_empty: bool = True
    """Whether the headers are printed even if there are no rows."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values, one pair per line; pairs in `more` are printed only with -o wide."""

    pairs: Sequence[tuple[str, object]]
    more: Sequence[tuple[str, object]] = ()


Part = Table | Facts


@dataclass(frozen=True, slots=True)
class Output:
    """Prints the results of a verb in the form of -o."""

    form: str

    @property
    def is_document(self) -> bool:
        """Whether the output is for programs: JSON or YAML."""
        return self.form in ("json", "yaml")

    @property
    def is_whole(self) -> bool:
        """Whether the output is -o wide or a document (JSON, YAML). Both include values that the table omits."""
        return self.form != "table"

    def rows(self, rows: Sequence[Any], *columns: Column | str) -> None:
        """Print rows as a table, or as a document with all fields of each row."""
        self.show(rows, Table(rows, columns))

    def show(self, document: object, *parts: Part) -> None:
        """Print a document, or, for people, its parts with an empty line between them."""
        if self.form == "json":
            click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        elif self.form == "yaml":
            click.echo(yaml_text(document), nl=False)
        else:
            self._print([each for each in parts if not isinstance(each, Table) or each.rows or each.even_empty])

    def _print(self, parts: Sequence[Part]) -> None:
        for index, part in enumerate(parts):
            if index:
                click.echo()
            if isinstance(part, Facts):
                _print_facts([*part.pairs, *(part.more if self.is_whole else ())])
                continue
            columns = [Column(each) if isinstance(each, str) else each for each in part.columns]
            shown = [each for each in columns if self.is_whole or not each.wide]
            print_table([each.header for each in shown], [[each.cell(row) for each in shown] for row in part.rows])


def output_option(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add the options -o and --json to a verb. The verb receives an `output` for its results."""

    @click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(FORMATS),
        help="The output format: table (the default), wide (with all columns), json or yaml.",
    )
    @click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
    @functools.wraps(function)
    def with_output(*args: Any, form: str | None, as_json: bool, **kwargs: Any) -> Result:
        if as_json and form not in (None, "json"):
            raise click.UsageError(f"--json and -o {form} exclude each other")
        return function(*args, output=Output("json" if as_json else form or "table"), **kwargs)

    return with_output


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under headers; columns of numbers are aligned right, and None is printed as a dash."""
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


def _print_facts(facts: Sequence[tuple[str, object]]) -> None:
    pairs = [(name, NOTHING if value is None else str(value)) for name, value in facts]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        click.echo(f"{name.ljust(width)}  {value}".rstrip())


def _numeric(column: list[object]) -> bool:
    return any(isinstance(cell, int) for cell in column) and all(isinstance(cell, int | None) for cell in column)


def _print_rich(headers: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for header, right in zip(headers, numeric, strict=True):
        table.add_column(header.upper(), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def with_options(*options: Decorator) -> Decorator:
    """Return a decorator that adds several options to a verb, in this order."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


_LONGEST = 400


class Verbs(click.Group):
    """A group of verbs. Its help shows the complete first sentence of each verb; click would cut it at a line's end."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs, each with the first sentence of its help, wrapped if it is long."""
        below = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = [(name, each.get_short_help_str(_LONGEST)) for name, each in below.items() if each and not each.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_BYTE_ORDER_MARK: Final = "\ufeff"


def yaml_text(value: object) -> str:
    """Return a value of dicts, lists, texts, numbers, booleans and None as a YAML document with a final newline."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: object) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _entry(f"{_text(str(key))}:", each, "  ")
    elif _is_list(value) and value:
        assert isinstance(value, Sequence)
        for each in value:
            head, *rest = _lines(each)
            yield f"- {head}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _entry(head: str, value: object, indent: str) -> Iterator[str]:
    if (isinstance(value, Mapping) or _is_list(value)) and value:
        yield head
        yield from (f"{indent}{line}" for line in _lines(value))
    else:
        yield f"{head} {_scalar(value)}"


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _scalar(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        text = repr(value)
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    if isinstance(value, int):
        return repr(int(value))
    if isinstance(value, str):
        return _text(value)
    return "{}" if isinstance(value, Mapping) else "[]"


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable() and character != _BYTE_ORDER_MARK:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def time_text(ms: int) -> str:
    """Return a time in ms since 1970 in ISO 8601, or as a number if there is no such date."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(ms)
