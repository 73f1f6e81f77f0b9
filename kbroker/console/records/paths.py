"""A small language of conditions on values that have fields: `.user.id == "7" and .items[].price > 10`.

Owns the language. A condition is parsed once into functions. It runs no foreign code, and the size of the value bounds
its time. Regular expressions are RE2's and take linear time. Features that RE2 lacks (back-references, look-around)
raise WrongInput, like an invalid pattern.

    condition   any of these joined by `and`, `or`, `not` and parentheses:
                PATH                         a value exists at the path, and is neither null nor false
                PATH == != < <= > >= JSON    compared with a string, a number, true, false or null
                PATH =~ "REGEX"              a text that matches (RE2); !~ a text that does not match
                PATH contains JSON           a text that contains a text, or a list that contains a value
    path        `.` is the complete value; .name, ."a name" and ["a name"] a field; [0] and [-1] an item of a list;
                [] each item of a list, or each value of an object: one true item suffices
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import re2

from kbroker.admin.errors import WrongInput

LONGEST: Final = 1_000
_MOST_MEMORY: Final = 4 * 1024 * 1024


def compiled(text: str) -> Any:
    """Compile a pattern for searching bytes. Raises WrongInput."""
    if len(text) > LONGEST:
        raise WrongInput(f"a regular expression has at most {LONGEST} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY
    try:
        return re2.compile(text.encode("utf-8", "surrogateescape"), options)
    except re2.error as error:
        message = error.args[0] if error.args else ""
        reason = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
        raise WrongInput(f"{text[:100]!r} is no regular expression: {reason}") from None


Condition = Callable[[Any], bool]
_DEEPEST: Final = 40
_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<number>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)
  | (?P<field>\.[A-Za-z_][A-Za-z0-9_-]*|\.(?="))
  | (?P<whole>\.)
  | (?P<op>==|!=|<=|>=|<|>|=~|!~)
  | (?P<mark>[\[\]()])
  | (?P<word>[A-Za-z]+)
    )""",
    re.VERBOSE,
)
_ORDERS: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_WORDS: Final = ("and", "or", "not", "contains", *_CONSTANTS)
_Step = Callable[[Any], Iterator[Any]]
_Token = tuple[str, str, int]


