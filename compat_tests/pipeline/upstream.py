"""What happens to an archive when its topics are created, deleted, or changed while a job reads them.

On both brokers.
"""

from __future__ import annotations

from typing import Any

from compat_tests.harness.scenarios import Scenarios
from compat_tests.pipeline.jobs import Jobs, archived, jobs, refused, without
from compat_tests.pipeline.topics import create, delete_records, delete_topic, put
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.manifest import Manifest
from kbroker.pipeline.archive.store import Store
from kbroker.pipeline.archive.verify import Verification
from kbroker.pipeline.kafka.cluster import Cluster
from kbroker.pipeline.replay.replay import Replay

scenarios = Scenarios("pipeline")


@scenarios.add
def topics_come_and_go(bootstrap: str, unique: str) -> object:
    # In Java's regular expressions (?<name>...) is a group; in Python's it is an error.
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
    """Clients that report no topic as compacted."""

    def compacted(self, topics: Any) -> set[str]:
        del topics
        return set()


@scenarios.add
def records_that_vanish_need_a_reason(bootstrap: str, unique: str) -> object:
    """Records that are in the archive and no longer in the topic: only the cleaner may have removed them."""
    create(bootstrap, unique, configs={"cleanup.policy": "compact"})
    put(bootstrap, unique, 0, 40, keyed=True)
    with jobs(bootstrap) as job:
        job.archive(unique, "archive")
        manifest = job.store("archive").load()
        whole = job.verify("archive")["faults"]
        # The state after a cleaner run, without waiting for one: the job sees fewer records upstream.
        compacted = Fewer(job.session, job.cluster, job.at("archive"), ()).run()
        plain = Fewer(job.session, Forgetful(job.cluster.clients), job.at("archive"), ()).run()
        gone = [[state.deleted_upstream, state.compared] for state in compacted.partitions]
        assert len(plain.faults) == len(manifest.ranges) == 2
        return [whole, compacted.faults, gone, plain.faults]


class Fewer(Verification):
    """A job that finds upstream only the records with an odd offset."""

    def _upstream(self, common: Any) -> Any:
        return super()._upstream(common).where("offset % 2 = 1")


class Disturbed(Verification):
    """Another job archives once, in the middle of the first reading."""

    def __init__(self, job: Jobs, disturb: Any) -> None:
        super().__init__(job.session, job.cluster, job.at("archive"), ())
        self._disturb = disturb
        self.looks = 0

    def _check_files(self, manifest: Manifest) -> bool:
        self.looks += 1
        if self.looks == 1:
            self._disturb()
        return super()._check_files(manifest)


class DisturbedLate(Disturbed):
    """The other job archives while files are read for the second time."""

    def _check_files(self, manifest: Manifest) -> bool:
        return Verification._check_files(self, manifest)

    def _check_twice(self, frame: Any) -> None:
        self.looks += 1
        if self.looks == 1:
            self._disturb()
        super()._check_twice(frame)


class Placing(Disturbed):
    """The other job moves its files to their final places after the first reading."""

    def _check_files(self, manifest: Manifest) -> bool:
        if self.looks == 1:
            self._disturb()
        self.looks += 1
        return Verification._check_files(self, manifest)


@scenarios.add
def an_archive_is_verified_while_it_grows(bootstrap: str, unique: str) -> object:
    with archived(bootstrap, unique, 30) as job:
        put(bootstrap, unique, 30, 30)
        growing = Disturbed(job, lambda: job.archive(unique, "archive"))
        seen = [growing.run().faults, growing.looks]
        packed = Disturbed(job, lambda: job.optimize("archive"))
        seen += [packed.run().faults, packed.looks]
        put(bootstrap, unique, 60, 30)
        job.archive(unique, "archive")
        packed_late = DisturbedLate(job, lambda: job.optimize("archive"))
        seen += [packed_late.run().faults, packed_late.looks]
        store: Store = job.store("archive")
        entry = max(store.load().entries, key=lambda each: len(each.files))
        for file in entry.files:
            store.files.move(file.path, f"_staging/{entry.name}/{file.path}")
        placed = Placing(job, lambda: store.place(entry))
        seen += [placed.run().faults, placed.looks > 1]
        wrong = Disturbed(job, lambda: store.files.write("topic=x/date=2026-11-21/part.parquet", "stray"))
        return [*seen, [fault.partition("/")[0] for fault in wrong.run().faults], wrong.looks]


