"""What becomes of an archive when its topics come, go, or change while a job looks at them; on both brokers."""

from __future__ import annotations

from typing import Any

from compat_tests.harness.scenarios import Scenarios
from compat_tests.pipeline.jobs import Jobs, jobs, refused, without
from compat_tests.pipeline.topics import create, delete_topic, put
from kbroker.pipeline.kafka import Cluster
from kbroker.pipeline.manifest import Manifest
from kbroker.pipeline.store import Store
from kbroker.pipeline.verify import Verification

scenarios = Scenarios("pipeline")


@scenarios.add
def topics_come_and_go(bootstrap: str, unique: str) -> object:
    # By Java's rules (?<name>...) is a group, by Python's it is a mistake.
    pattern = rf"(?<all>{unique}-[a-z])"
    create(bootstrap, f"{unique}-a", f"{unique}-b")
    put(bootstrap, f"{unique}-a", 0, 20)
    put(bootstrap, f"{unique}-b", 0, 20)
    with jobs(bootstrap) as job:
        seen: list[object] = [refused(by, job, f"{unique}("), refused(by, job, f"{unique}-none"), sum(by(job, pattern))]
        create(bootstrap, f"{unique}-c", f"{unique}-1")
        put(bootstrap, f"{unique}-c", 0, 7)
        put(bootstrap, f"{unique}-a", 20, 1)
        seen.append(sum(by(job, pattern)))
        delete_topic(bootstrap, f"{unique}-b")
        put(bootstrap, f"{unique}-a", 21, 2)
        seen.append(refused(by, job, pattern))
        seen.append(sum(by(job, pattern, allow_gaps=True)))
        report = job.verify("archive")
        states = [[state["topic"], state["records"], state["compared"]] for state in report["partitions"]]
        lines = [without(line, job).replace("\n", " ") if isinstance(line, str) else line for line in seen]
        return [lines, states, report["faults"]]


def by(job: Jobs, pattern: str, **options: Any) -> list[int]:
    return job.archive(None, "archive", pattern=pattern, **options)


class Forgetful(Cluster):
    """Says of every topic that it is not compacted."""

    def compacted(self, topics: Any) -> set[str]:
        del topics
        return set()


@scenarios.add
def records_that_vanish_need_a_reason(bootstrap: str, unique: str) -> object:
    """A record that is in the archive and not in the topic: the cleaner may have taken it, and nobody else."""
    create(bootstrap, unique, configs={"cleanup.policy": "compact"})
    put(bootstrap, unique, 0, 40)
    with jobs(bootstrap) as job:
        job.archive(unique, "archive")
        manifest = job.store("archive").load()
        whole = job.verify("archive")["faults"]
        # As the cleaner leaves it, without waiting for one: the job sees fewer records upstream.
        compacted = Fewer(job.session, job.cluster, job.at("archive"), ()).run()
        plain = Fewer(job.session, Forgetful(job.cluster.clients), job.at("archive"), ()).run()
        gone = [[state.deleted_upstream, state.compared] for state in compacted.partitions]
        return [whole, compacted.faults, gone, plain.faults, len(manifest.ranges)]


class Fewer(Verification):
    """Finds upstream only what has an odd offset."""

    def _upstream(self, common: Any) -> Any:
        return super()._upstream(common).where("offset % 2 = 1")


class Disturbed(Verification):
    """Another job archives once, in the middle of the first look."""

    def __init__(self, job: Jobs, disturb: Any) -> None:
        super().__init__(job.session, job.cluster, job.at("archive"), ())
        self._disturb = disturb
        self.looks = 0

    def _check_files(self, manifest: Manifest) -> bool:
        self.looks += 1
        if self.looks == 1:
            self._disturb()
        return super()._check_files(manifest)


@scenarios.add
def an_archive_is_verified_while_it_grows(bootstrap: str, unique: str) -> object:
    create(bootstrap, unique)
    put(bootstrap, unique, 0, 30)
    with jobs(bootstrap) as job:
        job.archive(unique, "archive")
        put(bootstrap, unique, 30, 30)
        growing = Disturbed(job, lambda: job.archive(unique, "archive"))
        seen = [growing.run().faults, growing.looks]
        packed = Disturbed(job, lambda: job.optimize("archive"))
        seen += [packed.run().faults, packed.looks]
        store: Store = job.store("archive")
        wrong = Disturbed(job, lambda: store.files.write("topic=x/date=2026-11-21/part.parquet", "stray"))
        return [*seen, [fault.partition("/")[0] for fault in wrong.run().faults], wrong.looks]
