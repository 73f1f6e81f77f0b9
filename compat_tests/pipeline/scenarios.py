"""Archives are written, verified, merged, and replayed, on both brokers."""

from __future__ import annotations

import datetime
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset
import pytest
from confluent_kafka import Producer

from compat_tests.harness.scenarios import Scenarios
from compat_tests.pipeline.jobs import archived, jobs, refused, without
from compat_tests.pipeline.topics import (
    BASE_MS,
    create,
    create_anew,
    delete_records,
    delete_topic,
    put,
    put_transaction,
    records,
    values,
)
from compat_tests.pipeline.visit_model import Record, counted, lookup_text, some_events
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.demo.tour import TourOptions, by_day, tour
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.replay import Replay
from kbroker.pipeline.visits.outputs import TABLE
from kbroker.pipeline.visits.rules import VisitRules

scenarios = Scenarios("pipeline")


def sums(report: dict[str, Any]) -> list[list[Any]]:
    """Return the values of each partition in a report, without the first of them, in the topics' order."""
    return [list(state.values())[1:] for state in report["partitions"]]


@scenarios.add
def archive_holds_each_record_once(bootstrap: str, unique: str) -> object:
    topic = f"{unique}.2026"
    create(bootstrap, topic)
    put(bootstrap, topic, 0, 5000)
    put_transaction(bootstrap, topic, commit=False)
    put_transaction(bootstrap, topic, commit=True)
    with jobs(bootstrap) as job:
        first = job.archive(topic, "archive", batch_records=2000)
        again = job.archive(topic, "archive", batch_records=2000)
        put(bootstrap, topic, 5000, 100)
        more = job.archive(topic, "archive")
        report = job.verify("archive")
        assert report["faults"] == []
        seen = {
            "batches": sum(first),
            "several": len(first) > 2,
            "again": again,
            "more": more,
            "report": sums(report),
            "folders": sorted({path.split("/")[1] for path in job.store("archive").load().files}),
            "by others": by_others(job.folder / "archive"),
        }
        before, after = job.optimize("archive")
        assert job.verify("archive") == report
        assert by_others(job.folder / "archive") == seen["by others"]
        return {
            **seen,
            "optimized": before > after,
            "files": after,
            "entries": len(job.store("archive").load().entries),
        }


def by_others(archive: Path) -> object:
    """Return what DuckDB and pyarrow read from an archive's folders, without knowledge of its manifest."""
    query = 'count(*), count(distinct (partition, "offset")), count(value), count(distinct date), min(topic)'
    files = f"{archive}/topic=*/*/*.parquet"
    with duckdb.connect() as database:
        found = database.sql(f"select {query} from read_parquet('{files}', hive_partitioning=true)").fetchall()
    table = pyarrow.dataset.dataset(str(archive), partitioning="hive").to_table()
    return [[list(row) for row in found], table.num_rows, sorted(table.column_names)]


class OftenSummarized(Archive):
    """A job that summarizes the manifest's entries after every third entry."""

    most_entries = 3


@scenarios.add
def a_stream_keeps_its_manifest_short(bootstrap: str, unique: str) -> object:
    create(bootstrap, unique)
    put(bootstrap, unique, 0, 80)
    with jobs(bootstrap) as job:
        job.archiving = OftenSummarized
        batches = len(job.archive(unique, "archive", batch_records=10))
        entries = job.store("archive").load().entries
        put(bootstrap, unique, 80, 1)
        job.archive(unique, "archive")
        report = job.verify("archive")
        names = [found.name for found in job.store("archive").files.listing("_manifest")]
        return [batches >= 8, len(entries) <= 3, len(names) <= 3, sums(report), report["faults"]]


