"""Driver and broker are ended again and again while a topic is archived and replayed; each record is there once.

A producer writes to a topic. The driver of `kbroker pipeline archive` is killed at failpoints and at random moments,
then the broker is, under a driver that goes on. At the end `verify` must have no fault. The archive is replayed into
another topic, with the same ends, and that topic is archived: both archives must hold the same records.

Run as a module for the long form: `python -m tests.crash.pipeline --kills 20 --seed 7`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compat_tests.harness.brokers import KBroker, free_port
from compat_tests.spark.session import connector_jars
from kbroker.failpoints import VARIABLE
from kbroker.pipeline.replay import HEADER

PARTITIONS = 3
TOPIC, COPY = "source", "copy"
PATIENCE_S = 300.0
ARCHIVE_STEPS = ("archive.staged", "archive.committed", "archive.moved", "archive.placed")
REPLAY_STEPS = ("replay.begun", "replay.sent")
BATCH = 2_000


class Broker(KBroker):
    """A broker that comes back at the same address."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._address = f"127.0.0.1:{free_port()}"

    def _command(self) -> list[str]:
        return [self._address if part == "127.0.0.1:0" else part for part in super()._command()]


class Feed:
    """Writes numbered records, keyed or not, as long as it is wanted."""

    def __init__(self, bootstrap: str, pace_s: float) -> None:
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0, "linger.ms": 20}
        self._producer = Producer({**settings, "message.timeout.ms": int(PATIENCE_S * 1000)})
        self._pace_s = pace_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.written = 0

    def start(self) -> Feed:
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._ended.wait(self._pace_s):
            self.write(50)

    def write(self, count: int) -> None:
        for number in range(self.written, self.written + count):
            key = f"key-{number % 97}" if number % 5 else None
            headers = [("number", str(number).encode())] if number % 2 else []
            place = number % PARTITIONS
            self._producer.produce(TOPIC, value=f"value-{number}", key=key, partition=place, headers=headers)
        self.written += count
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_S)
        self.flush()


class Driver:
    """A verb of `kbroker pipeline` in a process group of its own."""

    def __init__(self, folder: Path, bootstrap: str, *arguments: str, failpoint: str = "") -> None:
        command = [sys.executable, "-m", "kbroker", "pipeline", *arguments, "--bootstrap", bootstrap]
        command += ["--master", "local[2]", "--jars", ",".join(connector_jars()), "--conf", "spark.driver.memory=700m"]
        environment = {**os.environ, VARIABLE: failpoint}
        self._errors = open(folder / "driver.log", "w+")  # noqa: SIM115 - closed by `end`
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment, start_new_session=True
        )
        self.lines: list[str] = []
        self._begun = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            self._begun.set()
        self._begun.set()

    def begun(self, wait_s: float) -> None:
        """Wait for the first line, at most so long."""
        self._begun.wait(wait_s)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> int:
        """Wait for the driver's own end; returns its status."""
        try:
            return self._process.wait(PATIENCE_S)
        finally:
            self.end(signal.SIGKILL)

    def end(self, number: int) -> None:
        """End the whole group: Python and the JVM."""
        for signal_number in (number, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal_number)
            self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        if not self._errors.closed:
            self._errors.seek(0)
            self.said = self._errors.read()
            self._errors.close()


