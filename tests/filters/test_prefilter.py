"""What a batch must contain for a match: which bytes are derived, and that batches without them are recognised."""

from __future__ import annotations

import re
import time

import pytest

from kbroker.filters.filtering import compile_filter
from kbroker.filters.parser import parse
from kbroker.filters.prefilter import MOST, _varint, needles
from kbroker.protocol.records import HEADER_SIZE, build_batch, put_number, read_number, read_records

BATCH = build_batch(
    [
        (5, b"key-7", b'{"a": "EU"}', (("region", b"US"), ("n", b"5"))),
        (6, b"EU", b"a\0b", (("region", b"C" * 200), ("FR", b"region"))),
    ]
)
BODY = BATCH[HEADER_SIZE:]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("header.region = 'EU'", [(b"region", b"EU")]),
        ("header.region <> 'EU'", [(b"region", b"")]),
        ("NOT header.region <> 'EU'", [(b"region", b"EU")]),
        ("A || B", [(b"tag", b"A"), (b"tag", b"B")]),
        ("header.n > 5", [(b"n", b"")]),
        ("header.n + header.longer = 5", [(b"longer", b"")]),
        ("header.n = 5 OR key = 'abc'", [(b"n", b""), (b"", b"abc")]),
        ("header.n = 5 AND key = 'abc'", [(b"", b"abc")]),
        ("NOT (header.n = 5 AND key = 'abc')", None),
        ("NOT (header.n = 5 OR header.m = 6)", [(b"n", b"")]),
        ("header.n IS NULL", None),
        ("header.n IS NOT NULL", [(b"n", b"")]),
        ("header.flag", [(b"flag", b"")]),
        ("key LIKE '%ab_cde%f'", [(b"", b"cde")]),
        ("header.n LIKE 'ab%cdefg'", [(b"", b"cdefg")]),
        ("header.n LIKE 'abcd%ef'", [(b"n", b"abcd")]),
        ("header.n LIKE '_abcd%ef'", [(b"", b"abcd")]),
        ("header.n NOT LIKE 'abcd%'", [(b"n", b"")]),
        ("header.n LIKE '%'", [(b"n", b"")]),
        ("key LIKE '%'", None),
        ("key <> 'a'", None),
        ("key = ''", None),
        ("header.n = ''", [(b"n", b"")]),
        ("value.a = 'text'", None),
        ("value.a = header.n", [(b"n", b"")]),
        ("value = 'text' AND value.a = 1", [(b"", b"text")]),
        ("timestamp > 5", None),
        ("*", None),
        ("FALSE", []),
        ("header.n = 5 AND FALSE", []),
        ("header.region IN ('EU', 'US')", [(b"region", b"EU"), (b"region", b"US")]),
        ("header.region IN ('EU', 5)", [(b"region", b"")]),
        ("header.region NOT IN ('EU', 'US')", [(b"region", b"")]),
        (f"header.region IN ({', '.join(repr(str(n)) for n in range(MOST + 1))})", [(b"region", b"")]),
        (f"key IN ({', '.join(repr(str(n)) for n in range(MOST + 1))})", None),
        ("header.\"\ufffd\" = 'EU'", [(b"", b"EU")]),  # a name that was not UTF-8
        ('header."\ufffd" > 5', None),
        ('header."" > 5', None),
    ],
)
def test_what_is_derived(text, found):
    there = needles(parse(text), wanted=True)
    assert (there if there is None else [each[:2] for each in there]) == found


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("header.region = 'US'", True),
        ("header.region = 'EU'", False),  # both are there, but not one behind the other
        ("header.region IN ('EU', 'FR')", False),
        ("header.region = '" + "C" * 200 + "'", True),
        ("header.region LIKE 'CCC%'", True),
        ("header.region LIKE 'EU%' OR header.x IS NOT NULL", False),
        ("header.FR = 'region'", True),
        ("header.absent > 5", False),
        ("key = 'key-7'", True),
        ("key = 'key-8'", False),
        ("value LIKE '%\"EU\"%'", True),
        ("value LIKE 'a\0b'", True),
        ("value LIKE '_\0b'", True),
        ("value.a = 'FR'", True),
        ("FALSE", False),
        ("*", True),
        ("US || EU", False),
    ],
)
def test_which_batches_may_match(text, may):
    wanted = compile_filter(text)
    assert wanted.may_match(BODY) is may
    assert wanted.may_match(bytearray(BODY)) is may
    assert may or not any(wanted(each, 0) for each in read_records(BATCH, max_bytes=10_000))


def test_a_name_of_a_header_that_is_not_utf8_is_not_missed():
    batch = BATCH.replace(b"region", b"regi\xffn")
    wanted = compile_filter("header.\"regi\ufffdn\" = 'US'")
    assert [wanted(each, 0) for each in read_records(batch, max_bytes=10_000)] == [True, False]
    assert wanted.may_match(batch[HEADER_SIZE:])


@pytest.mark.parametrize("number", [0, 1, 63, 64, 200, 8191, 8192, 10_000])
def test_all_forms_of_a_length_are_known(number):
    pattern = re.compile(_varint(number), re.DOTALL)
    least = bytearray()
    put_number(least, number)
    forms = [bytes(least)]
    while len(forms[-1]) < 5:
        last = forms[-1]
        forms.append(last[:-1] + bytes([last[-1] | 0x80]) + b"\0")
    forms += [forms[-1][:-1] + bytes([surplus << 4]) for surplus in range(1, 8)]
    for form in forms:
        assert read_number(form, 0, 5) == (number, len(form))
        assert pattern.fullmatch(form), form


@pytest.mark.parametrize(
    ("text", "data", "may"),
    [
        (f"header.a IN ({', '.join(repr(f'{n:02}') for n in range(MOST))})", b"a" * 1_000_000, True),
        (f"header.a IN ({', '.join(repr(f'{n:02}') for n in range(MOST))})", b"a\x04" * 3_000, False),
        (f"header.a IN ({', '.join(repr('x' * n) for n in range(1, MOST))})", b"a\x04" * 3_000, False),
        ("header.a LIKE 'x%'", b"a" * 1_000_000, True),
        (f"header.{'a' * 100} = 'x'", b"a" * 1_000_000, True),
        ("header.abab = 'x'", b"ab" * 100_000, False),
        ("header.region IN ('A', 'B', 'C', 'D')", b"region\x02x123456789" * 50_000, False),
        (" OR ".join(f"header.a{n} = 'x'" for n in range(MOST)), b"b" * 1_000_000, True),
        (" OR ".join(f"key = 'a{n}'" for n in range(MOST)), b"a1" * 100_000, True),
        (" OR ".join(f"key = 'a{n}'" for n in range(MOST)), b"aX" * 100_000, False),
    ],
)
def test_a_look_at_a_batch_never_takes_long(text, data, may):
    wanted = compile_filter(text)
    begin = time.thread_time()
    assert wanted.may_match(data) is may
    assert time.thread_time() - begin < 1
