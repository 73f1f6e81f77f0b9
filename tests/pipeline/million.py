"""Visits of a million events, counted on arrival and counted again: all numbers agree.

`kbroker pipeline events` sends the events of three days, with late ones, duplicates and malformed ones, while `kbroker
pipeline visits --every` counts. Then the topic is archived, and visits are counted from the archive twice: by `recount
--compare`, and by DuckDB, which shares no code with them. All three must be the same.

Run as a module, it takes some minutes: `python -m tests.pipeline.million --count 1000000 --seed 7`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import duckdb

from compat_tests.harness.brokers import KBroker
from kbroker.pipeline.visits.lookup import UNKNOWN
from kbroker.pipeline.visits.rules import FUTURE_MS, VisitRules
from tests.crash.driving import Driver

TOPIC = "events"
PARTITIONS = 4
DAYS = 3
PATIENCE_S = 1800.0
EVERY = ("--every", "1s", "--batch-records", "100000")
Counts = dict[tuple[str, str], tuple[int, int, int]]
"""By (organisation, day): visits, events, late."""

BY_SQL = """
    with raw as (
        select partition, "offset", epoch_ms(timestamp) as stamp, try(decode(value)) as text
        from read_parquet($files, hive_partitioning = true)
    ), parsed as (
        select *, max(stamp) over (partition by partition order by "offset") as clock,
               case when json_valid(text) then text::json end as event
        from raw
    ), fields as (
        select clock, stamp, event ->> '$.visitor' as visitor, event ->> '$.id' as id,
               epoch_ms(try_cast(event ->> '$.time' as timestamptz)) as time
        from parsed
    ), good as (
        select *, time < clock - $lateness as late from fields
        where visitor <> '' and time is not null and time <= clock + $future
    ), once as (
        select distinct visitor, id, time from good where not late
    ), begun as (
        select visitor, time,
               coalesce(time - lag(time) over (partition by visitor order by time, id) > $gap, true) as begins
        from once
    ), both_kinds as (
        select visitor, time, begins::int as visits, 1 as events, 0 as late from begun
        union all select visitor, time, 0, 0, 1 from good where late
    )
    select coalesce(organisation, $unknown), strftime(make_timestamp(time * 1000), '%Y-%m-%d'),
           sum(visits), sum(events), sum(late)
    from both_kinds left join read_csv($lookup, header = true, all_varchar = true) using (visitor) group by all
"""


class Million:
    """The complete run in one folder."""

    def __init__(self, folder: Path, count: int, seed: int) -> None:
        self._folder = folder
        self._count = count
        self._seed = seed
        self.broker = KBroker(folder / "broker")
        self.counts = Counter[str]()

    def run(self) -> None:
        self.broker.start()
        asked = ("--count", str(self._count), "--days", str(DAYS), "--rate", str(self._count / (DAYS * 86_400) * 1.02))
        asked += ("--partitions", str(PARTITIONS), "--seed", str(self._seed))
        events = self._events(*asked, "--lookup-out", self._at("lookup.csv"))
        self._wait_for_topic(events)
        stream = self._driver("visits", *self._source(), "--to", self._at("table"), *EVERY)
        try:
            _, said = events.communicate(timeout=PATIENCE_S)
            assert events.returncode == 0, said
            self._wait_for_stream(stream)
        finally:
            events.kill()
            stream.end(signal.SIGTERM)
        for number, name in re.findall(r"([\d,]+) (events|late|duplicates|malformed)", said):
            self.counts[f"{name} sent"] = int(number.replace(",", ""))
        self._finish("archive", "--topics", TOPIC, "--to", self._at("archive"), "--checkpoint", self._at("archiving"))
        self._compare()

    def _events(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "kbroker", "pipeline", "events", "--topic", TOPIC, *arguments]
        command += ["--bootstrap", self.broker.bootstrap]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def _wait_for_topic(self, events: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        listing = [sys.executable, "-m", "kbroker", "topic", "list", "--bootstrap", self.broker.bootstrap]
        while TOPIC not in subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split():
            assert events.poll() is None
            assert time.monotonic() < deadline, "there is no topic"
            time.sleep(0.1)

    def _wait_for_stream(self, stream: Driver) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while sum(json.loads(line)["records"] for line in list(stream.lines)) < self._count:
            if not stream.running:
                stream.end(signal.SIGKILL)
                raise AssertionError(stream.said)
            assert time.monotonic() < deadline, "the stream did not count all events"
            time.sleep(0.5)
        last = json.loads(stream.lines[-1])
        self.counts["batches streamed"] = last["batch"] + 1
        self.counts["late"] = last["late"]
        self.counts["malformed"] = last["malformed"]

    def _source(self) -> tuple[str, ...]:
        return "--topic", TOPIC, "--lookup", self._at("lookup.csv"), "--checkpoint", self._at("checkpoint")

    def _driver(self, *arguments: str) -> Driver:
        return Driver(self._folder, *arguments, "--bootstrap", self.broker.bootstrap)

    def _finish(self, *arguments: str) -> None:
        driver = self._driver(*arguments)
        status = driver.wait()
        assert status == 0, driver.said

    def _compare(self) -> None:
        recount = ("recount", "--from", self._at("archive"), *self._source(), "--compare", self._at("table"), "--json")
        driver = Driver(self._folder, *recount)
        assert driver.wait() == 0, driver.said
        print(driver.said.strip())
        rows = json.loads("".join(driver.lines))
        recounted = {(r["organisation"], r["day"]): (r["visits"], r["events"], r["late"]) for r in rows}
        streamed, by_sql = self._streamed(), self._by_sql()
        for name, found in (("streamed", streamed), ("recounted", recounted), ("by SQL", by_sql)):
            self.counts[f"visits {name}"] = sum(visits for visits, _, _ in found.values())
        keys = streamed.keys() | recounted.keys() | by_sql.keys()
        differing = [key for key in keys if not streamed.get(key) == recounted.get(key) == by_sql.get(key)]
        self.counts["differences"] = len(differing)
        for key in sorted(differing)[:20]:
            print(f"{key}: streamed {streamed.get(key)}, recounted {recounted.get(key)}, by SQL {by_sql.get(key)}")

    def _streamed(self) -> Counts:
        query = "select organisation, cast(day as varchar), visits, events, late from read_parquet(?)"
        with duckdb.connect() as database:
            found = database.execute(query, [f"{self._at('table')}/day=*/visits.parquet"]).fetchall()
        return {(name, day): (visits, events, late) for name, day, visits, events, late in found}

    def _by_sql(self) -> Counts:
        rules = VisitRules()
        facts = {"lateness": rules.lateness_ms, "gap": rules.gap_ms, "future": FUTURE_MS, "unknown": UNKNOWN}
        facts |= {"files": f"{self._at('archive')}/topic=*/*/*.parquet", "lookup": self._at("lookup.csv")}
        with duckdb.connect() as database:
            found = database.execute(BY_SQL, facts).fetchall()
        return {(name, day): (int(visits), int(events), int(late)) for name, day, visits, events, late in found}

    def _at(self, name: str) -> str:
        return str(self._folder / name)

    def summary(self) -> str:
        """Return the counts in one line."""
        return ", ".join(f"{number:,} {name}" for name, number in self.counts.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kbroker-million-"))
    print(f"seed {args.seed}, {args.count:,} records, data in {folder}", flush=True)
    work = Million(folder, args.count, args.seed)
    try:
        work.run()
    finally:
        work.broker.kill()
    print(work.summary())
    if work.counts["differences"]:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
