"""The types of a table's columns: what a batch with another type makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.pipeline.archive.tables.types import OtherTypeError, merged, nullable

pytest.importorskip("pyspark")

from pyspark.sql import types as t


def struct(**fields: Any) -> t.StructType:
    return t.StructType([t.StructField(name, kind, nullable=False) for name, kind in fields.items()])


LONG, INT, TEXT = t.LongType(), t.IntegerType(), t.StringType()


def test_structs_have_the_fields_of_both_at_each_level() -> None:
    table = struct(a=struct(x=LONG), b=t.ArrayType(struct(x=TEXT), containsNull=False))
    batch = struct(b=t.ArrayType(struct(y=INT)), a=struct(y=TEXT), c=t.MapType(TEXT, LONG, valueContainsNull=False))
    wanted = struct(a=struct(x=LONG, y=TEXT), b=t.ArrayType(struct(x=TEXT, y=INT)), c=t.MapType(TEXT, LONG))
    assert merged(table, batch, widens=False) == nullable(wanted)


@pytest.mark.parametrize(
    ("narrow", "wide"), [(INT, LONG), (t.FloatType(), t.DoubleType()), (t.DecimalType(9, 2), t.DecimalType(12, 2))]
)
def test_the_wider_number_stays(narrow: Any, wide: Any) -> None:
    table = t.MapType(TEXT, wide)
    assert merged(table, t.MapType(TEXT, narrow), widens=False) == table
    assert merged(struct(n=narrow), struct(n=wide), widens=True) == nullable(struct(n=wide))
    with pytest.raises(OtherTypeError, match=r"^n: .* in place of "):
        merged(struct(n=narrow), struct(n=wide), widens=False)


@pytest.mark.parametrize(
    "pair",
    [
        (TEXT, LONG),
        (LONG, TEXT),
        (t.DecimalType(9, 2), t.DecimalType(9, 3)),
        (t.MapType(TEXT, LONG), t.MapType(LONG, LONG)),
        (t.TimestampType(), t.TimestampNTZType()),
        (struct(x=LONG), TEXT),
        (t.ArrayType(TEXT), TEXT),
    ],
)
def test_no_type_holds_both(pair: tuple[Any, Any]) -> None:
    with pytest.raises(OtherTypeError):
        merged(*pair, widens=True)