def condition(text: str) -> Condition:
    """Compile a condition. Raises WrongInput with the position of the error."""
    if len(text) > LONGEST:
        raise WrongInput(f"a condition has at most {LONGEST} characters")
    parser = _Parser(text)
    found = parser.either(0)
    parser.end()
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._at = 0

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise self._wrong("a condition ends here, or continues with `and` or `or`")

    def either(self, depth: int) -> Condition:
        if depth > _DEEPEST:
            raise WrongInput(f"a condition is nested at most {_DEEPEST} times")
        parts = [self._both(depth)]
        while self._takes("word", "or"):
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else lambda value: any(part(value) for part in parts)

    def _both(self, depth: int) -> Condition:
        parts = [self._single(depth)]
        while self._takes("word", "and"):
            parts.append(self._single(depth))
        return parts[0] if len(parts) == 1 else lambda value: all(part(value) for part in parts)

    def _single(self, depth: int) -> Condition:
        if depth > _DEEPEST:
            raise WrongInput(f"a condition is nested at most {_DEEPEST} times")
        if self._takes("word", "not"):
            inner = self._single(depth + 1)
            return lambda value: not inner(value)
        if self._takes("mark", "("):
            inner = self.either(depth + 1)
            if not self._takes("mark", ")"):
                raise self._wrong("a parenthesis is not closed")
            return inner
        path = self._path()
        test = self._test()
        return lambda value: any(test(each) for each in path(value))

    def _path(self) -> _Step:
        steps: list[_Step] = []
        kind, text = self._now()
        if kind not in ("field", "whole") and (kind, text) != ("mark", "["):
            raise self._wrong("a path begins with a dot, like .user.id")
        while True:
            kind, text = self._now()
            if kind == "field":
                self._at += 1
                steps.append(_field(json.loads(self._taken("string", "a name")) if text == "." else text[1:]))
            elif kind == "whole" and not steps:
                self._at += 1
                if self._now() != ("mark", "["):
                    break
            elif (kind, text) == ("mark", "["):
                self._at += 1
                steps.append(self._index())
            else:
                break
        return _joined(steps)

    def _index(self) -> _Step:
        kind, text = self._now()
        if kind == "number" and text.lstrip("-").isdecimal():
            self._at += 1
            step = _item(int(text))
        elif kind == "string":
            self._at += 1
            step = _field(_json(text))
        else:
            step = _each
        if not self._takes("mark", "]"):
            raise self._wrong("a bracket is not closed")
        return step

    def _test(self) -> Condition:
        kind, text = self._now()
        if kind == "op":
            self._at += 1
            if text in ("=~", "!~"):
                pattern = compiled(_json(self._taken("string", "a regular expression in quotes")))
                wanted = text == "=~"
                return lambda value: isinstance(value, str) and _found(pattern, value) == wanted
            return _comparison(text, self._literal())
        if self._takes("word", "contains"):
            held = self._literal()
            return lambda value: _contains(value, held)
        return lambda value: value is not None and value is not False

    def _literal(self) -> Any:
        kind, text = self._now()
        if kind == "word" and text in _CONSTANTS:
            self._at += 1
            return _CONSTANTS[text]
        if kind not in ("string", "number"):
            raise self._wrong('a value is expected here: "text", a number, true, false or null')
        self._at += 1
        return _json(text)

    def _now(self) -> tuple[str, str]:
        return self._tokens[self._at][:2] if self._at < len(self._tokens) else ("end", "")

    def _takes(self, kind: str, text: str) -> bool:
        if self._now() != (kind, text):
            return False
        self._at += 1
        return True

    def _taken(self, kind: str, what: str) -> str:
        found, text = self._now()
        if found != kind:
            raise self._wrong(f"expected here: {what}")
        self._at += 1
        return text

    def _wrong(self, what: str) -> WrongInput:
        at = self._tokens[self._at][2] if self._at < len(self._tokens) else len(self._text)
        return WrongInput(f"{what} (at character {at + 1} of the condition)")


def _tokens(text: str) -> Iterator[_Token]:
    position, end = 0, len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None:
            raise WrongInput(
                f"character {position + 1} of the condition cannot be read: {text[position : position + 10]}"
            )
        kind = str(found.lastgroup)
        if kind == "word" and found[kind] not in _WORDS:
            raise WrongInput(f"{found[kind]!r} is not a keyword; a field begins with a dot, a text is in quotes")
        yield kind, found[kind], found.start(kind)
        position = found.end()


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise WrongInput(f"{text[:50]} is not a JSON value") from None


def _joined(steps: list[_Step]) -> _Step:
    def walk(value: Any) -> Iterator[Any]:
        found: Iterator[Any] = iter((value,))
        for step in steps:
            found = _all(step, found)
        return found

    return walk


def _all(step: _Step, values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        yield from step(value)


def _field(name: str) -> _Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict) and name in value:
            yield value[name]

    return step


def _item(index: int) -> _Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= index < len(value):
            yield value[index]

    return step


def _each(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()


def _found(pattern: Any, value: str) -> bool:
    return pattern.search(value.encode("utf-8", "replace")) is not None  # JSON may contain a lone surrogate


def _comparison(text: str, wanted: Any) -> Condition:
    if text == "==":
        return lambda value: _equal(value, wanted)
    if text == "!=":
        return lambda value: not _equal(value, wanted)
    order = _ORDERS[text]
    return lambda value: _comparable(value, wanted) and bool(order(value, wanted))


def _equal(value: Any, wanted: Any) -> bool:
    return isinstance(value, bool) == isinstance(wanted, bool) and bool(value == wanted)


def _comparable(value: Any, wanted: Any) -> bool:
    if isinstance(value, bool) or isinstance(wanted, bool):
        return False
    numbers = isinstance(value, (int, float)) and isinstance(wanted, (int, float))
    return numbers or (isinstance(value, str) and isinstance(wanted, str))


def _contains(value: Any, held: Any) -> bool:
    if isinstance(value, str):
        return isinstance(held, str) and held in value
    return isinstance(value, list) and any(_equal(each, held) for each in value)
