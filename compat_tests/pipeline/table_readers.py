"""Engines that read an archive's table and know nothing of the pipeline: pyiceberg, deltalake, and DuckDB on top.

Owns the reading. Every reader returns the rows as an Arrow table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow
from deltalake import DeltaTable
from pyiceberg.table import StaticTable


def iceberg(folder: str) -> StaticTable:
    """Return the current version of an Iceberg table, as pyiceberg finds it by its files alone."""
    metadata = Path(folder) / "metadata"
    version = (metadata / "version-hint.text").read_text().strip()
    return StaticTable.from_metadata(str(metadata / f"v{version}.metadata.json"))


def rows(kind: str, folder: str) -> pyarrow.Table:
    """Return a table's rows as its engine in Python reads them."""
    if kind == "iceberg":
        return iceberg(folder).scan().to_arrow()
    return DeltaTable(folder).to_pyarrow_table()


def summed(kind: str, folder: str) -> list[tuple[Any, ...]]:
    """Return (partition, records, distinct offsets, sum of the offsets, hash of keys and values) by DuckDB."""
    query = """
        select partition, count(*), count(distinct "offset"), cast(sum("offset") as bigint),
               cast(bit_xor(hash("offset", key, value)) as varchar)
        from read_by_others group by partition order by partition
    """
    with duckdb.connect() as database:
        database.register("read_by_others", rows(kind, folder))
        return database.execute(query).fetchall()
