"""A Spark standalone cluster on this machine: a master and workers as processes, on loopback.

Owns their start, their state, and their end. Each is the leader of its own process session, and every process that it
starts (executors, their Python) stays in that session. So ending the session ends them all, whatever a test does. Never
runs a job.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from compat_tests.harness.jvm import BRIEF

HOST: Final = "127.0.0.1"
WAIT_S: Final = 90
EXECUTOR_MEMORY: Final = "600m"
BRIEF_JVM: Final = {"JDK_JAVA_OPTIONS": " ".join(BRIEF)}
"""The environment of JVMs that live for seconds; executors inherit it."""
_CLASSES: Final = "org.apache.spark.deploy"


class Daemon:
    """A master or a worker; `ready` finds a line in its log."""

    def __init__(self, folder: Path, name: str, environment: Mapping[str, str], *arguments: str) -> None:
        import pyspark

        home = Path(pyspark.__path__[0])
        self.name = name
        self._log = folder / f"{name}.log"
        own = {"SPARK_HOME": str(home), "SPARK_CONF_DIR": str(folder), "SPARK_LOCAL_IP": HOST}
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **BRIEF_JVM, **own, "SPARK_DAEMON_MEMORY": "256m", **environment},
                start_new_session=True,
            )

    def ready(self, pattern: str) -> re.Match[str]:
        """Wait until the log contains a matching line, and return the match."""
        deadline = time.monotonic() + WAIT_S
        while (found := re.search(pattern, self.said())) is None:
            assert self._process.poll() is None, f"the {self.name} ended:\n{self.said()[-2000:]}"
            assert time.monotonic() < deadline, f"the {self.name} is not ready:\n{self.said()[-2000:]}"
            time.sleep(0.05)
        return found

    def said(self) -> str:
        """Return the log so far."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """Kill all processes of the session, and wait until none is left."""
        deadline = time.monotonic() + WAIT_S
        while members := _members(self._process.pid):
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            assert time.monotonic() < deadline, f"these do not end: {members}"
            time.sleep(0.02)
        self._process.wait(WAIT_S)


def _members(session: int) -> list[int]:
    """Return the processes of a session that have not ended: its leader and the leader's children."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = each.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(each.parent.name))
    return found


class StandaloneCluster:
    """A master at `url`, and workers of one core each; their files are below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: list[Daemon] = []
        self.url = ""

    def start(self, workers: int) -> None:
        """Start the master, then the workers, and wait until the master knows them all."""
        master = self._add("master", "master.Master", "--port", "0", "--webui-port", "0")
        self.url = master.ready(r"Starting Spark master at (spark://\S+)")[1]
        for number in range(workers):
            self.launch_worker(number)
        for number in range(workers):
            self.await_worker(number)

    def launch_worker(self, number: int) -> None:
        """Start another worker; they are numbered from 0."""
        work = ("--work-dir", str(self._work_of(number)), "--webui-port", "0", "--port", "0")
        self._add(f"worker-{number}", "worker.Worker", "--cores", "1", "--memory", "1g", *work, self.url)

    def await_worker(self, number: int) -> None:
        """Wait until the master knows a worker."""
        self._daemons[number + 1].ready("Successfully registered with master")

    def kill_worker(self, number: int) -> None:
        """End a worker and its executors by force."""
        self._daemons[number + 1].kill()

    def applications(self) -> dict[str, str]:
        """Return the names of the applications that the master has registered, by id, in the order of registration."""
        found = re.findall(r"Registered app (.+) with ID (\S+)", self._daemons[0].said())
        return {app: name for name, app in found}

    def stages_of(self, number: int, application: str) -> set[int]:
        """Return the stages whose tasks a worker's executors have begun."""
        logs = self._work_of(number).glob(f"{application}/*/stderr")
        begun = r"Running task \d+\.\d+ in stage (\d+)\."
        return {int(stage) for log in logs for stage in re.findall(begun, log.read_text(errors="replace"))}

    def _work_of(self, number: int) -> Path:
        return self._folder / f"work-{number}"

    def kill(self) -> None:
        """Kill the whole cluster."""
        for each in reversed(self._daemons):
            each.kill()

    def _add(self, name: str, kind: str, *arguments: str) -> Daemon:
        environment = {"SPARK_LOCAL_DIRS": str(self._folder / "local"), "PYTHONPATH": str(self._without_kbroker())}
        daemon = Daemon(self._folder, name, environment, f"{_CLASSES}.{kind}", "--host", HOST, *arguments)
        self._daemons.append(daemon)
        return daemon

    def _without_kbroker(self) -> Path:
        """Return a folder whose empty `kbroker` package hides kbroker from the executors with the tests' Python."""
        package = self._folder / "python" / "kbroker"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("raise ImportError('kbroker is not installed here')\n")
        return package.parent


@contextmanager
def standalone(workers: int = 2) -> Iterator[StandaloneCluster]:
    """Yield a cluster that is ready; everything is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="spark-cluster-") as folder:
        cluster = StandaloneCluster(Path(folder))
        atexit.register(cluster.kill)  # a scenario that takes too long is left, and its thread never ends
        try:
            cluster.start(workers)
            yield cluster
        finally:
            cluster.kill()
            atexit.unregister(cluster.kill)
        assert not _naming(folder), "something of the cluster lives on"


def _naming(text: str) -> list[str]:
    """Return the command lines of the processes that contain a text."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(each.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if text in line]