@scenarios.add
def archive_knows_what_was_deleted(bootstrap: str, unique: str) -> object:
    topic = f"{unique}"
    create(bootstrap, topic)
    put(bootstrap, topic, 0, 200)
    with jobs(bootstrap) as job:
        job.archive(topic, "archive")
        delete_records(bootstrap, topic, 0, 30)
        report = job.verify("archive")
        put(bootstrap, topic, 200, 100)
        delete_records(bootstrap, topic, 0, 120)
        line = refused(job.archive, topic, "archive")
        job.archive(topic, "archive", allow_gaps=True)
        with_gap = job.verify("archive")
        gaps = [
            [g.partition.number, g.start, g.end] for each in job.store("archive").load().gaps.values() for g in each
        ]
        return [sums(report), report["faults"], line, sums(with_gap), with_gap["faults"], gaps]


@scenarios.add
def archive_refuses_what_would_leave_gaps(bootstrap: str, unique: str) -> object:
    create(bootstrap, f"{unique}-a", f"{unique}-b")
    put(bootstrap, f"{unique}-a", 0, 20)
    put(bootstrap, f"{unique}-b", 0, 20)
    with jobs(bootstrap) as job:
        job.archive(f"{unique}-a", "archive")
        lines = [
            refused(job.archive, f"{unique}-none", "archive"),
            refused(job.archive, f"{unique}-b", "archive"),
            refused(job.archive, f"{unique}-a", "elsewhere"),
            refused(job.archive, f"{unique}-a", "archive", partition_by="date,hour"),
            refused(job.verify, "nothing"),
            refused(job.archive, f"{unique}-a", "archive[1]"),
            refused(job.archive, f"{unique}-a", "archive", "archive/checkpoint"),
        ]
        (job.folder / "table" / "day=2026-11-21").mkdir(parents=True)
        (job.folder / "of-visits" / "stream").mkdir(parents=True)
        lines += [
            refused(job.archive, f"{unique}-a", "table", "new"),
            refused(job.archive, f"{unique}-a", "elsewhere", "of-visits"),
        ]
        put(bootstrap, f"{unique}-a", 20, 4)
        other = job.archive(f"{unique}-a,{unique}-b", "archive", "other")
        old = refused(job.archive, f"{unique}-a", "archive")
        return [[without(line, job) for line in [*lines, old]], sum(other), sums(job.verify("archive"))]


@scenarios.add
def replay_keeps_order_and_shape(bootstrap: str, unique: str) -> object:
    create(bootstrap, unique)
    put(bootstrap, unique, 0, 3000)
    put_transaction(bootstrap, unique, commit=False)
    put(bootstrap, unique, 3000, 500)
    with jobs(bootstrap) as job:
        job.archive(unique, "archive", batch_records=1000)
        sent = [
            job.replay("archive", f"{unique}-copy", slice_records=1000),
            job.replay("archive", f"{unique}-copy", slice_records=1000),
            job.replay("archive", f"{unique}-kept", keep_timestamps=True),
            job.replay("archive", f"{unique}-part", where="offset % 2 = 0 and key is not null"),
            job.replay("archive", f"{unique}-fast", speed=20_000.0),
        ]
        assert records(bootstrap, f"{unique}-kept") == records(bootstrap, unique)
        plain = records(bootstrap, unique, timestamps=False)
        assert records(bootstrap, f"{unique}-copy", timestamps=False) == plain
        assert records(bootstrap, f"{unique}-fast", timestamps=False) == plain
        lines = [
            refused(job.replay, "archive", f"{unique}-copy", where="offset > 1"),
            refused(job.replay, "archive", f"{unique}-bad", where="no_such_column > 1").splitlines()[0][:40],
            refused(job.replay, "archive", f"{unique}-bad", topics=("none",)),
        ]
        return [sent, [without(line, job) for line in [*lines, *job.said]], len(plain[0]), len(plain[1])]


class Ending(Replay):
    """A replay that ends in the middle of its second slice, with part of the slice sent."""

    writes = 0

    def _write(self, frame: Any, replay_id: str) -> None:
        self.writes += 1
        if self.writes < 2:
            super()._write(frame, replay_id)
            return
        super()._write(frame.where("offset % 3 = 0"), replay_id)
        raise PipelineError("the power went")


