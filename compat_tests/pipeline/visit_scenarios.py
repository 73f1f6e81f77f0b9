"""Visits are counted while the topic, the files and the events change: on both brokers."""

from __future__ import annotations

import ast
import csv
import json
import shutil
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewPartitions

from compat_tests.harness.scenarios import Scenarios
from compat_tests.pipeline.jobs import Jobs, jobs, refused, without
from compat_tests.pipeline.scenarios import put_events
from compat_tests.pipeline.topics import (
    BASE_MS,
    WAIT_S,
    create,
    create_anew,
    delete_records,
    delete_topic,
    records,
    values,
)
from compat_tests.pipeline.visit_model import Record
from kbroker.pipeline.storage.files import Files
from kbroker.pipeline.storage.lock import WriterLock
from kbroker.pipeline.visits.lookup import read_lookup
from kbroker.pipeline.visits.rules import VisitRules

scenarios = Scenarios("pipeline")
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
NAMES = {"a": 'Smith "and" Sons', "b": "two\nlines, one name", "c": "back\\slash", "d": " ünï "}


def event(partition: int, after_ms: int, visitor: str, **fields: Any) -> Record:
    """Return an event that arrives in time, unless `fields` say otherwise."""
    now = BASE_MS + after_ms
    whole = {"id": f"{visitor}-{now}", "visitor": visitor, "time": now, **fields}
    return Record(partition, visitor, json.dumps(whole), now)


def write_lookup(job: Jobs, names: dict[str, str], file: str = "lookup.csv") -> None:
    with open(job.at(file), "w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([("visitor", "organisation"), *names.items()])


def numbers(rows: list[dict[str, Any]]) -> list[list[Any]]:
    return [[row["organisation"], (row["visits"], row["events"], row["late"]), row.get("final")] for row in rows]


@scenarios.add
def visits_through_changes_of_the_topic(bootstrap: str, unique: str) -> object:
    create(bootstrap, unique, partitions=1)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    with jobs(bootstrap) as job:
        write_lookup(job, {"a": "A"})
        put_events(bootstrap, unique, [event(0, 0, "a"), event(0, 30 * HOUR_MS, "b")])
        job.visits(unique)
        before = numbers(job.table())
        # A partition that is added later does not restore forgotten state: its old events are late.
        admin.create_partitions([NewPartitions(unique, 2)])[unique].result(30)
        until(lambda: job.cluster.topics()[unique] == 2)
        put_events(bootstrap, unique, [event(1, 10 * MINUTE_MS, "a"), event(1, 11 * MINUTE_MS, "b")])
        state = job.visits(unique).state
        job.archive(unique, "archive")
        rows = job.recount("archive", unique, VisitRules())
        assert job.differences(rows) == []
        assert [each[:2] for each in numbers(rows)] == [each[:2] for each in numbers(job.table())]
        clocks = [(partition, offset, clock - BASE_MS) for partition, offset, clock in state.set_clocks]
        after = numbers(job.table())
        # Events after a gap, or in another topic of the same name, are not counted.
        put_events(bootstrap, unique, [event(0, 31 * HOUR_MS, "a")] * 10)
        delete_records(bootstrap, unique, 0, 7)
        lines = [refused(job.visits, unique)]
        delete_topic(bootstrap, unique)
        create_anew(bootstrap, unique)
        put_events(bootstrap, unique, [event(0, 31 * HOUR_MS, "a")] * 20)
        lines.append(refused(job.visits, unique))
        return [before, after, clocks, [without(line, job) for line in lines]]


def compact(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    policy = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    changes = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[policy])]
    for future in admin.incremental_alter_configs(changes).values():
        future.result(30)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@scenarios.add
def visits_of_odd_events_go_where_they_belong(bootstrap: str, unique: str) -> object:
    create(bootstrap, unique, f"{unique}-visits", partitions=1)
    now = BASE_MS + HOUR_MS
    time_field = f'"time": {now}'
    odd = [
        *(event(0, HOUR_MS, "e", time=each).value for each in ("10:00:00", "2026-11", "+12345-01-01", 1.5, True, None)),
        *(f'{{"visitor": "e", {time_field}}}{more}' for more in ("x", '{"visitor": "f"}', ', {"visitor": "f"}')),
        f"{{'visitor': 'e', {time_field}}}",
        f'{{"visitor": "e", {time_field}, "x": {"[" * 3000 + "]" * 3000}}}',
        f'[{{"visitor": "e", {time_field}}}]',
        "",
    ]
    large = "x" * 1_048_480  # with the headers that a dead letter adds, it exceeds a producer's default limit
    with jobs(bootstrap) as job:
        write_lookup(job, NAMES)
        put_events(bootstrap, unique, [Record(0, "e", value, now) for value in odd])
        producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 2_000_000, "log_level": 0})
        producer.produce(unique, large, partition=0, timestamp=now)
        assert producer.flush(30) == 0
        put_events(bootstrap, unique, [event(0, HOUR_MS, name) for name in (*NAMES, "nobody")])
        lines = [refused(job.visits, unique)]
        compact(bootstrap, f"{unique}-visits")
        job.session.conf.set("spark.sql.files.maxRecordsPerFile", "1")
        job.visits(unique)
        job.session.conf.unset("spark.sql.files.maxRecordsPerFile")
        dead = [
            ast.literal_eval(headers) for part in records(bootstrap, f"{unique}-malformed", 1) for *_, headers in part
        ]
        seen: list[Any] = [numbers(job.table()), sorted(dict(each)["kbroker.reason"].decode() for each in dead)]
        assert len(dead) == len(odd) + 1
        # Another count takes over the table; a later run finds what is missing.
        (day,) = (job.folder / "table").glob("day=*")
        shutil.copytree(day, day.with_name("day=2001-01-01"))
        shutil.rmtree(job.at("visits"))
        write_lookup(job, {"a": "A"})
        job.visits(unique)
        assert len(job.table()) == 2  # nothing is left of a day that this count does not contain
        shutil.rmtree(job.at("table"))
        job.visits(unique)
        newest = {key: value for part in values(bootstrap, f"{unique}-visits", 1) for key, value in part}
        kept = {json.loads(key or "")["organisation"] for key, value in newest.items() if value is not None}
        assert kept == {row["organisation"] for row in job.table()} == {"A", "unknown"}
        with WriterLock(Files(job.session, job.at("visits"))):
            lines.append(refused(job.visits, unique).partition(" (process")[0])
        with WriterLock(Files(job.session, job.at("table"))):
            lines.append(refused(job.visits, unique).partition(" (process")[0])
        for name, text in (("l.csv", "visitor,organisation\na\n"), ("l.json", '{"visitor": "a"}\n{"visitor"')):
            (job.folder / name).write_text(text)
            lines.append(refused(read_lookup, job.session, job.at(name)))
        return [*seen, len(newest), [without(line, job) for line in lines]]
