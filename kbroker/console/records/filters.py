"""The filters for records: by key, value, header and a condition on the decoded value.

Owns the meaning of the form's fields. A record is decoded only if a condition is given, and only if all other tests
pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kbroker.admin.fetching import Found
from kbroker.console.decoding.schemas import Schemas
from kbroker.console.decoding.shown import shown
from kbroker.console.records.paths import compiled, condition
from kbroker.console.values import Values

Test = Callable[[Found], bool]
FIELDS: Final = ("key", "value", "header", "where")


@dataclass(frozen=True, slots=True)
class Filter:
    """The tests that a record must pass; without tests every record passes."""

    tests: tuple[Test, ...] = ()

    def __call__(self, record: Found) -> bool:
        return all(test(record) for test in self.tests)

    def __bool__(self) -> bool:
        return bool(self.tests)


def parsed(values: Values, form: str, schemas: Schemas) -> Filter:
    """Parse the filter in a form's fields; raises WrongInput."""
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
        holds = condition(values.text("where"))
        tests.append(lambda r: holds(shown(r.value, form, schemas).value))
    return Filter(tuple(tests))


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
