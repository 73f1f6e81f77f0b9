"""Both brokers as processes: Apache Kafka 4.4.0 and kbroker, on loopback, each with a private data directory.

Owns starting, waiting until ready, and stopping by process id. Both have the same settings (`COMMON`); settings that
only one of them needs are in its class. Never speaks Kafka's protocol.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from compat_tests.harness.jvm import BRIEF, ClassArchive, run_java

HERE: Final = Path(__file__).parent
START_TIMEOUT_S: Final = 60
STOP_TIMEOUT_S: Final = 30
CLUSTER_ID: Final = "5L6g3nShT-eMCtK--X86sw"
_returned: Final[set[int]] = set()  # by free_port

# One broker, groups without an initial delay, few internal partitions: settings that make tests fast on both sides.
COMMON: Final[Mapping[str, str]] = {
    "node.id": "1",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.initial.task.delay.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
}
# Settings that say where a broker's data and addresses are, and so differ between any two.
PRIVATE: Final = frozenset(
    {
        "advertised.listeners",
        "controller.listener.names",
        "controller.quorum.voters",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "log.dirs",
        "process.roles",
    }
)


class BrokerFailed(Exception):  # noqa: N818 - what happened
    """A broker did not start, or ended unexpectedly."""


def free_port() -> int:
    """Return a loopback port that nobody listens on, and that this process has not returned before.

    The kernel's own choice (port 0) can be the same twice, and a connection of any process can get it before the broker
    binds it. So the port is drawn from below the range that Linux and macOS use for connections.
    """
    while True:
        port = 10_000 + secrets.randbelow(22_768)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _returned:
                _returned.add(port)
                return port


class BrokerProcess(ABC):
    """A broker in its own process; a context manager that starts and stops it."""

    name: str

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.settings = {**COMMON, **(settings or {})}
        self.data_dir = directory / "data"
        self.log_file = directory / "broker.log"
        self.bootstrap = ""
        self._log_begin = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._classes: ClassArchive | None = None

    @abstractmethod
    def _command(self) -> list[str]:
        """Prepare the directory and return the command that runs the broker in the foreground."""

    @abstractmethod
    def _ready(self) -> bool:
        """Whether the broker answers clients; sets `bootstrap`."""

    def _environment(self) -> dict[str, str]:
        """Return the process's environment: settings come only from here, not from the test run's environment."""
        return {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        command = self._command()
        with open(self.log_file, "ab") as log:
            self._log_begin = log.tell()
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=self.directory, env=self._environment()
            )

    def start(self) -> Self:
        """Start the broker and wait until it answers."""
        self.launch()
        return self.await_ready()

    def await_ready(self) -> Self:
        """Wait until the broker answers; if it does not answer in time, it is stopped."""
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready():
            if self._process.poll() is not None:
                raise BrokerFailed(f"{self.name} ended with {self._process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.stop()
                raise BrokerFailed(f"{self.name} was not ready after {START_TIMEOUT_S} s:\n{self.log_tail()}")
            time.sleep(0.002)
        return self

    def ask_to_stop(self) -> None:
        """Ask the broker to stop, without waiting for it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """Stop the broker with a clean shutdown, or by force if that fails; return its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_TIMEOUT_S)
        self._let_classes_go()
        return process.returncode

    def kill(self) -> None:
        """Kill the broker immediately, as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(STOP_TIMEOUT_S)
            self._let_classes_go()

    def _let_classes_go(self) -> None:
        if self._classes is not None:
            self._classes.ended()

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    def died_by_kill(self) -> bool:
        """Wait until the process has ended; return whether SIGKILL ended it."""
        assert self._process is not None, f"{self.name} is not running"
        try:
            return self._process.wait(STOP_TIMEOUT_S) == -signal.SIGKILL
        except subprocess.TimeoutExpired:
            return False

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines that the broker printed."""
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return "\n".join(line[:500] for line in text.splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class ApacheKafka(BrokerProcess):
    """Apache Kafka 4.4.0 as a KRaft node that is both broker and controller."""

    name = "apache"

    def __init__(self, libs: Path, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, settings)
        self._libs = libs
        self._port = 0

    def _java(self, *arguments: str) -> list[str]:
        self._classes = ClassArchive(self._libs, "kafka")
        options = ("-Xmx512M", "-Xms128M", *BRIEF, *self._classes.options)
        return ["java", *options, "-cp", f"{self._libs.resolve()}/*", *arguments]

    def _addresses(self) -> tuple[int, int, str]:
        """Return the ports for clients and for the quorum in the next run, and the quorum's voters."""
        controller = free_port()
        return free_port(), controller, f"{self.settings['node.id']}@127.0.0.1:{controller}"

    def _command(self) -> list[str]:
        self._port, controller, voters = self._addresses()
        properties = self.directory / "server.properties"
        settings = {
            **self.settings,
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": voters,
            "log.dirs": str(self.data_dir),
        }
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        if not (self.data_dir / "meta.properties").exists():
            format_ = ("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties))
            status, out, err = run_java(self._libs, *format_)
            if status:
                raise BrokerFailed(f"formatting Apache Kafka's storage failed:\n{out}{err}")
        return self._java(f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}", "kafka.Kafka", str(properties))

    def _ready(self) -> bool:
        self.bootstrap = f"127.0.0.1:{self._port}"
        with open(self.log_file, "rb") as log:
            log.seek(self._log_begin)
            return b"Kafka Server started" in log.read()


class KBroker(BrokerProcess):
    """kbroker from this checkout, in the interpreter that runs the tests."""

    name = "kbroker"
    facts: Mapping[str, str]
    """What the broker wrote about itself when it became ready."""

    def _command(self) -> list[str]:
        self.ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "kbroker", "start", "--ready-file", str(self.ready_file)]
        command += ["--listen", "127.0.0.1:0", "--data-dir", str(self.data_dir)]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        return command

    @property
    def ready_file(self) -> Path:
        """The file in which the broker reports that it is ready, and its addresses."""
        return self.directory / "ready.json"

    def _ready(self) -> bool:
        try:
            told = json.loads(self.ready_file.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return False
        self.bootstrap = told["bootstrap_servers"]
        self.facts = told
        return True
