"""The pipeline's jobs as the tests run them: in the one Spark session, with folders that are removed afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compat_tests.pipeline.topics import create, put
from compat_tests.spark.session import spark
from kbroker.admin.connection import Connection
from kbroker.admin.registry_schemas import RegistryPlace
from kbroker.pipeline.archive.archive import Archive, ArchiveOptions
from kbroker.pipeline.archive.optimize import Optimization
from kbroker.pipeline.archive.store import Store
from kbroker.pipeline.archive.verify import Verification
from kbroker.pipeline.decoding.topics import DecodedTopics
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka.cluster import Cluster
from kbroker.pipeline.replay.replay import Replay, ReplayOptions
from kbroker.pipeline.spark.session import configure
from kbroker.pipeline.visits.lookup import read_lookup
from kbroker.pipeline.visits.recount import differences, recount_days, require_same, state_of, table_rows
from kbroker.pipeline.visits.rules import VisitRules
from kbroker.pipeline.visits.stream import Visits, VisitsOptions


class Steps:
    """Collects the progress messages of a job."""

    def __init__(self) -> None:
        self.records: list[int] = []

    def step(self, records: int, left: int | None, **facts: Any) -> None:
        del left, facts
        self.records.append(records)


@dataclass
class Jobs:
    """Runs jobs against one cluster; files are below `folder`."""

    bootstrap: str
    folder: Path
    said: list[str] = field(default_factory=list)
    archiving: type[Archive] = Archive

    session: Any = None
    """A SparkSession other than that of the tests."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """A client's settings, in the form that the verbs use."""

    def __post_init__(self) -> None:
        self.session = self.session or configure(spark().newSession())
        self.cluster = Cluster(Connection(self.bootstrap, self.settings))

    def archive(
        self,
        topics: str | None,
        to: str,
        checkpoint: str = "checkpoint",
        pattern: str | None = None,
        decoding: DecodedTopics | None = None,
        **options: Any,
    ) -> list[int]:
        """Archive the current records; returns the number of records of each batch."""
        steps = Steps()
        names = () if topics is None else tuple(topics.split(","))
        chosen = ArchiveOptions(names, pattern, self.at(to), self.at(checkpoint), **options)
        self.archiving(self.session, self.cluster, chosen, steps, decoding).run()
        return steps.records

    def verify(self, to: str, *topics: str) -> dict[str, Any]:
        return Verification(self.session, self.cluster, self.at(to), topics).run().encode()

    def optimize(self, to: str, target: int = 1 << 20) -> tuple[int, int]:
        return Optimization(self.session, self.at(to), target).run()

    def replay(self, to: str, topic: str, **options: Any) -> int:
        """Replay into a topic; returns the number of records sent."""
        sent: int = self.replaying(to, topic, **options)()
        return sent

    def replaying(self, to: str, topic: str, kind: type[Replay] = Replay, **options: Any) -> Any:
        chosen = ReplayOptions(self.at(to), topic, **options)
        job = kind(self.session, self.cluster, chosen, Steps(), self.said.append)

        def run() -> int:
            job.run()
            return job.records

        return run

    def visits(
        self,
        topic: str,
        to: str = "table",
        checkpoint: str = "visits",
        registry: RegistryPlace | None = None,
        **options: Any,
    ) -> Visits:
        """Count the visits in the current records; the numbers go to `table`, the state to `visits`."""
        places = (self.at(to), f"{topic}-visits", self.at(checkpoint), f"{topic}-malformed")
        chosen = VisitsOptions(topic, self.at("lookup.csv"), *places, **options)
        job = Visits(self.session, self.cluster, chosen, Steps(), registry=registry)
        job.run()
        return job

    def recount(
        self,
        to: str,
        topic: str,
        rules: VisitRules,
        day: str | None = None,
        registry: RegistryPlace | None = None,
    ) -> list[dict[str, Any]]:
        lookup = read_lookup(self.session, self.at("lookup.csv"))
        state = state_of(self.session, self.at("visits"))
        require_same(self.session, self.at(to), topic, lookup, rules, self.at("visits"), state)
        return recount_days(self.session, self.at(to), topic, lookup, rules, state.set_clocks, day, registry)

    def differences(self, counted: list[dict[str, Any]]) -> list[str]:
        return differences(counted, self.table(), None)

    def table(self) -> list[dict[str, Any]]:
        """Return the contents of the stream's table."""
        return table_rows(self.session, self.at("table"))

    def store(self, to: str) -> Store:
        return Store(self.session, self.at(to))

    def at(self, name: str) -> str:
        return str(self.folder / name)


@contextmanager
def jobs(bootstrap: str) -> Iterator[Jobs]:
    """Yield jobs whose files are removed at the end."""
    with tempfile.TemporaryDirectory(prefix="pipeline-") as folder:
        yield Jobs(bootstrap, Path(folder))


@contextmanager
def archived(bootstrap: str, topic: str, number: int) -> Iterator[Jobs]:
    """Yield jobs with a new topic of `count` records in their archive "archive"."""
    create(bootstrap, topic)
    put(bootstrap, topic, 0, number)
    with jobs(bootstrap) as job:
        job.archive(topic, "archive")
        yield job


def refused(action: Any, *arguments: Any, **options: Any) -> str:
    """Return the line with which a job refuses to continue."""
    try:
        action(*arguments, **options)
    except PipelineError as err:
        return str(err)
    raise AssertionError("the job was not refused")


def without(line: str, job: Jobs) -> str:
    """Return a line without the parts that differ from run to run."""
    return line.replace(str(job.folder), "FOLDER").replace(job.bootstrap, "BROKER")
