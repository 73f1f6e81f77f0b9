"""SIGTERM and SIGINT end a job cleanly: its status shows it, nothing is printed, and the next run continues."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from compat_tests.harness.brokers import BrokerProcess
from compat_tests.pipeline.jobs import Jobs
from compat_tests.pipeline.processes import WAIT_S, ended, start_verb
from compat_tests.pipeline.topics import create, put
from compat_tests.spark.session import connector_jars
from tests.tries import FORM

pytestmark = [
    pytest.mark.spark,
    # py4j leaves it to the garbage collector to close the sockets of its threads.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ROUNDS = 5 if FORM == "long" else 1


def job(bootstrap: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a verb whose scratch folders are created below `folder`."""
    place = ("--bootstrap", bootstrap)
    return start_verb(*arguments, *place, stderr=subprocess.PIPE, environment={"TMPDIR": str(folder / "tmp")})


def first_step(process: subprocess.Popen[str]) -> int:
    """Wait for a job's first progress line; returns the number of records in it."""
    assert process.stdout is not None
    return int(json.loads(process.stdout.readline())["records"])


def test_a_job_ends_at_a_signal(brokers: dict[str, BrokerProcess], tmp_path: Path) -> None:
    bootstrap = brokers["kbroker"].bootstrap
    (tmp_path / "tmp").mkdir()
    topic, copy = "pipeline-signals", "pipeline-signals-copy"
    create(bootstrap, topic)
    put(bootstrap, topic, 0, 3000)
    archive = ("archive", "--topics", topic, "--to", str(tmp_path / "archive"), "--checkpoint", str(tmp_path / "c"))
    streaming = job(bootstrap, tmp_path, *archive, "--every", "1s", "--batch-records", "500")
    first_step(streaming)
    streaming.send_signal(signal.SIGTERM)
    assert ended(streaming) == (128 + signal.SIGTERM, "")
    assert not (tmp_path / "archive" / "_lock.json").exists()
    Jobs(bootstrap, tmp_path).archive(topic, "archive", "c")
    # At this rate the replay would take a day.
    replay = ("replay", "--from", str(tmp_path / "archive"), "--to-topic", copy, "--speed", "1x")
    replaying = job(bootstrap, tmp_path, *replay)
    first_step(replaying)
    os.killpg(replaying.pid, signal.SIGINT)
    assert ended(replaying) == (128 + signal.SIGINT, "")
    assert [name for name in os.listdir(tmp_path / "tmp") if name.startswith("kbroker-")] == []


def await_that(done: Callable[[], object], what: str) -> None:
    """Wait until a condition is true."""
    give_up = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < give_up, what
        time.sleep(0.05)


def has_begun(folder: Path) -> bool:
    """Whether a job has come to the point where it starts Spark."""
    return any((folder / "tmp").glob("kbroker-spark-*"))


def is_gone(group: int) -> bool:
    """Whether no process is left in a process group."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def java_of(parent: int) -> int:
    """Return the process of a job's JVM."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, fields = stat.read_text().rpartition(")")
            if name.endswith("(java") and int(fields.split()[1]) == parent:
                return int(stat.parent.name)
    raise AssertionError("the job has no JVM")


def test_a_job_ends_at_a_signal_while_spark_starts(brokers: dict[str, BrokerProcess], tmp_path: Path) -> None:
    bootstrap = brokers["kbroker"].bootstrap
    topic = "pipeline-signals-start"
    create(bootstrap, topic)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    archive = ("archive", "--topics", topic, "--to", str(tmp_path / "archive"), "--checkpoint", str(tmp_path / "c"))
    for number in (signal.SIGTERM, signal.SIGINT) * ROUNDS:
        folder = tmp_path / str(moments.random())
        (folder / "tmp").mkdir(parents=True)
        starting = job(bootstrap, folder, *archive, "--every", "1m")
        await_that(partial(has_begun, folder), "the job does not start Spark")
        moment = moments.uniform(0, 5)
        print(f"{number.name} after {moment} s")
        time.sleep(moment)
        starting.send_signal(number)
        assert ended(starting) == (128 + number, "")
        await_that(partial(is_gone, starting.pid), "a process is left")
        assert [name for name in os.listdir(folder / "tmp") if name.startswith("kbroker-")] == []


def test_a_jvm_that_is_killed_is_told(brokers: dict[str, BrokerProcess], tmp_path: Path) -> None:
    bootstrap = brokers["kbroker"].bootstrap
    (tmp_path / "tmp").mkdir()
    topic = "pipeline-signals-jvm"
    create(bootstrap, topic)
    put(bootstrap, topic, 0, 100)
    archive = ("archive", "--topics", topic, "--to", str(tmp_path / "archive"), "--checkpoint", str(tmp_path / "c"))
    streaming = job(bootstrap, tmp_path, *archive, "--every", "1s")
    first_step(streaming)
    os.kill(java_of(streaming.pid), signal.SIGKILL)
    assert ended(streaming) == (1, "kbroker: Spark's JVM ended while the job ran (by signal 9)\n")
    assert not (tmp_path / "archive" / "_lock.json").exists()
    assert [name for name in os.listdir(tmp_path / "tmp") if name.startswith("kbroker-")] == []


def test_no_folder_is_left_when_spark_cannot_start(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as scratch:
        (Path(scratch) / "tmp").mkdir()
        optimize = ["optimize", "--at", str(tmp_path), "--master", "yarn:nonsense"]
        command = [sys.executable, "-m", "kbroker", "pipeline", *optimize, "--jars", connector_jars()[0]]
        environment = {**os.environ, "TMPDIR": f"{scratch}/tmp"}
        found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=WAIT_S, check=False)
        assert found.returncode == 1
        assert len(found.stderr.splitlines()) == 1
        assert [name for name in os.listdir(f"{scratch}/tmp") if name.startswith("kbroker-")] == []