@scenarios.add
def replay_is_taken_up_again(bootstrap: str, unique: str) -> object:
    with archived(bootstrap, unique, 1200) as job:
        seen: list[object] = []
        for exactly_once in (True, False):
            target = f"{unique}-{exactly_once}"
            options = {"slice_records": 400, "exactly_once": exactly_once}
            seen.append(refused(job.replaying("archive", target, Ending, **options)))
            seen.append(job.replay("archive", target, **options))
            found = records(bootstrap, target, timestamps=False)
            whole = records(bootstrap, unique, timestamps=False)
            seen.append([len(each) for each in found])
            if exactly_once:
                assert [sorted(map(str, each)) for each in found] == [sorted(map(str, each)) for each in whole]
        return [seen, [without(line, job) for line in job.said]]


@scenarios.add
def changes_are_finished_or_forgotten(bootstrap: str, unique: str) -> object:
    with archived(bootstrap, unique, 100) as job:
        store = job.store("archive")
        before = store.load()
        entry = before.entries[0]
        # The state after a kill: one change was committed but its files not moved, one was never committed.
        for path in before.files:
            store.files.move(path, f"_staging/{entry.name}/{path}")
            store.files.write(f"_staging/archive-none-000000001/{path}", "half a file")
        store.files.write(f"_manifest/.{entry.name}.json.0", "half an entry")
        store.files.write("_lock.json.0", "a lock that was being renewed")
        faults = job.verify("archive")["faults"]
        put(bootstrap, unique, 100, 10)
        job.archive(unique, "archive")
        report = job.verify("archive")
        hidden = store.files.walk("_manifest", hidden=True) + store.files.walk("_staging", hidden=True)
        left = [len(hidden), [found.name for found in store.files.listing() if not found.name.startswith("topic=")]]
        (job.folder / "archive" / next(iter(before.files))).unlink()
        damaged = job.verify("archive")["faults"]
        kinds = sorted({fault.rpartition(" is ")[2] for fault in faults})
        return [kinds, sums(report), report["faults"], left, [each.rpartition(" is ")[2] for each in damaged]]


@scenarios.add
def visits_equal_a_recount(bootstrap: str, unique: str) -> object:
    create(bootstrap, unique, partitions=3)
    found_events = some_events(seed=20261121, number=3000, begin_ms=BASE_MS, partitions=3)
    rules = VisitRules()
    with jobs(bootstrap) as job:
        (job.folder / "lookup.csv").write_text(lookup_text())
        put_events(bootstrap, unique, found_events[:1700])
        job.visits(unique)
        put_events(bootstrap, unique, found_events[1700:])
        last = job.visits(unique)
        job.archive(unique, "archive")
        rows = job.recount("archive", unique, rules)
        expected = {
            (name, str(datetime.date(1970, 1, 1) + datetime.timedelta(day))): numbers
            for (name, day), numbers in counted(found_events, rules).items()
        }
        found = {
            (row["organisation"], row["day"]): [row[name] for name in ("visits", "events", "late")] for row in rows
        }
        assert found == expected
        assert job.differences(rows) == []
        table = job.session.read.schema(TABLE).parquet(job.at("table"))
        final = sum(row["visits"] for row in table.where("final").collect())
        streamed = {(r["organisation"], str(r["day"])): [r["visits"], r["events"], r["late"]] for r in table.collect()}
        assert streamed == expected
        dead = [value for part in values(bootstrap, f"{unique}-malformed", 1) for _, value in part]
        newest = {key: value for part in values(bootstrap, f"{unique}-visits", 1) for key, value in part}
        rows[0]["visits"] += 1
        wrong = job.differences([row for row in rows if row["day"] == rows[0]["day"]])
        state = job.folder / "visits" / "state" / f"{last.state.batch}.json"
        kept = state.read_text()
        state.unlink()  # as a copy of a running job's folder may lack it
        older = refused(job.visits, unique)
        state.write_text(kept)
        mixed = (("archive", "new"), ("other", "checkpoint"))
        lines = [older, *(refused(job.visits, unique, *places) for places in mixed)]
        lines += [refused(job.recount, "archive", unique, VisitRules(gap_ms=1))]
        (job.folder / "lookup.csv").write_text(lookup_text() + "v99,organisation 1\n")
        lines += [refused(job.visits, unique), refused(job.recount, "archive", unique, rules)]
        (job.folder / "lookup.csv").unlink()
        lines.append(refused(job.visits, unique))
        relative = sorted([name, numbers] for (name, _), numbers in found.items())
        seen = [len(dead), len(newest), final > 0, last.state.counts, relative, len(wrong)]
        return [seen, [without(line, job) for line in lines]]


