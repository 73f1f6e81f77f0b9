"""What the language means at its edges, what it refuses and at which character, and that it never takes long."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.filters.filtering import compile_filter
from kbroker.filters.patterns import MOST_WORK
from kbroker.filters.tokens import FilterError
from kbroker.protocol.records import Record
from tests.tries import tries

RECORD = Record(
    7,
    1_795_651_200_000,  # 2026-11-26T00:00:00Z
    b"order-1",
    b'{"amount": 120.5, "paid": true, "items": [{"id": 3}, {"id": "x"}], "odd name": null, "big": 18446744073709551617,'
    b' "nan": NaN, "text": "7", "odd \\" name": 1, "order": {"and": 1}}',
    (
        ("region", b"US"), ("region", b"EU"), ("n", b"42"), ("tag", b"TagA"), ("flag", b"True"), ("a.b", b"1"),
        ("bytes", b"\xff\xfe"), ("none", None), ("quote", b"it's"),
    ),
)  # fmt: skip


def matches(text, record=RECORD, partition=2):
    return compile_filter(text)(record, partition)


@pytest.mark.parametrize(
    "text",
    [
        "*", " * ", "TagA", "TagB || TagA", "TagB||TagA||TagC", "TRUE", "not false",
        "header.region = 'EU'", "header.region <> 'US'",  # the last header counts
        "header.n = 42", "header.n > 41.5", "header.n = '42'", "header.n * 2 = 84", "header.n < '5'",
        "header.flag", "header.flag = TRUE", "NOT header.flag = FALSE", 'header."a.b" = 1', "header.quote = 'it''s'",
        "key LIKE 'order-%'", "key like '_rder__'", "key = 'order-1'",
        "offset = 7", "partition = 2", "offset + partition = 9", "offset BETWEEN 7 AND 7", "offset NOT BETWEEN 8 AND 9",
        "timestamp = TIMESTAMP '2026-11-26T00:00:00Z'", "timestamp >= timestamp '2026-11-26'",
        "timestamp < TIMESTAMP '2026-11-26 00:00:00.001'", "timestamp = TIMESTAMP '2026-11-26T02:00+02:00'",
        "value.amount > 100", "value.amount = 120.5", "value.paid", "value.paid = true", "NOT value.paid = FALSE",
        "value.items[0].id = 3", "value.items[-1].id = 'x'", "value.items[0].id IN (1, 2, 3)",
        'value."odd name" IS NULL', "value.missing.deeper IS NULL", 'value."odd "" name" = 1', "value.order.and = 1",
        "value.items IS NOT NULL",
        "value.big = 18446744073709551617", "value.big <> 18446744073709551616", "value.big > 18446744073709551616",
        "value.nan IS NOT NULL", "value.text = '7'", "value.text LIKE '7'", "value LIKE '%\"paid\": true%'",
        "1 + 2 * 3 = 7", "(1 + 2) * 3 = 9", "10 - 2 - 3 = 5", "-2 * -3 = 6", "7 / 2 = 3.5", "6 / 2 = 3",
        "- offset = -7",
        "5 < offset", "'EU' = header.region", "header.region = header.region", "value.text = header.n OR header.n = 42",
        "header.bytes IS NOT NULL", "header.none IS NULL", "header.absent IS NULL", "offset IS NOT NULL",
        "header.region NOT IN ('US', 'CN')", "header.region IN ('US', 'EU')", "header.n IN (41, 42)",
        "header.region NOT LIKE 'U%'", "NOT (header.region = 'US' OR offset > 7)",
        "offset = 1 OR offset = 7 AND partition = 2", "NOT offset = 1 AND partition = 2",
        "header.region\n=\t'EU'",
    ],
)  # fmt: skip
def test_it_matches(text):
    assert matches(text) is True


@pytest.mark.parametrize(
    "text",
    [
        "FALSE", "TagB", "taga", "header.region = 'US'", "header.region = 'eu'",
        # Unknown, and so neither it nor its opposite:
        "header.absent = 'x'", "header.absent <> 'x'", "NOT header.absent = 'x'", "header.absent NOT IN ('x')",
        "header.absent NOT LIKE 'x'", "header.none <> 'x'", "header.region > 5", "NOT header.region > 5",
        "header.bytes = 'x'", "header.bytes <> 'x'", "header.bytes NOT LIKE 'x'", "header.bytes NOT IN ('x')",
        "value.text = 7", "value.text <> 7", "value.text + 1 = 8", "value.amount = '120.5'", "value.amount LIKE '1%'",
        "value.items = 1", "value.items <> 1", "value.nan = value.nan", "value.nan <> 1", "value.nan > 0",
        "offset / 0 = 1", "NOT offset / 0 = 1", "offset / (partition - 2) <> 0", "1 / 0.0 = 1",
        "value.paid = 1 OR value.paid <> 1", "value.paid > value.paid",
        "100000000000000000000000000000000000000 * 10 > 1", "header.region BETWEEN 1 AND 2",
        "header.region NOT BETWEEN 1 AND 2", "value.missing", "NOT value.missing", "header.region",
        "value.items[0].id NOT IN (1, 'x')", "value.text IN (7)", "value.big = 1.8446744073709552e19",
    ],
)  # fmt: skip
def test_it_does_not_match(text):
    assert matches(text) is False


@pytest.mark.parametrize(
    "value",
    [
        None, b"", b"no JSON", b"\xff", b'{"a": 1', b"5", b'"a"', b"\xef\xbb\xbf{}", b"[" * 101,
        b'{"a": 1, "b": ' + b"[" * 100 + b"]" * 100 + b"}", b'{"a": 1, "b": ' + b"9" * 5_000 + b"}",
        b'{"a": 1, "b": "' + b"x" * 256 * 1024 + b'"}',
    ],
)  # fmt: skip
def test_a_value_without_a_decoded_form_has_no_parts(value):
    record = RECORD._replace(value=value)
    assert matches("value.a IS NULL", record)
    assert not matches("value.a = 1 OR value.a <> 1", record)


def test_brackets_in_texts_do_not_count_as_depth():
    value = b'{"a": 1, "b": "' + b"[{" * 500 + b'\\"[[", "c": ' + b"[" * 98 + b"]" * 98
    value += b', "d": [' + b"{}," * 500 + b"1]}"
    assert matches("value.a = 1", RECORD._replace(value=value))


def test_tombstones_and_null_keys():
    record = RECORD._replace(key=None, value=None)
    assert matches("key IS NULL AND value IS NULL", record)
    assert not matches("key = '' OR key <> '' OR value LIKE '%'", record)


def test_a_lone_surrogate_counts_as_the_replacement_character():
    assert matches("value.a = '\ufffdx'", RECORD._replace(value=b'{"a": "\\ud800x"}'))


def test_values_are_decoded_only_if_the_expression_reads_a_part_of_them():
    seen = []
    for text in ("value LIKE '%a%' AND key IS NOT NULL", "TagA", "offset > 1 OR value IS NULL"):
        wanted = compile_filter(text, seen.append)
        wanted(RECORD, 0)
        assert not wanted.reads_value
    assert not seen
    wanted = compile_filter("value.a = 1 OR value.b = 2 OR value.a = 3", seen.append)
    assert wanted(RECORD, 0) is False
    assert wanted.reads_value
    assert len(seen) == 1, "one decoding for all parts"
    assert compile_filter("header.n = 1 AND value.a = 1", seen.append)(RECORD, 0) is False
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        ("", 1, "the expression is empty"), ("  ", 1, "the expression is empty"),
        ("key", 1, "the tag of this name is header.tag = 'key'"), ("A || NOT", 6, "header.tag = 'NOT'"),
        ("header.region == 'EU'", 16, "a field, a text or a number is expected here"),
        ("header.region = EU", 17, "EU is no field"), ('header.region = "EU"', 17, "a text is in single quotes"),
        ("region = 'EU'", 1, "region is no field; fields are header.NAME, key"),
        ("header.x-id = 1", 10, "in double quotes"), ("header.a.b = 1", 9, 'as in header."a.b"'),
        ("header = 1", 8, "the header's name is expected here"), ("header. = 1", 9, "a name is expected here"),
        ("key = 'a", 7, "the closing ' is missing"), ('header."a = 1', 8, 'the closing " is missing'),
        ("key = NULL", 7, "write IS NULL"), ("key IS 5", 8, "NULL is expected here"),
        ("key = 1 AND", 12, "expected here"),
        ("key = 'a' key", 11, "AND, OR or the end"), ("(key = 'a'", 11, ") is expected here"),
        ("key = 'a')", 10, "AND, OR"),
        ("timestamp > '2026-01-01'", 11, "a date is TIMESTAMP"), ("timestamp > TIMESTAMP 'x'", 23, "this is no date"),
        ("timestamp > TIMESTAMP '2026-13-01'", 23, "this is no date"),
        ("offset = TRUE", 8, "TRUE or FALSE with a number cannot be compared"),
        ("value.a < TRUE", 9, "only be compared with = and <>"),
        ("offset LIKE '1%'", 8, "LIKE goes with"), ("key LIKE key", 10, "a pattern in single quotes"),
        ("key LIKE 'a' ESCAPE 'ab'", 21, "one character"), ("key LIKE 'a!b' ESCAPE '!'", 10, "must precede %, _"),
        ("key LIKE 'a!' ESCAPE '!'", 10, "ends with '!'"), ("key IN ()", 9, "expected here"),
        ("key IN (key)", 9, "IN takes"),
        ("key IN ('a', NULL)", 14, "write IS NULL"), ("offset IN (1, 'a')", 15, "cannot be compared"),
        ("key BETWEEN 1", 14, "AND is expected here"), ("1 = 2 = 3", 7, "not a condition"),
        ("offset", 1, "alone is no condition"),
        ("offset + 1", 1, "this is no condition"), ("'a' + 1 = 2", 5, "+ needs numbers"),
        ("NOT 5", 5, "this is no condition"),
        ("(key = 'a') + 1 = 2", 13, "+ needs a field"), ("key = 'a' || key = 'b'", 11, "OR joins conditions"),
        ("|| A", 1, "OR joins conditions"), ("value.items[x] = 1", 13, "the number of an item"),
        ("value.items[0 = 1", 15, "] is expected here"), ("value.5 = 1", 7, "a name is expected here"),
        ("1" * 101 + " = 1", 1, "at most 100 characters"), ("offset < 1e39", 10, "10 to the power of 38"),
        ("offset < 5x", 10, "this is no number"), ("key = 'a' ; drop", 11, "';' has no meaning here"),
        ("key ~ 'a'", 5, "'~' has"),
        ("(" * 50 + "key = 'a'" + ")" * 50, 42, "nested at most 40 deep"),
        ("NOT " * 50 + "header.a", 165, "nested at most"),
        ("offset = " + "1 + " * 50 + "1", 172, "calculations are nested at most 40 deep"),
        ("key = '" + "a" * 10_000 + "'", 10_001, "at most 10000 bytes"),
        ("key IN (" + "1," * 1_000 + "1)", 2_006, "at most 2000 parts"),
        ("key = '\udcff'", 8, "this is not UTF-8"), ("A || " * 1_500 + "A", 5_001, "at most 2000 parts"),
    ],
)  # fmt: skip
def test_it_is_refused_with_a_position(text, at, said):
    with pytest.raises(FilterError) as refused:
        compile_filter(text)
    line = str(refused.value)
    found = re.fullmatch(r"at character (\d+): (.+)", line)
    assert found is not None, line
    assert said in found[2]
    assert int(found[1]) == at, line


# -- random text


PIECES = (
    "header.a", "header.", 'header."a b"', "key", "value", "value.a", "value[0]", "timestamp", "TIMESTAMP '2026-01-01'",
    "offset",
    "partition", "=", "<>", "!=", "<", ">=", "+", "-", "*", "/", "(", ")", ",", ".", "[", "]", "||", "AND", "OR", "NOT",
    "IN",
    "BETWEEN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE", "'a'", "'%a_'", "'it''s'", '"x"', "1", "2.5", "1e3",
    "'", '"', "é", "\0",
    "TagA",
)  # fmt: skip
GOOD = (
    "header.region = 'EU' AND timestamp > 5", "A || B || C", "timestamp < TIMESTAMP '2026-11-26T00:00:00Z'",
    "NOT (key LIKE 'a!%%' ESCAPE '!' OR value.items[-1].id IN (1, 'x'))",
    'value."odd name" IS NOT NULL AND header.n * 2 - 1 BETWEEN -5 AND 7.5',
)  # fmt: skip
_change = st.tuples(
    st.integers(0, 80), st.integers(0, 5), st.one_of(st.text(max_size=3), st.sampled_from(PIECES))
)  # fmt: skip


def tried(text):
    """Compile a text: it is a filter, or refused in one line, and soon."""
    begin = time.thread_time()  # other tests' brokers run in this process, too
    try:
        found = compile_filter(text)
    except FilterError as refused:
        found, line = None, str(refused)
    assert time.thread_time() - begin < 1
    if found is None:
        assert re.fullmatch(r"at character \d+: [^\n\r]+", line), line
    else:
        assert found(RECORD, 0) in (True, False)
        assert found.may_match(b"abc") in (True, False)
    return found


@settings(max_examples=tries(500))
@given(st.text(max_size=200))
def test_any_text(text):
    tried(text)


@settings(max_examples=tries(1_000))
@given(st.lists(st.sampled_from(PIECES), max_size=25), st.sampled_from(("", " ")))
def test_any_row_of_words(pieces, between):
    tried(between.join(pieces))


@settings(max_examples=tries(1_000))
@given(st.sampled_from(GOOD), st.lists(_change, max_size=4))
def test_changed_expressions(text, changes):
    for at, size, put in changes:
        text = text[:at] + put + text[at + size :]
    tried(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000, "(" * 9_999, "NOT " * 2_400, "-" * 9_990 + "1 = 1", "a" * 100_000, "a" * 9_999, "'" * 9_999,
        '"' * 9_999,
        "1+" * 4_900 + "1 = 1", "key = 'a' OR " * 400 + "key = 'a'", "NOT(" * 2_000, "value" + ".a" * 900 + " = 1",
        "value" + "[0]" * 600 + " IS NULL", " " * 9_990 + "A", "A||" * 3_300 + "A", "key IN (" + "'a'," * 900 + "'a')",
        "key LIKE '" + "%" * 9_900 + "'", "key LIKE '" + "_" * 9_900 + "'", "key LIKE '" + "%_a" * 3_300 + "'",
        "key LIKE '" + "!" * 9_900 + "' ESCAPE '!'", "1" * 9_990 + "=1", "1e" + "9" * 9_000 + " = 1", "{" * 9_999,
        "((key='a')OR" * 35 + "TRUE" + ")" * 35, "key BETWEEN " * 900, "value.a IN (" + "1.5,TRUE,'x'," * 300 + "1)",
        "header.a = 'x' AND (header.b = 'y' OR " * 38 + "FALSE" + ")" * 38, "-(" * 20 + "1" + ")" * 20 + " = 1",
    ],
)  # fmt: skip
def test_expressions_meant_to_take_long(text):
    tried(text)


# -- the work of a record


@pytest.mark.parametrize(
    "pattern",
    [
        "%" + "a%" * 4_000 + "b", "%a" * 4_000 + "%", "%" + "a_%" * 3_000 + "b", "%a_______________________b%",
        "%" * 9_000 + "b",
        "%" + "a_" * 1_000 + "b%", "_" * 9_000 + "%b", "%aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab%",
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_no_pattern_takes_long(pattern, size):
    wanted = compile_filter(f"value LIKE '{pattern}'")
    record = RECORD._replace(value=b"a" * size)
    begin = time.thread_time()
    assert wanted(record, 0) in (True, False)
    assert time.thread_time() - begin < 2


def test_a_pattern_that_would_take_long_is_unknown():
    record = RECORD._replace(value=b"xab" * 1_000)
    assert matches("value LIKE '%a_x%'", record)
    long = RECORD._replace(value=b"xab" * (MOST_WORK // 9 + 10))
    assert not matches("value LIKE '%a_x%' OR value NOT LIKE '%a_x%'", long)
    assert matches("value LIKE '%xab%' AND value LIKE 'x_b%_b'", long), "these take one look"


def test_numbers_do_not_grow():
    text = "header.n" + " * value.big" * 35 + " > 0"
    assert not matches(text)
    assert matches("header.n" + " * 9" * 35 + " > 0")
    digits = RECORD._replace(headers=(("n", b"9" * 1_000_000),))
    assert not matches("header.n > 0 OR header.n <= 0", digits)


@pytest.mark.parametrize(
    "value",
    [
        b"[" + b"1," * 120_000 + b"1]", b"[" + b"{}," * 80_000 + b"1]", b'["' + b"\\u0041" * 40_000 + b'"]',
        b"[" * 250_000,
        b'{"a":' * 50_000, b"[" + b'"[",' * 60_000 + b"1]", b'"' * 250_000,
    ],
)  # fmt: skip
def test_no_document_takes_long(value):
    wanted = compile_filter("value[0] = 1 OR value.a = 2")
    record = RECORD._replace(value=value)
    begin = time.thread_time()
    assert wanted(record, 0) in (True, False)
    assert time.thread_time() - begin < 2


def test_a_filter_is_compiled_once_for_its_check_and_its_use() -> None:
    """The longest ones take some 15 ms, in which nobody else is served."""
    text = " OR ".join(f"header.once{number} = 'x'" for number in range(100))
    assert compile_filter(text) is compile_filter(text)
    assert compile_filter(text, lambda _value: None) is not compile_filter(text)
