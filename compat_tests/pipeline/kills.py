"""Each job's driver is killed at a step of its change, on both brokers; after the next run each record is there once.

The short form of `python -m tests.crash.pipeline`, which kills for long and at random.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

from compat_tests.harness.scenarios import Scenarios
from compat_tests.pipeline.jobs import Jobs, jobs
from compat_tests.pipeline.processes import ended, start_verb
from compat_tests.pipeline.scenarios import put_events, sums
from compat_tests.pipeline.topics import BASE_MS, create, put, records, values
from compat_tests.pipeline.visit_model import lookup_text, some_events
from kbroker.failpoints import VARIABLE
from kbroker.pipeline.visits.rules import VisitRules

scenarios = Scenarios("pipeline")


def killed(job: Jobs, failpoint: str, *arguments: str, tables: bool = False) -> None:
    """Run a verb until it reaches a failpoint, where it is killed; the JVM of its driver is killed too."""
    settings: Any = {"stderr": subprocess.PIPE, "environment": {VARIABLE: failpoint}, "tables": tables}
    verb = start_verb(*arguments, "--bootstrap", job.bootstrap, **settings)
    status, said = ended(verb)
    assert status == -signal.SIGKILL, said


@scenarios.add
def a_killed_driver_costs_and_doubles_nothing(bootstrap: str, unique: str) -> object:
    create(bootstrap, unique)
    put(bootstrap, unique, 0, 900)
    with jobs(bootstrap) as job:
        place = ("--to", job.at("archive"), "--checkpoint", job.at("checkpoint"))
        killed(job, "archive.moved:5", "archive", "--topics", unique, *place, "--batch-records", "300")
        put(bootstrap, unique, 900, 100)
        job.archive(unique, "archive", batch_records=300)
        report = job.verify("archive")
        copy = f"{unique}-copy"
        replay = ("--from", job.at("archive"), "--to-topic", copy, "--exactly-once", "--slice-records", "300")
        killed(job, "replay.sent:2", "replay", *replay)
        sent = job.replay("archive", copy, exactly_once=True, slice_records=300)
        job.archive(copy, "again", "other")
        again = job.verify("again")
        whole = [records(bootstrap, topic, timestamps=False) for topic in (unique, copy)]
        assert whole[0] == whole[1]
        return [sums(report), report["faults"], sent, len(again["partitions"]), again["faults"]]


@scenarios.add
def a_killed_count_goes_on(bootstrap: str, unique: str) -> object:
    create(bootstrap, unique, partitions=3)
    found = some_events(seed=7, number=900, begin_ms=BASE_MS, partitions=3)
    put_events(bootstrap, unique, found)
    with jobs(bootstrap) as job:
        lookup = Path(job.at("lookup.csv"))
        lookup.write_text(lookup_text())
        places = ("--lookup", str(lookup), "--to", job.at("table"), "--checkpoint", job.at("visits"))
        killed(job, "visits.committed:2", "visits", "--topic", unique, *places, "--batch-records", "300")
        counts = job.visits(unique).state.counts
        job.archive(unique, "archive")
        rows = job.recount("archive", unique, VisitRules())
        newest = {key for part in values(bootstrap, f"{unique}-visits", 1) for key, _ in part}
        return [counts, job.differences(rows), len(newest), [row["visits"] for row in rows]]
