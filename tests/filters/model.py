"""The filter language a second time, slow and plain: random expressions as trees, their text, and their three values.

Shares no code with kbroker/filters.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import strategies as st

from kbroker.protocol.records import Record

NAMES = ("tag", "n", "a.b", "né", 'qu"ote')
WORDS = ("EU", "US", "", "e", "42", "-7.5", "1e3", "007", "+3", "9" * 45, "true", "False", "né", "%_\\", "a'b", "42 ")
NUMBERS = (0, 1, -1, 42, 3, -7.5, 0.1, 1e3, 2**63, 2**64 + 1, 10**38, 7)
ORDERS = {
    "=": lambda a, b: a == b, "<>": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip
BAD = object()
"""A value that is not NULL but with which nothing can be compared."""


@dataclass(frozen=True)
class Raw:
    """The text of a header, key or value."""

    text: str


# -- random expressions

_text = st.sampled_from(WORDS).map(lambda each: ("text", each))
_number = st.sampled_from(NUMBERS).map(lambda each: ("number", each))
_truth = st.booleans().map(lambda each: ("truth", each))
_raw = st.one_of(
    st.sampled_from(NAMES).map(lambda each: ("header", each)), st.just(("key",)), st.just(("value",))
)  # fmt: skip
_step = st.one_of(st.sampled_from(("a", "b", "odd name", "and")), st.integers(-2, 2))
_path = st.lists(_step, min_size=1, max_size=2).map(lambda each: ("path", tuple(each)))
_place = st.sampled_from(("timestamp", "offset", "partition")).map(lambda each: ("place", each))
_numeric = st.recursive(
    st.one_of(_number, _place, _raw, _path),
    lambda inner: st.tuples(st.just("sum"), st.sampled_from("+-*/"), inner, inner),
    max_leaves=4,
)
_any_field = st.one_of(_raw, _path)
_pairs = st.one_of(
    st.tuples(_any_field, st.one_of(_text, _number, _raw, _path)),
    st.tuples(_numeric, _numeric),
    st.tuples(_text, _any_field),
)
_patterns = st.text(alphabet="%_eEU4né\\-", max_size=6)
_leaf = st.one_of(
    st.tuples(st.just("compare"), st.sampled_from(sorted(ORDERS)), _pairs),
    st.tuples(st.just("compare"), st.sampled_from(("=", "<>")), st.tuples(_any_field, _truth)),
    st.tuples(
        st.just("in"),
        _any_field,
        st.one_of(st.lists(_text, min_size=1, max_size=4), st.lists(st.one_of(_text, _number, _truth), min_size=1)),
    ),
    st.tuples(st.just("between"), _numeric, _numeric, _numeric),
    st.tuples(st.just("like"), _any_field, _patterns, st.sampled_from((None, "\\", "4"))),
    st.tuples(st.just("null"), st.one_of(_raw, _path, _place)),
    st.tuples(st.just("bare"), st.one_of(st.sampled_from(NAMES).map(lambda each: ("header", each)), _path)),
    st.tuples(st.just("always"), st.booleans()),
)
trees = st.recursive(
    _leaf,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(("and", "or")), st.lists(inner, min_size=2, max_size=4)),
    ),
    max_leaves=8,
)

# -- random records

_data = st.sampled_from((*map(str.encode, WORDS), None, b"\xff\xfe", b"\xed\xa0\x80"))
_scalars = st.one_of(
    st.none(), st.booleans(), st.sampled_from(WORDS), st.sampled_from(NUMBERS), st.just(float("nan")),
    st.just(float("-inf")), st.sampled_from((10**38 + 1, 1e300)), st.just("\ud800x"),
)  # fmt: skip
_documents = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(("a", "b", "odd name", "and")), inner, max_size=4)
    ),
    max_leaves=8,
).map(lambda each: json.dumps(each).encode())
records = st.builds(
    Record,
    st.integers(0, 50),
    st.integers(-1, 50),
    _data,
    st.one_of(_data, _documents, _documents),
    st.lists(st.tuples(st.sampled_from(NAMES), _data), min_size=2, max_size=8).map(tuple),
)


# -- the text of an expression


def written(tree: Any, draw: Any) -> str:
    """Write a tree as text; random parentheses, spaces and letters do not change its meaning."""

    def word(text: str) -> str:
        return draw(st.sampled_from((text, text.upper(), text.title())))

    def quoted(text: str, mark: str) -> str:
        return mark + text.replace(mark, mark * 2) + mark

    def name(text: str) -> str:
        plain = re.fullmatch(r"[a-z]+", text) and draw(st.booleans())
        return text if plain else quoted(text, '"')

    def operand(tree: Any) -> str:
        match tree:
            case ("text", text):
                return quoted(text, "'")
            case ("number", number):
                return repr(number)
            case ("truth", truth):
                return word(str(truth).lower())
            case ("header", text):
                return f"header.{name(text)}"
            case ("path", steps):
                return "value" + "".join(f"[{s}]" if isinstance(s, int) else f".{name(s)}" for s in steps)
            case ("sum", sign, left, right):
                return f"({operand(left)} {sign} {operand(right)})"
            case ("place", text):
                return text
            case (text,):
                return text
        raise AssertionError(tree)

    def not_() -> tuple[str, bool]:
        return (word("not") + " ", True) if draw(st.booleans()) else ("", False)

    def condition(tree: Any) -> str:
        match tree:
            case ("compare", sign, (left, right)):
                sign = draw(st.sampled_from(("<>", "!="))) if sign == "<>" else sign
                return f"{operand(left)}{draw(st.sampled_from(('', ' ')))}{sign} {operand(right)}"
            case ("in", left, values):
                return f"{operand(left)} {word('in')} ({', '.join(map(operand, values))})"
            case ("between", left, low, high):
                return f"{operand(left)} {word('between')} {operand(low)} {word('and')} {operand(high)}"
            case ("like", left, pattern, escape):
                tail = "" if escape is None else f" {word('escape')} {quoted(escape, chr(39))}"
                return f"{operand(left)} {word('like')} {quoted(pattern, chr(39))}{tail}"
            case ("null", left):
                return f"{operand(left)} {word('is null')}"
            case ("bare", left):
                return operand(left)
            case ("always", holds):
                return word(str(holds).lower())
            case ("not", ("in" | "between" | "like" | "null" as kind, *rest)) if draw(st.booleans()):
                text = condition((kind, *rest))
                old, new = (" is ", " is not ") if kind == "null" else (f" {kind} ", f" not {kind} ")
                place = _outside_quotes(text.lower(), old)
                return text[:place] + new + text[place + len(old) :]
            case ("not", inner):
                return f"{word('not')} ({condition(inner)})"
            case ("and" | "or" as kind, parts):
                return f" {word(kind)} ".join(
                    f"({condition(each)})" if each[0] in ("and", "or") or draw(st.booleans()) else condition(each)
                    for each in parts
                )
        raise AssertionError(tree)

    return condition(tree)


def _outside_quotes(text: str, wanted: str) -> int:
    """Return the first place of a word that is not in quotes."""
    hidden = re.sub(r"""'[^']*'|"[^"]*\"""", lambda found: "x" * len(found[0]), text)
    return hidden.index(wanted)


