"""The format of `kbroker consume -f`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.cli.record_format import Format, FormatError, as_json, unescape


@dataclass
class Record:
    topic: str = "orders"
    partition: int = 3
    offset: int = 17
    timestamp: int = 1_700_000_000_123
    key: bytes | None = b"k"
    value: bytes | None = b"v\xff"
    headers: list[tuple[str, bytes | None]] = field(default_factory=lambda: [("a", b"1"), ("b", None)])


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("%t %p %o %T\\n", b"orders 3 17 1700000000123\n"),
        ("%k=%v=%s", b"k=v\xff=v\xff"),
        ("%K %V %S %H", b"1 2 2 2"),
        ("%h", b"a=1,b=NULL"),
        ("%i/%d", b"5/1700000000123"),
        ("100%%", b"100%"),
        ("%%t", b"%t"),
        ("%%%t", b"%orders"),
        ("\\\\%p\\t\\x41\\r\\q", b"\\3\tA\rq"),
        ("%k{hex} %v{hex} %s{base64}", b"6b 76ff dv8="),
        ("%d{strftime[%Y-%m-%d %H:%M:%S]}", b"2023-11-14 22:13:20"),
        ("%t{x}", b"orders{x}"),
        ("%k{x", b"k{x"),
        ("gr\u00fc\u00dfe", "gr\u00fc\u00dfe".encode()),
        ("", b""),
    ],
)
def test_letters(text, printed):
    assert Format(text)(Record(), 5) == printed


def test_null_is_empty_or_what_was_asked_for():
    record = Record(key=None, value=None, headers=[])
    assert Format("[%k|%v|%s{hex}|%K|%S|%h|%H]")(record, 1) == b"[|||-1|-1||0]"
    assert Format("%k %v", null=b"NULL")(record, 1) == b"NULL NULL"
    assert Format("%k %v", null=b"NULL")(Record(key=b"", value=b""), 1) == b" "


@pytest.mark.parametrize("text", ["%q", "%", "a%", "%k{strftime[%Y]}", "%d{hex}", "%\\n"])
def test_what_is_no_format(text):
    with pytest.raises(FormatError):
        Format(text)


@given(st.text())
def test_text_without_letters_stands_for_itself(text):
    quoted = text.replace("\\", "\\\\").replace("%", "%%")
    if "\ud800" <= max(text, default="") <= "\udfff":
        return
    assert Format(quoted)(Record(), 1) == text.encode()


@given(st.binary())
def test_every_byte_can_be_escaped(data):
    assert unescape("".join(f"\\x{byte:02x}" for byte in data)) == data


@given(st.none() | st.binary(), st.none() | st.binary(), st.lists(st.tuples(st.text(), st.none() | st.binary())))
def test_json_keeps_every_byte(key, value, headers):
    line = as_json(Record(key=key, value=value, headers=headers), 1)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    told = json.loads(line)
    assert read(told, "key") == key
    assert read(told, "value") == value
    assert [(each["key"], read(each, "value")) for each in told["headers"]] == headers


def read(told, name):
    import base64

    if f"{name}_base64" in told:
        assert name not in told
        return base64.b64decode(told[f"{name}_base64"])
    return None if told[name] is None else told[name].encode()
