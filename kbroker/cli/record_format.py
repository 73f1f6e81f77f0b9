r"""The format of `kbroker consume -f`: kcat's letters, and the letters of rpk that kcat does not use.

Owns the language. A format is compiled once into pieces. Each piece converts a record to bytes.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

HELP: Final = r"""
%t topic, %p partition, %o offset, %T timestamp in ms,
%k key, %v or %s value, %h headers as name=value,...
%K and %V or %S lengths of key and value (-1 for null), %H number of headers,
%i number of the record in this output, %% a percent sign,
\n \t \r \\ \xNN as usual.
%k{hex} %k{base64} and %v{hex} %v{base64} print bytes as text;
%d{strftime[%F %T]} prints the time in UTC.
"""

_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_PLAIN: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", "%": "%"}
_LETTER: Final = re.compile(r"%(?:(?P<data>[kvsd])\{(?P<how>hex|base64|strftime\[[^\]]*\])\}|(?P<letter>.))", re.DOTALL)


class Record(Protocol):
    """The printable fields of a consumed record."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


Piece = Callable[[Record, int], bytes]


class FormatError(ValueError):
    """The format contains an unknown letter."""


def to_bytes(text: str) -> bytes:
    """Return the bytes of a command line argument, exactly as they were typed."""
    return text.encode("utf-8", "surrogateescape")


def unescape(text: str) -> bytes:
    r"""Replace \n, \t, \r, \0, \\ and \xNN; any other escaped character stands for itself."""
    out = b""
    end = 0
    for found in _ESCAPE.finditer(text):
        out += to_bytes(text[end : found.start()])
        code = found[1]
        out += bytes.fromhex(code[1:]) if len(code) == 3 else to_bytes(_PLAIN.get(code, code))
        end = found.end()
    return out + to_bytes(text[end:])


class Format:
    """A compiled format, which prints `null` for a null key or value."""

    def __init__(self, text: str, null: bytes = b"") -> None:
        self._null = null
        self._pieces: list[Piece] = []
        end = 0
        for found in _LETTER.finditer(text):
            self._add_literal(text[end : found.start()])
            self._pieces.append(self._piece(found["data"] or found["letter"], found["how"]))
            end = found.end()
        rest = text[end:]
        if rest.endswith("%"):
            raise FormatError("the format ends with a lone %; write %% for a percent sign")
        self._add_literal(rest)

    def __call__(self, record: Record, number: int) -> bytes:
        """Return the printed form of a record; `number` counts from 1."""
        return b"".join(piece(record, number) for piece in self._pieces)

    def _add_literal(self, text: str) -> None:
        if text:
            literal = unescape(text)
            self._pieces.append(lambda _r, _n: literal)

    def _piece(self, letter: str, how: str | None) -> Piece:
        if letter in "kvs":
            name = "key" if letter == "k" else "value"
            encode = _encoder(how)
            return lambda r, _n: self._null if getattr(r, name) is None else encode(getattr(r, name))
        if letter == "d" and how is not None and how.startswith("strftime["):
            pattern = how[len("strftime[") : -1]
            return lambda r, _n: _time(r.timestamp).strftime(pattern).encode()
        if letter not in _LETTERS or how is not None:
            raise FormatError(f"the format has no %{letter}{f'{{{how}}}' if how else ''}; see --help for the letters")
        return _LETTERS[letter]


def _encoder(how: str | None) -> Callable[[bytes], bytes]:
    if how == "hex":
        return lambda data: data.hex().encode()
    if how == "base64":
        return base64.b64encode
    if how is not None:
        raise FormatError(f"{{{how}}} does not go with a key or value; see --help")
    return bytes


def _number(get: Callable[[Record], int]) -> Piece:
    return lambda r, _n: b"%d" % get(r)


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: Record, _number: int) -> bytes:
    return b",".join(name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in record.headers)


_LETTERS: Final[dict[str, Piece]] = {
    "t": lambda r, _n: r.topic.encode(),
    "p": _number(lambda r: r.partition),
    "o": _number(lambda r: r.offset),
    "T": _number(lambda r: r.timestamp),
    "d": _number(lambda r: r.timestamp),
    "K": _number(lambda r: _length(r.key)),
    "S": _number(lambda r: _length(r.value)),
    "V": _number(lambda r: _length(r.value)),
    "H": _number(lambda r: len(r.headers)),
    "h": _headers,
    "i": lambda _r, n: b"%d" % n,
    "%": lambda _r, _n: b"%",
}


def as_json(record: Record, _number: int) -> bytes:
    """Return a record as one line of JSON; data that is not UTF-8 is in base64 under another name."""
    found: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **json_bytes("key", record.key),
        **json_bytes("value", record.value),
        "headers": [{"key": name, **json_bytes("value", value)} for name, value in record.headers],
    }
    if hasattr(record, "delivery_count"):  # a record from a share group
        found["delivery_count"] = record.delivery_count
    return json.dumps(found, ensure_ascii=False).encode() + b"\n"


def json_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return data as a field of a JSON object: as text, or, if it is not UTF-8, in base64 under another name."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _time(milliseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(milliseconds=milliseconds)
