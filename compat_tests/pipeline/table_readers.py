"""Engines that read an archive's table and know nothing of the pipeline: pyiceberg, deltalake, and DuckDB on top.

Owns the reading, and a checksum that a topic and a table of the same records share. Never uses Spark.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

WAIT_S = 60
Found = tuple[int, int, int]
"""The number of records, the number of distinct places, and the checksum."""


def iceberg(folder: str) -> StaticTable:
    """Return the current version of an Iceberg table, as pyiceberg finds it by its files alone."""
    metadata = Path(folder) / "metadata"
    version = (metadata / "version-hint.text").read_text().strip()
    return StaticTable.from_metadata(str(metadata / f"v{version}.metadata.json"))


def rows(kind: str, folder: str) -> pa.Table:
    """Return a table's rows as its engine in Python reads them."""
    if kind == "iceberg":
        return iceberg(folder).scan().to_arrow()
    return DeltaTable(folder).to_pyarrow_table()


def by_duckdb(kind: str, folder: str) -> Found:
    """Return what DuckDB counts in a table, and the checksum of the rows in DuckDB's hands."""
    with duckdb.connect() as database:
        database.register("records", rows(kind, folder))
        query = 'select count(*), count(distinct (topic, partition, "offset")) from records'
        counted = database.execute(query).fetchall()[0]
        columns = 'topic, partition, "offset", epoch_ms(timestamp), key, value, headers'
        found = database.execute(f"select {columns} from records").fetchall()
    fields = ((*row[:6], tuple((each["key"], each["value"]) for each in row[6] or ())) for row in found)
    return counted[0], counted[1], checksum(fields)


def of_topic(bootstrap: str, topic: str, partitions: int = 2) -> Found:
    """Return what a consumer finds in a topic."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[tuple[Any, ...]] = []
    deadline, ended = time.monotonic() + WAIT_S, 0
    while ended < partitions:
        assert time.monotonic() < deadline
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF
            ended += 1
            continue
        place = (topic, message.partition(), message.offset(), message.timestamp()[1])
        found.append((*place, message.key(), message.value(), tuple(message.headers() or ())))
    consumer.close()
    return len(found), len({row[:3] for row in found}), checksum(found)


def checksum(found: Iterable[tuple[Any, ...]]) -> int:
    """Return the sum of the records' hashes, whatever their order."""
    digests = (hashlib.sha256(repr(row).encode()).digest()[:8] for row in found)
    return sum(int.from_bytes(each) for each in digests) % (1 << 64)