class Pipeline:
    """The whole run over one folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._rng = random.Random(seed)
        self.broker = Broker(folder / "broker")
        self.counts = Counter[str]()
        self.records = 0

    def run(self, driver_kills: int, broker_kills: int, say: Any = print) -> None:
        self.broker.start()
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS)]).values():
            future.result(30)
        feed = Feed(self.broker.bootstrap, 0.05)
        feed.write(5 * BATCH)
        feed.start()
        archive = ("archive", "--topics", TOPIC, "--to", self._at("archive"), "--checkpoint", self._at("checkpoint"))
        stream = (*archive, "--every", "1s", "--batch-records", str(BATCH))
        try:
            self._kill_drivers(stream, ARCHIVE_STEPS, driver_kills, say)
            self._kill_brokers(stream, broker_kills, say)
        finally:
            feed.stop()
        self._finish(archive)
        self._verify("archive", feed.written)
        replay = ("replay", "--from", self._at("archive"), "--to-topic", COPY, "--exactly-once")
        replay += ("--slice-records", str(max(feed.written // (4 * (driver_kills + broker_kills) + 4), 200)))
        self._kill_drivers(replay, REPLAY_STEPS, driver_kills, say)
        self._kill_brokers(replay, broker_kills, say)
        self._finish(replay)
        again = ("archive", "--topics", COPY, "--to", self._at("again"), "--checkpoint", self._at("other"))
        self._finish(again)
        self._verify("again", feed.written)
        self._compare()
        self.records = feed.written

    def _at(self, name: str) -> str:
        return str(self._folder / name)

    # -- ends ---------------------------------------------------------------------------------------------------

    def _kill_drivers(self, verb: tuple[str, ...], steps: tuple[str, ...], kills: int, say: Any) -> None:
        for number in range(kills):
            step = steps[number // 2 % len(steps)] if number % 2 == 0 else ""
            failpoint = f"{step}:{self._rng.randint(1, 4)}" if step else ""
            driver = Driver(self._folder, self.broker.bootstrap, *verb, failpoint=failpoint)
            if step:
                status = driver.wait()
            else:
                if self._rng.random() < 0.8:
                    driver.begun(PATIENCE_S)
                time.sleep(self._rng.random() * 4)
                driver.end(signal.SIGKILL)
                status = -signal.SIGKILL
            assert status in (-signal.SIGKILL, 0), driver.said
            if status == 0:
                self.counts["ended before its failpoint"] += 1
            else:
                self.counts[f"{verb[0]} killed at {step or 'a moment'}"] += 1
            say(f"  {verb[0]}: driver {number + 1} of {kills} ended, {step or 'at a moment'}")

    def _kill_brokers(self, verb: tuple[str, ...], kills: int, say: Any) -> None:
        driver: Driver | None = None
        for number in range(kills):
            if driver is None or not driver.running:
                self._end(driver)
                driver = Driver(self._folder, self.broker.bootstrap, *verb)
                driver.begun(PATIENCE_S)
            time.sleep(self._rng.random() * 3)
            self.broker.kill()
            self.counts[f"broker killed under {verb[0]}"] += 1
            time.sleep(self._rng.random())
            self.broker.start()
            say(f"  {verb[0]}: broker {number + 1} of {kills} ended")
        self._end(driver)

    def _end(self, driver: Driver | None) -> None:
        """End a driver in whatever state it is; one that gave up must have said why in one line."""
        if driver is None:
            return
        gave_up = not driver.running
        driver.end(signal.SIGKILL)
        if gave_up and driver.said.startswith("kbroker: "):
            self.counts["drivers that gave up"] += 1
            assert len(driver.said.strip().splitlines()) == 1, driver.said

    # -- what must hold -----------------------------------------------------------------------------------------

    def _finish(self, verb: tuple[str, ...]) -> str:
        driver = Driver(self._folder, self.broker.bootstrap, *verb)
        status = driver.wait()
        assert status == 0, driver.said
        return "".join(driver.lines)

    def _verify(self, archive: str, expected: int) -> None:
        report = json.loads(self._finish(("verify", "--from", self._at(archive), "--json")))
        assert report["faults"] == []
        assert sum(state["records"] for state in report["partitions"]) == expected
        assert sum(state["compared"] for state in report["partitions"]) == expected
        self.counts["verified"] += 1

    def _compare(self) -> None:
        """Both archives hold the same records, in the same order in each partition."""
        first, second = (self._rows(name) for name in ("archive", "again"))
        assert [sorted(each) for each in first] == [sorted(each) for each in second]
        moved = sum(one != other for a, b in zip(first, second, strict=True) for one, other in zip(a, b, strict=True))
        self.counts["records in another order"] += moved

    def _rows(self, archive: str) -> list[list[str]]:
        query = """
            select partition, cast(key as varchar), cast(value as varchar),
                   cast(list_filter(headers, lambda h: h.key <> ?) as varchar)
            from read_parquet(?, hive_partitioning = true) order by partition, "offset"
        """
        files = f"{self._at(archive)}/topic=*/*/*.parquet"
        found: list[list[str]] = [[] for _ in range(PARTITIONS)]
        with duckdb.connect() as database:
            for partition, key, value, headers in database.execute(query, [HEADER, files]).fetchall():
                found[partition].append(str((key, value, None if headers == "[]" else headers)))
        return found

    def summary(self) -> str:
        """Return the counts in one line."""
        return f"{self.records:,} records, " + ", ".join(f"{n} {name}" for name, n in sorted(self.counts.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kbroker-pipeline-"))
    print(f"seed {args.seed}, {args.kills} kills each, data in {folder}", flush=True)
    work = Pipeline(folder, args.seed)
    try:
        work.run(args.kills, args.kills, lambda text: print(text, flush=True))
    finally:
        work.broker.kill()
    print(f"each once: {work.summary()}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
