"""The fields of the search: conditions of both kinds, on headers, keys and decoded values."""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import quote

import pytest

from kbroker.admin.errors import WrongInput
from kbroker.admin.fetching import Found
from kbroker.console.decoding.schemas import Schemas, from_form
from kbroker.console.records.filters import parsed
from kbroker.console.values import Values
from tests.console.world import ORDER, avro

RECORD = Found(
    "orders", 3, 7, 1_700_000_000_000, b"k-7", b'{"user": {"id": "7"}, "items": [{"price": 5}, {"price": 50}]}',
    (("region", b"EU"), ("tag", b"TagA")), appended=False, codec="none", producer_id=-1, producer_epoch=-1,
    transactional=False,
)  # fmt: skip


def passes(where, record=RECORD, form="auto", schemas=None):
    return parsed(Values([("where", where)]), form, schemas or Schemas())(record)


@pytest.mark.parametrize(
    "where",
    [
        "value.user.id = '7'", "header.region = 'EU' AND value.items[1].price > 10", "TagA || TagB", "partition = 3",
        "key LIKE 'k-%' AND NOT offset > 7", "(value.user.id) = '7'", "NOT value.user.id = '8'", "*",
        # Conditions of paths, as before:
        '.user.id == "7"', ".items[].price > 10", '(.user.id == "7")', 'not .paid and .user.id =~ "7"', '["user"].id',
        "not (not .user)",
    ],
)  # fmt: skip
def test_a_record_passes(where):
    assert passes(where)


@pytest.mark.parametrize("where", ["value.user.id = '8'", "TagC", ".user.id == 7", "value.items > 1", "not .user"])
def test_a_record_does_not_pass(where):
    assert not passes(where)


def test_a_condition_applies_to_the_value_as_it_is_shown():
    framed = b"\0\0\0\0\x01" + RECORD.value
    record = replace(RECORD, value=framed)
    assert passes("value.user.id = '7'", record)
    assert not passes("value.user.id = '7'", record, form="text")
    assert passes("value.user.id IS NULL", record, form="hex")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("value.user.id == '7'", "The condition: at character 16: a field, a text or a number is expected here"),
        ("user.id = '7'", "The condition: at character 1: user is no field"),
        (".user.id = '7'", "cannot be read"),
        ("not", "The condition: at character 1: not alone is no condition"),
    ],
)
def test_a_wrong_condition_is_named(where, said):
    with pytest.raises(WrongInput, match=said.replace("(", r"\(")):
        passes(where)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('.user.city == "Oslo" and .paid', "value.user.city = 'Oslo' AND value.paid"),
        ('.items[0].price > 250 or .user.id == "7"', "value.items[0].price > 250 OR value.user.id = '7'"),
    ],
)
def test_both_kinds_of_conditions_find_the_same(web, old, new):
    def found(where):
        words = web.page(f"/topics/orders/messages?from=oldest&limit=200&where={quote(where)}").words
        return words.split(" found in ")[0].split()[-1]

    assert found(old) == found(new) != "0"


def test_values_in_avro_are_found():
    schemas = Schemas()
    from_form(schemas, "42", "avro", json.dumps(ORDER))
    order = {"id": 7, "customer": "Ann", "total": 12.5, "items": ["lamp", "desk"]}
    record = replace(RECORD, value=avro(order))
    assert passes("value.total > 12 AND value.customer LIKE 'A%' AND value.items[1] = 'desk'", record, schemas=schemas)
    assert passes(".total > 12", record, schemas=schemas)
    assert not passes("value.total > 12.5", record, schemas=schemas)
    assert not passes("value.total > 12", record)
