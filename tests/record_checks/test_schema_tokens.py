"""Which schema a record names: by handwritten cases, and the compiled shortcut compared with Python's path."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.log import record_walk
from kbroker.protocol.records import HEADER_SIZE, build_batch
from kbroker.record_checks.schema_tokens import Field, fields, tokens_and_data
from kbroker.schema_registry.formats.framing import KEY_HEADER, VALUE_HEADER, fault_of, guid_of, id_of

GUID = b"\1" + bytes(range(16))
NAMES = st.sampled_from(["__value_schema_id", "__key_schema_id", "__value_schema_ie", "x", ""])
FIELD = st.none() | st.binary(max_size=12) | st.sampled_from([b"\0\0\0\0\1abc", b"\0\0\0\0\2", GUID])
RECORD = st.tuples(st.just(0), FIELD, FIELD, st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=3)), max_size=3))


def found(data: bytes, count: int, *, of_keys: bool) -> list[Field]:
    return [each for each in fields(data, count, of_keys=of_keys) if each is not None]


def expected(record: tuple, *, of_keys: bool) -> tuple[bytes | None, bytes]:
    """Return the expected schema token and data according to the wire format."""
    _, key, value, headers = record
    data = key if of_keys else value
    name = KEY_HEADER if of_keys else VALUE_HEADER
    if data is None:
        return None, b""
    named = None
    for header, content in headers:
        if header.encode() == name:
            named = content
    if named is None:
        return data[:5], data[5:]
    size = 17 if named[:1] == b"\1" else 5
    return named[:size], named[size:] + data


@given(st.lists(RECORD, min_size=1, max_size=40), st.booleans())
def test_tokens_and_data_of_any_records(records: list[tuple], of_keys: bool) -> None:
    data = build_batch(records)[HEADER_SIZE:]
    read = found(data, len(records), of_keys=of_keys)
    assert [(each.token, each.before + data[each.start : each.end]) for each in read] == [
        expected(record, of_keys=of_keys) for record in records
    ]


@pytest.mark.skipif(record_walk.prefixes is None, reason="kbroker was installed without a C compiler")
@given(st.lists(RECORD, min_size=1, max_size=60), st.booleans())
def test_the_compiled_shortcut_is_right_if_it_is_sure(records: list[tuple], of_keys: bool) -> None:
    assert record_walk.prefixes is not None
    data = build_batch(records)[HEADER_SIZE:]
    name = KEY_HEADER if of_keys else VALUE_HEADER
    tokens = [each.token for each in found(data, len(records), of_keys=of_keys) if each.token is not None]
    joined = record_walk.prefixes(b"12345" + data, 5, len(records), of_keys, name)
    has_header = any(header.encode() == name for record in records for header, _ in record[3])
    if joined is None:
        assert has_header or any(len(each) < 5 for each in tokens) or len(set(tokens)) > 32
    else:
        assert not has_header
        assert joined == b"".join(dict.fromkeys(tokens))
    assert record_walk.places is not None
    assert (record_walk.places(data, 0, len(records), of_keys, name) is None) == (
        has_header or any(len(each) < 5 for each in tokens)
    )
    assert list(tokens_and_data(data, len(records), of_keys=of_keys)) == [
        expected(record, of_keys=of_keys) for record in records
    ]


@pytest.mark.skipif(record_walk.prefixes is None, reason="kbroker was installed without a C compiler")
def test_the_compiled_shortcuts_are_never_sure_of_broken_records() -> None:
    assert record_walk.prefixes is not None
    assert record_walk.places is not None
    functions = record_walk.prefixes, record_walk.places
    chance = random.Random(7)
    records = [(0, b"k", b"\0\0\0\0\1" + bytes(number), [("x", b"y")]) for number in range(20)]
    whole = build_batch(records)[HEADER_SIZE:]
    for _ in range(5_000):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        cut = bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
        for function in functions:
            function(cut, 0, 20, chance.random() < 0.5, VALUE_HEADER)
    for function in functions:
        for count in (-1, 0, 19, 21, 2**40):
            assert function(whole, 0, count, False, VALUE_HEADER) is None
        with pytest.raises(ValueError, match="outside"):
            function(whole, len(whole) + 1, 1, False, VALUE_HEADER)


@given(st.binary(max_size=20))
def test_a_token_is_an_id_or_a_guid_or_has_a_fault(token: bytes) -> None:
    assert (id_of(token) is not None) + (guid_of(token) is not None) + (fault_of(token) is not None) == 1


def test_a_record_of_many_headers_has_pauses() -> None:
    data = build_batch([(0, None, b"x", [("h", b"")] * 5_000)])[HEADER_SIZE:]
    assert list(fields(data, 1, of_keys=False)).count(None) == 9