class Deleting(Archive):
    """Records are deleted upstream after the log start offset was read and before the first batch."""

    def _start(self, manifest: Manifest) -> Any:
        delete_records(self._cluster.clients.bootstrap, next(iter(self._topics)), 0, 10)
        return super()._start(manifest)


class Overtaken(Archive):
    """Records are deleted upstream while a batch is read: its first and last records have been read."""

    def _take_in(self, frame: Any, batch: int) -> None:
        delete_records(self._cluster.clients.bootstrap, next(iter(self._topics)), 0, 60)
        super()._take_in(frame.where("partition <> 0 or offset < 20 or offset >= 60"), batch)


@scenarios.add
def what_is_deleted_meanwhile_is_no_silent_gap(bootstrap: str, unique: str) -> object:
    topics = [f"{unique}-start", f"{unique}-middle"]
    create(bootstrap, *topics)
    for topic in topics:
        put(bootstrap, topic, 0, 200)
    with jobs(bootstrap) as job:
        job.archiving = Deleting
        line = refused(job.archive, topics[0], "start")
        job.archiving = Archive
        job.archive(topics[0], "start", "start-checkpoint", allow_gaps=True)
        job.archiving = Overtaken
        job.archive(topics[1], "middle", "middle-checkpoint", allow_gaps=True)
        seen: list[object] = [without(line, job)]
        for place in ("start", "middle"):
            manifest = job.store(place).load()
            gaps = [[p.number, each.start, each.end] for p, found in manifest.gaps.items() for each in found]
            seen.append([gaps, job.verify(place)["faults"]])
        return seen


@scenarios.add
def a_first_batch_that_is_gone_is_a_fault(bootstrap: str, unique: str) -> object:
    create(bootstrap, unique)
    put(bootstrap, unique, 0, 40)
    with jobs(bootstrap) as job:
        job.archive(unique, "archive", batch_records=20)
        store = job.store("archive")
        first = min(store.load().entries, key=lambda entry: entry.ranges[0].start)
        for path in [f"_manifest/{first.name}.json", *(file.path for file in first.files)]:
            store.files.delete(path)
        return job.verify("archive")["faults"]


@scenarios.add
def a_damaged_file_is_told_in_a_line(bootstrap: str, unique: str) -> object:
    with archived(bootstrap, unique, 40) as job:
        path = job.folder / "archive" / next(iter(job.store("archive").load().files))
        raw = path.read_bytes()
        path.write_bytes(b"PAR1" + bytes(len(raw) - 8) + b"PAR1")
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        (fault,) = job.verify("archive")["faults"]
        assert "\n" not in fault
        return fault.partition(":")[0]


@scenarios.add
def one_replay_at_a_time_goes_to_a_topic(bootstrap: str, unique: str) -> object:
    with archived(bootstrap, unique, 40) as job:
        copy = f"{unique}-copy"
        lines: list[str] = []

        class Meeting(Replay):
            """Another replay into the same topic begins while this one sends."""

            def _write(self, frame: Any, replay_id: str) -> None:
                lines.append(refused(job.replay, "archive", copy, exactly_once=True))
                super()._write(frame, replay_id)

        sent = job.replaying("archive", copy, Meeting, exactly_once=True)()
        kept = job.replay("archive", f"{unique}-kept", keep_timestamps=True)
        retention = job.cluster.config(f"{unique}-kept", "retention.ms")
        return [sent, [without(line, job).partition("_replay")[0] for line in lines], kept, retention]
