"""Jobs on a cluster, one after another in one Spark: a module to run, which prints what each returned.

    python -m compat_tests.pipeline.cluster_driver MASTER BOOTSTRAP FOLDER TOPIC

FOLDER contains `archive`, `table`, `visits` and `lookup.csv` of earlier jobs with TOPIC. The caller kills a worker
while the slow replay sends.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compat_tests.pipeline.cluster import EXECUTOR_MEMORY, WAIT_S
from compat_tests.pipeline.jobs import Jobs, refused
from compat_tests.spark.session import connector_jars
from kbroker.pipeline.replay.replay import Replay
from kbroker.pipeline.spark.session import SparkOptions, open_session
from kbroker.pipeline.visits.rules import VisitRules

CONF = {
    "spark.executor.memory": EXECUTOR_MEMORY,
    "spark.driver.memory": "700m",
    "spark.sql.shuffle.partitions": "2",
    # One task reads what is sent: so a worker without that task can be lost, and nothing else is lost with it.
    "spark.sql.files.minPartitionNum": "1",
}


class Slow(Replay):
    """A replay that sends each record slowly."""

    def _sink(self, frame: Any) -> None:
        from pyspark.sql import functions as f

        slow = f.expr("reflect('java.lang.Thread', 'sleep', 10L)").isNotNull()
        super()._sink(frame.withColumn("value", f.when(slow, f.col("value"))))


def main(master: str, bootstrap: str, folder: str, topic: str) -> None:
    options = SparkOptions(master, CONF, tuple(connector_jars()), retries=False)
    with open_session(options, "several jobs") as session:
        await_executors(session, 2)
        job = Jobs(bootstrap, Path(folder), session=session)
        rows = job.recount("archive", topic, VisitRules())
        _tell("recount", lambda: rows)
        _tell("differences", lambda: job.differences(rows))
        _tell("verify", lambda: job.verify("archive"))
        _tell("optimize", lambda: job.optimize("archive"))
        _tell("kept", lambda: job.replay("archive", f"{topic}-kept", keep_timestamps=True, exactly_once=True))
        _tell("not shared", lambda: refused(job.archive, topic, "/proc/self/cwd/own", "other"))
        _tell("about to send", lambda: session.sparkContext.applicationId)
        slow = job.replaying("archive", f"{topic}-again", Slow, exactly_once=True)
        _tell("lost", lambda: refused(slow))
        _tell("again", lambda: job.replay("archive", f"{topic}-again", exactly_once=True))


def await_executors(session: Any, number: int) -> None:
    """Wait until there are `count` executors."""
    tracker = session.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + WAIT_S
    while len(tracker.getExecutorInfos()) <= number:  # the driver counts as one more
        assert time.monotonic() < deadline, f"there are no {number} executors"
        time.sleep(0.1)


def _tell(name: str, job: Callable[[], object]) -> None:
    print(json.dumps([name, job()]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
