"""The filters for records: by key, value, header and a condition.

Owns the meaning of the form's fields. A condition is an expression of kbroker/filters, or an expression of paths.py,
which begins with a path: `.user.id == "7"`. A record is decoded only if a condition reads a part of the record's value,
and all other tests pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kbroker.admin.errors import WrongInput
from kbroker.admin.fetching import Found
from kbroker.console.decoding.schemas import Schemas
from kbroker.console.decoding.shown import shown
from kbroker.console.records.paths import compiled, condition
from kbroker.console.values import Values
from kbroker.filters.filtering import compile_filter
from kbroker.filters.tokens import FilterError

Test = Callable[[Found], bool]
FIELDS: Final = ("key", "value", "header", "where")
_OF_PATHS: Final = re.compile(r"(?:\s|\(|not\b)*[.\[]")
"""The beginning of a condition of paths.py: its first operand is a path, which begins with a dot or a bracket."""


@dataclass(frozen=True, slots=True)
class Filter:
    """The tests that a record must pass; without tests every record passes."""

    tests: tuple[Test, ...] = ()

    def __call__(self, record: Found) -> bool:
        return all(test(record) for test in self.tests)

    def __bool__(self) -> bool:
        return bool(self.tests)


def parsed(values: Values, form: str, schemas: Schemas) -> Filter:
    """Parse the filter in a form's fields. Raises WrongInput."""
    tests: list[Test] = []
    regex = values.flag("regex")
    if values.raw("key"):
        in_key = _search(values.raw("key"), regex)
        tests.append(lambda r: r.key is not None and in_key(r.key))
    if values.raw("value"):
        in_value = _search(values.raw("value"), regex)
        tests.append(lambda r: r.value is not None and in_value(r.value))
    if values.text("header"):
        tests.append(_header(values.text("header"), regex))
    if values.text("where"):
        tests.append(_condition(values.text("where"), lambda data: shown(data, form, schemas).value))
    return Filter(tuple(tests))


def _condition(text: str, decoded: Callable[[bytes | None], Any]) -> Test:
    if _OF_PATHS.match(text):
        holds = condition(text)
        return lambda r: holds(decoded(r.value))
    try:
        wanted = compile_filter(text, decoded)
    except FilterError as error:
        raise WrongInput(f"The condition: {error}") from None
    return lambda r: wanted(r, r.partition)


def _search(text: str, regex: bool) -> Callable[[bytes], bool]:
    if regex:
        pattern = compiled(text)
        return lambda data: pattern.search(data) is not None
    wanted = text.encode("utf-8", "surrogateescape")
    return lambda data: wanted in data


def _header(text: str, regex: bool) -> Test:
    name, equals, rest = text.partition("=")
    if not equals:
        return lambda r: any(key == name for key, _ in r.headers)
    in_value = _search(rest, regex)
    return lambda r: any(key == name and value is not None and in_value(value) for key, value in r.headers)
