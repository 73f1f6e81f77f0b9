"""The language of conditions: which hold, which cannot be parsed, and that none takes long."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.admin.errors import WrongInput
from kbroker.console.records.paths import condition

VALUE = {
    "user": {"id": "7", "age": 30, "a name": "x", "tags": ["new", "vip"]},
    "items": [{"price": 5, "name": "lamp"}, {"price": 50, "name": "desk", "paid": True}],
    "paid": False,
    "nothing": None,
    "zero": 0,
    "text": "hello world",
}


@pytest.mark.parametrize(
    "text",
    [
        '.user.id == "7"', ".user.id != 7", ".user.age == 30.0", ".user.age > 29 and .user.age <= 30",
        '."user".id == "7"',
        '.user["a name"] == "x"', ".items[0].price == 5", '.items[-1].name == "desk"', ".items[].price > 10", ".user",
        ".zero", "not .paid", "not .nothing", "not .missing", ".paid == false", ".nothing == null",
        '.text =~ "^hello"', '.text !~ "x$"', '.text contains "lo wo"', '.user.tags contains "vip"',
        '.user.tags[] == "vip"',
        ".missing or .user", "not (.paid or .missing)", ".items[].paid", '. contains "x" or .user', ".[] == 0",
        '.text > "hello"',
    ],
)  # fmt: skip
def test_it_holds(text):
    assert condition(text)(VALUE) is True


@pytest.mark.parametrize(
    "text",
    [
        ".user.id == 7", ".items[5]", ".paid", ".nothing", ".missing", ".items[].price > 100", '.user.age =~ "3"',
        '.user.age > "2"', ".paid == 0", ".zero == false", '.text contains "HELLO"', ".user and .missing",
        ".user.id.deeper",
    ],
)  # fmt: skip
def test_it_does_not_hold(text):
    assert condition(text)(VALUE) is False


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a path begins with a dot"), ("user", "not a keyword"), (".a ==", "a value is expected here"),
        ("(.a", "a parenthesis is not closed"), (".a[0", "a bracket is not closed"),
        (".a == 1 .b", "a condition ends here"),
        ('.a =~ "("', "no regular expression"), (".a == 'x'", "cannot be read"), ("(" * 60 + ".a" + ")" * 60, "nested"),
        ("not " * 100 + ".a", "nested"), (".a" * 600, "at most 1000 characters"), ('.a =~ ".{1001}"', "no regular"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(text, said):
    with pytest.raises(WrongInput, match=said):
        condition(text)


@given(
    st.text(max_size=60), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5)
)
def test_any_text_is_read_or_refused(text, value):
    try:
        holds = condition(text)
    except WrongInput:
        return
    assert holds(value) in (True, False)


def test_a_pattern_that_would_explode_takes_no_time():
    holds = condition('.text =~ "(a+)+$"')
    begun = time.thread_time()
    assert holds({"text": "a" * 50_000 + "b"}) is False
    assert time.thread_time() - begun < 1