def put_events(bootstrap: str, topic: str, found: list[Record]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for record in found:
        producer.produce(topic, record.value, record.key, partition=record.partition, timestamp=record.stamp)
    assert producer.flush(30) == 0


@scenarios.add
def what_would_be_there_twice_is_refused(bootstrap: str, unique: str) -> object:
    with archived(bootstrap, unique, 20) as job:
        with job.store("archive").writing():
            lines = [refused(job.archive, unique, "archive"), refused(job.optimize, "archive")]
        manifest = next((job.folder / "archive" / "_manifest").glob("*.json"))
        text = manifest.read_text()
        entry = json.loads(text)
        file = entry["files"][0]
        copy = {**file, "path": file["path"].replace("part-", "part-again-")}
        shutil.copy(job.folder / "archive" / file["path"], job.folder / "archive" / copy["path"])
        manifest.write_text(json.dumps({**entry, "files": [*entry["files"], copy]}))
        faults = [line.partition(": ")[2] for line in job.verify("archive")["faults"]]
        manifest.write_text(text)
        (job.folder / "archive" / copy["path"]).unlink()
        delete_topic(bootstrap, unique)
        create_anew(bootstrap, unique)
        put(bootstrap, unique, 0, 30)
        lines.append(refused(job.archive, unique, "archive"))
        others = [without(line, job).partition(" (process")[0] for line in lines]
        return [others, faults, [without(line, job) for line in job.verify("archive")["faults"]][:1]]


@scenarios.add
def marks_of_other_replays_mean_nothing(bootstrap: str, unique: str) -> object:
    with archived(bootstrap, unique, 100) as job:
        sent = [job.replay("archive", f"{unique}-once", exactly_once=True)]
        put(bootstrap, unique, 100, 20)
        job.archive(unique, "archive")
        sent.append(job.replay("archive", f"{unique}-once", exactly_once=True))
        job.archive(f"{unique}-once", "second", "other")
        with pytest.raises(PipelineError, match="the power went"):
            job.replaying("second", f"{unique}-twice", Ending, exactly_once=True, slice_records=80)()
        put(bootstrap, f"{unique}-twice", 1, 2)  # another replay's, with other headers
        sent.append(job.replay("second", f"{unique}-twice", exactly_once=True, slice_records=80))
        found = [value for part in values(bootstrap, f"{unique}-twice", 2) for _, value in part]
        return [sent, len(found), sorted(Counter(map(str, found)).items())]


@scenarios.add
def the_tour_ends_in_agreement(bootstrap: str, unique: str) -> object:
    said: list[str] = []
    with jobs(bootstrap) as job:
        options = TourOptions(days=2, records=4000, topic=unique, feed_s=5)
        found = tour(job.session, job.cluster.clients, job.folder, options, said.append)
        assert found.picture.read_bytes().startswith(b"\x89PNG")
        return [found.faults, [row[1:] for row in by_day(found)], found.records, said]
