"""Options of Protobuf as Confluent's registry prints them.

The text of an option is copied from the places that the compiler reports, so it is known to be valid. This module only
changes its layout: `name = value`, strings in double quotes, a line for each entry of an aggregate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

_TOKEN: Final = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\s+|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[{}\[\]<>():,;=]|[^\s"'{}\[\]<>():,;=/]+|/""",
    re.DOTALL,
)
_PIECE: Final = re.compile(r"\\.|[^\\]+", re.DOTALL)
_ESCAPES: Final = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    "'": "\\'",
    '"': '\\"',
}
_OPEN: Final = {"{": "}", "<": ">", "[": "]"}
Value = Any
"""A value of an option: a printed scalar, a dict of an aggregate's entries, or a list."""


class Options:
    """Prints options. With `extensions`, which are the full names of all extensions, prints the normalized form."""

    def __init__(
        self, package: str, extensions: frozenset[str] | None, classes: Callable[[str], Any] | None = None
    ) -> None:
        self._package = package
        self._extensions = extensions
        self._classes = classes

    @property
    def is_normalized(self) -> bool:
        """Whether the form is normalized: names are full and everything is sorted."""
        return self._extensions is not None

    def printed(self, written: Iterable[str], extra: Iterable[tuple[str, str]] = ()) -> list[str]:
        """Return options as `name = value`; a value may have several lines."""
        options = [_read(each) for each in written] + list(extra)
        if self._extensions is None:
            return [f"{name} = {_shown(value)}" for name, value in options]
        merged: list[tuple[str, Value]] = []
        for name, value in sorted(((self._full(name), value) for name, value in options), key=lambda each: each[0]):
            name, value = _as_aggregate(name, value)
            if merged and merged[-1][0] == name and isinstance(value, dict) and isinstance(merged[-1][1], dict):
                merged[-1] = (name, _merged(merged[-1][1], value))
            else:
                merged.append((name, value))
        return [f"{name} = {_shown(value, in_order=True)}" for name, value in merged]

    def bracketed(self, options: list[str]) -> str:
        """Return options in the brackets that follow a field or a value."""
        if not options:
            return ""
        if len(options) == 1:
            return f" [{options[0]}]"
        return " [\n" + ",\n".join(_indented(each) for each in options) + "\n]"

    def of_message(self, options: Any) -> list[str]:
        """Return the options that are set in a descriptor, in the form of a Protobuf text."""
        if self._classes is not None:
            # This class knows the extensions of the file's imports; for the usual class these extensions are unknown
            # fields.
            options = self._classes(options.DESCRIPTOR.full_name).FromString(options.SerializeToString())
        written = []
        for field, value in options.ListFields():
            if field.name not in ("map_entry", "uninterpreted_option"):
                name = f"({field.full_name})" if field.is_extension else field.name
                written += [f"{name} = {_written(field, each)}" for each in _repeated(value)]
        return written

    def _full(self, name: str) -> str:
        """Return an option's name, with its extension's full name in the normalized form."""
        found = re.match(r"\(\.?([\w.]+)\)(.*)", name)
        if found is None or self._extensions is None:
            return name
        inner, rest = found.groups()
        scope = self._package
        while True:
            full = f"{scope}.{inner}" if scope else inner
            if full in self._extensions:
                return f"({full}){rest}"
            if not scope:
                return f"({inner}){rest}"
            scope = scope.rpartition(".")[0]


def _repeated(value: Any) -> list[Any]:
    return [value] if isinstance(value, (str, bytes)) or not hasattr(value, "__len__") else list(value)


def _written(field: Any, value: Any) -> str:
    """Return an option's value in the form of a Protobuf text."""
    if field.message_type is not None:
        entries = []
        for inner, each in value.ListFields():
            name = f"[{inner.full_name}]" if inner.is_extension else inner.name
            if inner.message_type is not None and inner.message_type.GetOptions().map_entry:
                key, held = inner.message_type.fields
                entries += [
                    f"{name}: {{key: {_written(key, one)} value: {_written(held, each[one])}}}" for one in sorted(each)
                ]
            else:
                entries += [f"{name}: {_written(inner, one)}" for one in _repeated(each)]
        return "{" + " ".join(entries) + "}"
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else str(known.name)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return '"' + "".join(f"\\{each:03o}" for each in value) + '"'
    return f'"{_escaped(value)}"' if isinstance(value, str) else str(value)