def escapes_badly(pattern: str, escape: str | None) -> bool:
    """Return whether a pattern is refused, because its escape precedes no sign."""
    if escape is None:
        return False
    return re.fullmatch(f"(?:[^{re.escape(escape)}]|{re.escape(escape)}[%_{re.escape(escape)}])*", pattern) is None


# -- its three values


def value_of(tree: Any, record: Record, partition: int) -> Any:
    match tree:
        case ("text" | "number" | "truth", value):
            return value
        case ("header", name):
            found = [data for each, data in record.headers if each == name]
            return _raw_text(found[-1] if found else None)
        case ("key",):
            return _raw_text(record.key)
        case ("value",):
            return _raw_text(record.value)
        case ("place", name):
            return partition if name == "partition" else getattr(record, name)
        case ("path", steps):
            try:
                value = json.loads((record.value or b"").decode())
            except ValueError:
                return None
            for step in steps:
                try:
                    value = value[step] if isinstance(value, list if isinstance(step, int) else dict) else None
                except (KeyError, IndexError):
                    value = None
            if isinstance(value, str):
                return "".join("\ufffd" if 0xD800 <= ord(each) < 0xE000 else each for each in value)
            return BAD if isinstance(value, (list, dict)) or (_is_number(value) and not _in_range(value)) else value
        case ("sum", sign, left, right):
            one, other = (_number_of(value_of(each, record, partition)) for each in (left, right))
            if one is None or other is None or (sign == "/" and other == 0):
                return None
            if sign == "/":
                whole = isinstance(one, int) and isinstance(other, int) and one % other == 0
                result: Any = one // other if whole else one / other
            else:
                result = {"+": one + other, "-": one - other, "*": one * other}[sign]
            return result if _in_range(result) else None
    raise AssertionError(tree)


