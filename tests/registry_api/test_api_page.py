"""docs/schema-api.md is true: its requests are sent, and it shows every endpoint, parameter and error code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest

from kbroker.registry_api import endpoints
from kbroker.registry_api.endpoints import ENDPOINTS
from kbroker.schema_registry.errors import Refusal
from tests.registry_api.conftest import Http

PAGE = (Path(__file__).parents[2] / "docs" / "schema-api.md").read_text()
SCHEMAS = dict(re.findall(r"^\| ([A-Z]+) \| `(.+)` \|$", PAGE, re.MULTILINE))
ROW = re.compile(r"^\| `([A-Z]+) (\S+)` \| (?:`(.+?)` )?\| `(.+?)` \|.*\|$", re.MULTILINE)


class Row(NamedTuple):
    """A request of the page. `answer` is a number or the expected part of the body."""

    method: str
    path: str
    body: Any
    answer: Any


def value_of(text: str) -> Any:
    """Return the value of a cell; names of schemas stand for their texts."""
    for name, schema in SCHEMAS.items():
        text = re.sub(rf'(?<![\w"]){name}(?![\w"])', lambda _, schema=schema: json.dumps(schema), text)  # type: ignore[misc]
    return json.loads(text)


def sections() -> dict[str, list[Row]]:
    found = {}
    for section in PAGE.split("\n## ")[1:]:
        rows = [
            Row(method, path, value_of(body) if body else None, value_of(answer))
            for method, path, body, answer in ROW.findall(section)
        ]
        if rows:
            found[section.partition("\n")[0]] = rows
    return found


SECTIONS = sections()
ROWS = [row for rows in SECTIONS.values() for row in rows]


def has(found: Any, wanted: Any) -> bool:
    """Whether a response contains what the page shows of it: of objects only some fields."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(name in found and has(found[name], wanted[name]) for name in wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and all(has(*each) for each in zip_longest(found, wanted))
    return bool(found == wanted)


@pytest.mark.parametrize("section", SECTIONS)
def test_requests_are_answered_as_the_page_says(registry: Http, section: str) -> None:
    for row in SECTIONS[section]:
        body = None if row.body is None else json.dumps(row.body).encode()
        if body is None and row.method in ("POST", "PUT"):
            body = b""
        status, answer = registry.raw(row.method, row.path, body)
        told = f"{row.method} {row.path} {row.body}: {status} {answer.decode()}"
        if isinstance(row.answer, int) and row.answer >= 200:
            code = json.loads(answer)["error_code"] if answer else status
            assert (code, status) == (row.answer, int(str(row.answer)[:3])), told
            continue
        assert status == 200, told
        plain = urlsplit(row.path).path.endswith("/schema") and isinstance(row.answer, str)
        assert has(answer.decode() if plain else json.loads(answer), row.answer), told


def parts_of(path: str) -> list[str]:
    parts = urlsplit(path).path.strip("/").split("/")
    return parts[2:] if parts[0] == "contexts" and len(parts) > 2 else parts


def is_at(path: str, pattern: str) -> bool:
    ours, theirs = pattern.strip("/").split("/"), parts_of(path)
    return len(ours) == len(theirs) and all(
        a == unquote(b) or a.startswith("{") for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize(("method", "path"), [each[:2] for each in ENDPOINTS])
def test_every_endpoint_is_shown_to_succeed(method: str, path: str) -> None:
    shown = [row for row in ROWS if row.method == method and is_at(row.path, path)]
    assert any(row.answer == 204 or not (isinstance(row.answer, int) and row.answer >= 200) for row in shown)


def parameters() -> Iterator[str]:
    source = Path(endpoints.__file__).read_text()
    yield from re.findall(r'(?:flag|first)\(request, "(\w+)"', source)
    yield from re.findall(r'getlist\("(\w+)"\)', source)
    yield from ("offset", "limit")


@pytest.mark.parametrize("name", sorted({*parameters()}))
def test_every_parameter_is_shown(name: str) -> None:
    assert any(name in dict(parse_qsl(urlsplit(row.path).query, keep_blank_values=True)) for row in ROWS)


@pytest.mark.parametrize("code", sorted({each.value[0] for each in Refusal}))
def test_every_code_is_shown_or_explained(code: int) -> None:
    explained = PAGE.partition("## Codes that no request shows")[2].partition("\n## ")[0]
    assert any(row.answer == code for row in ROWS) is not (f"| {code} |" in explained)


def test_every_row_of_the_page_is_understood() -> None:
    tables = [line for line in PAGE.splitlines() if re.match(r"\| `(GET|POST|PUT|DELETE) ", line)]
    assert len(tables) == len(ROWS)
    assert len(ROWS) > 150