def _as_aggregate(name: str, value: Value) -> tuple[str, Value]:
    """Return `(x).y.z = v` as `(x) = {y: {z: v}}`."""
    if not name.startswith("("):
        return name, value
    head, _, path = name.partition(")")
    for part in reversed([each for each in path.split(".") if each]):
        value = {part: value}
    return f"{head})", value


def _merged(one: dict[str, Value], other: dict[str, Value]) -> dict[str, Value]:
    merged = dict(one)
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merged(merged[key], value)
        elif isinstance(value, list) and isinstance(merged.get(key), list):
            merged[key] = merged[key] + value
        else:
            merged[key] = value
    return merged


def _read(written: str) -> tuple[str, Value]:
    """Return the name and the value of an option's text, which may include `option` and `;`."""
    tokens = [token for token in _TOKEN.findall(written) if not token.isspace() and not token.startswith(("//", "/*"))]
    if tokens and tokens[0] == "option" and (len(tokens) < 2 or tokens[1] != "="):
        tokens = tokens[1:]
    if tokens and tokens[-1] == ";":
        tokens = tokens[:-1]
    if "=" not in tokens:
        return "".join(tokens), ""
    split = tokens.index("=")
    value, _ = _value(tokens, split + 1)
    return "".join(tokens[:split]), value


def _value(tokens: list[str], at: int) -> tuple[Value, int]:
    """Return the value that begins at a token, and the position after it."""
    if at >= len(tokens):
        return "", at
    token = tokens[at]
    if token[0] in "\"'":
        pieces = []
        while at < len(tokens) and tokens[at][0] in "\"'":
            pieces.append(_requoted(tokens[at][1:-1]))
            at += 1
        return f'"{"".join(pieces)}"', at
    if token == "[":
        return _list(tokens, at + 1)
    if token in ("{", "<"):
        return _aggregate(tokens, at + 1, _OPEN[token])
    if token == "-" and at + 1 < len(tokens):
        return f"-{tokens[at + 1]}", at + 2
    return token, at + 1


def _list(tokens: list[str], at: int) -> tuple[list[Value], int]:
    values = []
    while at < len(tokens) and tokens[at] != "]":
        if tokens[at] == ",":
            at += 1
            continue
        value, at = _value(tokens, at)
        values.append(value)
    return values, at + 1


def _aggregate(tokens: list[str], at: int, end: str) -> tuple[dict[str, Value], int]:
    """Return the entries of an aggregate; the values of a repeated key become a list."""
    entries: dict[str, Value] = {}
    again: set[str] = set()
    while at < len(tokens) and tokens[at] != end:
        if tokens[at] in ",;":
            at += 1
            continue
        start = at
        if tokens[at] == "[":
            while at < len(tokens) and tokens[at] != "]":
                at += 1
        at += 1
        key = "".join(tokens[start:at])
        if at < len(tokens) and tokens[at] == ":":
            at += 1
        value, at = _value(tokens, at)
        if key not in entries:
            entries[key] = value
        elif key in again:
            entries[key].append(value)
        else:
            again.add(key)
            before = entries[key] if isinstance(entries[key], list) else [entries[key]]
            entries[key] = [*before, value]
    return entries, at + 1


def _requoted(inner: str) -> str:
    """Return the content of a string literal for use in double quotes; numeric escapes are kept."""
    return "".join(piece if piece[0] == "\\" else _escaped(piece) for piece in _PIECE.findall(inner))


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(each, each) for each in text)


def _shown(value: Value, *, in_order: bool = False) -> str:
    if isinstance(value, dict):
        keys = sorted(value) if in_order else list(value)
        lines = [_indented(f"{key}: {_shown(value[key], in_order=in_order)}") for key in keys]
        return "{\n" + ",\n".join(lines) + "\n}" if lines else "{\n}"
    if isinstance(value, list):
        if in_order and len(value) == 1:
            return _shown(value[0], in_order=True)
        if not value:
            return "[]"
        return "[\n" + ",\n".join(_indented(_shown(each, in_order=in_order)) for each in value) + "\n]"
    return str(value)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))
