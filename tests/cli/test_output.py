"""The output formats of verbs that list and describe: -o table, wide, json, yaml."""

from __future__ import annotations

import json

import click
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.cli.main import VERBS, cli
from kbroker.cli.output import Column, Facts, Output, Table, wide, yaml_text
from tests.tries import tries

ROWS = [{"name": "orders", "partitions": 3, "in sync": True}, {"name": "true", "partitions": 12, "in sync": None}]

_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)
_TEXTS = [
    "",
    " ",
    "-",
    "true",
    "No",
    "null",
    "~",
    "1",
    "1e5",
    "0x1f",
    "2026-01-31",
    "1:30",
    "a: b",
    "# c",
    "a #b",
    "@x",
]
_SIGNS = [
    "*",
    "&a",
    "!t",
    "[a]",
    "{",
    "|",
    ">",
    "'",
    '"',
    "\\",
    "a\nb",
    "\t",
    "\x00",
    "\x85",
    "\u2028",
    "\ufeff",
    "é",
    "😀",
]


@settings(max_examples=tries(500))
@given(_values)
def test_yaml_gives_back_what_json_has(value):
    assert yaml.safe_load(yaml_text(value)) == value


@pytest.mark.parametrize("text", [*_TEXTS, *_SIGNS])
def test_texts_come_back_as_they_were(text):
    value = {text: [text, {"key": text}]}
    assert yaml.safe_load(yaml_text(value)) == value


def test_yaml_reads_well():
    of = [{"a": 1, "b": None}]
    value = {"name": "orders", "configs": {"retention.ms": "1000"}, "isr": [1, 2], "none": [], "of": of}
    assert yaml_text(value).splitlines() == [
        "name: orders",
        "configs:",
        '  retention.ms: "1000"',
        "isr:",
        "  - 1",
        "  - 2",
        "none: []",
        "of:",
        "  - a: 1",
        "    b: null",
    ]
    assert yaml.safe_load(yaml_text([1e-7, 1e300])) == [1e-7, 1e300]


def shown(form: str, capsys: pytest.CaptureFixture[str]) -> str:
    columns = ["name", "partitions", wide("synced", lambda row: "yes" if row["in sync"] else None)]
    facts = Facts([("state", "Stable")], more=[("epoch", None)])
    Output(form).show(ROWS, facts, Table(ROWS, columns), Table([], ["nothing"], even_empty=False))
    return capsys.readouterr().out


def test_every_form_of_one_thing(capsys):
    assert shown("table", capsys).splitlines() == [
        "state  Stable",
        "",
        "NAME    PARTITIONS",
        "orders           3",
        "true            12",
    ]
    assert shown("wide", capsys).splitlines() == [
        "state  Stable",
        "epoch  -",
        "",
        "NAME    PARTITIONS  SYNCED",
        "orders           3  yes",
        "true            12  -",
    ]
    assert json.loads(shown("json", capsys)) == ROWS
    assert yaml.safe_load(shown("yaml", capsys)) == ROWS


def test_a_column_stands_by_its_header_or_by_what_it_is_told():
    row = {"current_offset": 7, "late": 1}
    columns = [Column("current-offset"), Column("current offset"), Column("not in sync", "late")]
    assert [each.cell(row) for each in columns] == [7, 7, 1]


def verbs(command: click.Command, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    if not isinstance(command, click.Group):
        return {path: command}
    context = click.Context(command)
    found = {}
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        found |= verbs(below, (*path, name))
    return found


def test_whoever_lists_and_describes_has_all_forms():
    """`consume` prints records, not facts about a cluster; its -o is kcat's offset."""
    names = ("list", "describe", "status", "offsets", "hanging", "producers", "api-versions", "show")
    for path, verb in verbs(cli).items():
        options = {name for each in verb.params for name in each.opts}
        if path != ("consume",) and ("--json" in options or path[-1] in names):
            assert {"-o", "--output", "--json"} <= options, path
    assert VERBS.keys() == {path[0] for path in verbs(cli)}


@pytest.mark.parametrize("verb", [["topic", "list"], ["broker", "list"], ["feature", "list"], ["config", "list"]])
def test_yaml_and_json_of_verbs_say_the_same(request, verb):
    cli = request.getfixturevalue("cli")
    assert yaml.safe_load(cli.ok(*verb, "-o", "yaml").text) == cli.ok(*verb, "-o", "json").json
    assert cli.ok(*verb, "--json").out == cli.ok(*verb, "-o", "json").out