def outcome(tree: Any, record: Record, partition: int) -> bool | None:
    def value(operand: Any) -> Any:
        return value_of(operand, record, partition)

    match tree:
        case ("compare", sign, (left, right)):
            return _compared(sign, value(left), value(right))
        case ("in", left, values):
            return _any([_compared("=", value(left), value(each)) for each in values])
        case ("between", left, low, high):
            return _not(_any([_compared("<", value(left), value(low)), _compared(">", value(left), value(high))]))
        case ("like", left, pattern, escape):
            found = value(left)
            text = found.text if isinstance(found, Raw) else found
            return _like(text, _signs(pattern, escape)) if isinstance(text, str) else None
        case ("null", left):
            return value(left) is None
        case ("bare", left):
            return _compared("=", value(left), True)
        case ("always", holds):
            return bool(holds)
        case ("not", inner):
            return _not(outcome(inner, record, partition))
        case ("and", parts):
            return _not(_any([_not(outcome(each, record, partition)) for each in parts]))
        case ("or", parts):
            return _any([outcome(each, record, partition) for each in parts])
    raise AssertionError(tree)


def _any(values: list[bool | None]) -> bool | None:
    return True if True in values else None if None in values else False


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _raw_text(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return Raw(data.decode())
    except UnicodeDecodeError:
        return BAD


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _in_range(value: float) -> bool:
    return -(10**38) <= value <= 10**38


def _number_of(value: Any) -> Any:
    """Return a number, or the number that a raw text is."""
    if not isinstance(value, Raw):
        return value if _is_number(value) else None
    if not re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", value.text):
        return None
    number = int(value.text) if re.fullmatch(r"[+-]?[0-9]+", value.text) else float(value.text)
    return number if _in_range(number) else None


def _compared(sign: str, one: Any, other: Any) -> bool | None:
    one, other = _beside(one, other), _beside(other, one)
    if _is_number(one) and _is_number(other):
        return ORDERS[sign](one, other)
    if isinstance(one, bool) and isinstance(other, bool):
        return ORDERS[sign](one, other) if sign in ("=", "<>") else None
    if isinstance(one, str) and isinstance(other, str):
        return ORDERS[sign](one, other)
    return None


def _beside(value: Any, other: Any) -> Any:
    if not isinstance(value, Raw):
        return value
    if _is_number(other):
        return _number_of(value)
    if isinstance(other, bool):
        return {"true": True, "false": False}.get(value.text.lower())
    return value.text


def _signs(pattern: str, escape: str | None) -> tuple[tuple[bool, str], ...]:
    found, at = [], 0
    while at < len(pattern):
        if pattern[at] == escape:
            at += 1
            found.append((False, pattern[at]))
        else:
            found.append((pattern[at] in "%_", pattern[at]))
        at += 1
    return tuple(found)


def _like(text: str, signs: tuple[tuple[bool, str], ...]) -> bool:
    @cache
    def rest(at: int, sign: int) -> bool:
        if sign == len(signs):
            return at == len(text)
        is_sign, each = signs[sign]
        if is_sign and each == "%":
            return rest(at, sign + 1) or (at < len(text) and rest(at + 1, sign))
        return at < len(text) and (is_sign or text[at] == each) and rest(at + 1, sign + 1)

    return rest(0, 0)
