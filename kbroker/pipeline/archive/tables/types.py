"""The types of a table's columns, their extension for a batch, and the conversion of the batch to the resulting types.

Owns the rules for two types in one column, and the conversion of values. Types are Spark's; whether a value
may be null is ignored. Never changes a table.
"""

from __future__ import annotations

from typing import Any, Final

_WIDER: Final = {("int", "bigint"), ("float", "double")}


class OtherTypeError(Exception):
    """Raised if a column would need two types. The text names both types and, if known, the column."""


def nullable(kind: Any) -> Any:
    """Return a type in which every value may be null, without comments."""
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        return t.StructType([t.StructField(each.name, nullable(each.dataType)) for each in kind.fields])
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(nullable(kind.elementType))
    if isinstance(kind, t.MapType):
        return t.MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind


def merged(table: Any, batch: Any, *, widens: bool) -> Any:
    """Return the type for a column that has one type in the table, and another type in a batch.

    Structs get the fields of both types, by name. A number gets the wider type. If the batch's type is wider, the table
    must be able to change its column's type (`widens`). Raises OtherTypeError if no type can contain the values of both
    types.
    """
    from pyspark.sql import types as t

    table, batch = nullable(table), nullable(batch)
    if table == batch:
        return table
    if isinstance(table, t.StructType) and isinstance(batch, t.StructType):
        return _struct(table, batch, widens=widens)
    if isinstance(table, t.ArrayType) and isinstance(batch, t.ArrayType):
        return t.ArrayType(merged(table.elementType, batch.elementType, widens=widens))
    if isinstance(table, t.MapType) and isinstance(batch, t.MapType) and table.keyType == batch.keyType:
        return t.MapType(table.keyType, merged(table.valueType, batch.valueType, widens=widens))
    if _is_wider(table, batch):
        return table
    if widens and _is_wider(batch, table):
        return batch
    raise OtherTypeError(f"{batch.simpleString()} in place of {table.simpleString()}")


def conformed(column: Any, have: Any, want: Any) -> Any:
    """Return a column with its values converted from the type `have` to the type `want`, a result of `merged`."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    if nullable(have) == nullable(want):
        return column
    if isinstance(want, t.StructType):
        fields = {each.name: each.dataType for each in have.fields}
        parts = [
            conformed(column.getField(each.name), fields[each.name], each.dataType).alias(each.name)
            if each.name in fields
            else f.lit(None).cast(each.dataType).alias(each.name)
            for each in want.fields
        ]
        return f.when(column.isNotNull(), f.struct(*parts))
    if isinstance(want, t.ArrayType):
        return f.transform(column, lambda each: conformed(each, have.elementType, want.elementType))
    if isinstance(want, t.MapType):
        return f.transform_values(column, lambda _, each: conformed(each, have.valueType, want.valueType))
    return column.cast(want)


def selected(frame: Any, want: Any) -> Any:
    """Return a frame's rows in a schema that `merged` has returned for the frame's schema. Missing columns are null."""
    from pyspark.sql import functions as f

    have = {each.name: each.dataType for each in frame.schema.fields}
    columns = [
        (
            conformed(f.col(each.name), have[each.name], each.dataType)
            if each.name in have
            else f.lit(None).cast(each.dataType)
        ).alias(each.name)
        for each in want.fields
    ]
    return frame.select(*columns)


def _struct(table: Any, batch: Any, *, widens: bool) -> Any:
    from pyspark.sql import types as t

    new = {each.name: each.dataType for each in batch.fields}
    fields = []
    for each in table.fields:
        try:
            kind = merged(each.dataType, new[each.name], widens=widens) if each.name in new else each.dataType
        except OtherTypeError as err:
            raise OtherTypeError(f"{each.name}: {err}") from err
        fields.append(t.StructField(each.name, kind))
    known = {each.name for each in table.fields}
    fields += [each for each in batch.fields if each.name not in known]
    return t.StructType(fields)


def _is_wider(one: Any, other: Any) -> bool:
    from pyspark.sql import types as t

    if isinstance(one, t.DecimalType) and isinstance(other, t.DecimalType):
        return one.scale == other.scale and one.precision > other.precision
    return (other.simpleString(), one.simpleString()) in _WIDER
