"""The subjects of the measurements: both brokers and the sink, as processes, with production settings.

Owns start and stop, and the reading of CPU time and memory from outside.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.watchers import Seen
from compat_tests.harness.brokers import ApacheKafka, BrokerProcess, KBroker, free_port
from compat_tests.harness.parts import fetch

SETTINGS = {"log.retention.check.interval.ms": "300000", "log.segment.delete.delay.ms": "60000"}


class TunedKafka(ApacheKafka):
    """Apache Kafka with the JVM options of its own start script (kafka-run-class.sh), heap 1 GB."""

    def _java(self, *arguments: str) -> list[str]:
        tuning = "-server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35"
        heap = ["-Xmx1G", "-Xms1G", *tuning.split(), "-XX:+ExplicitGCInvokesConcurrent"]
        return ["java", *heap, "-cp", f"{self._libs}/*", *arguments]


def kafka(directory: Path, settings: Mapping[str, str]) -> TunedKafka:
    return TunedKafka(fetch("kafka"), directory, settings)


class OtherKBroker(KBroker):
    """Another checkout of kbroker, which has its own environment in .venv."""

    def __init__(self, directory: Path, settings: Mapping[str, str], checkout: Path) -> None:
        super().__init__(directory, settings)
        self._python = checkout.resolve() / ".venv" / "bin" / "python"

    def _command(self) -> list[str]:
        return [str(self._python), *super()._command()[1:]]


class PureKBroker(KBroker):
    """kbroker as it is after an installation without a compiler."""

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), "KBROKER_PURE_PYTHON": "1"}


SUBJECTS: dict[str, Callable[[Path, Mapping[str, str]], BrokerProcess]] = {
    "kbroker": KBroker,
    "pure": PureKBroker,
    "seen": Seen,
    "kafka": kafka,
}


@contextmanager
def running(
    name: str, checkout: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[BrokerProcess, float]]:
    """Run a subject, or kbroker of another checkout, on an empty directory; yields it and the seconds until ready.

    `settings` are its settings besides those of all subjects.
    """
    told = {**SETTINGS, **(settings or {})}
    with tempfile.TemporaryDirectory(prefix="bench-") as name_of_directory:
        directory = Path(name_of_directory)
        broker = SUBJECTS[name](directory, told) if checkout is None else OtherKBroker(directory, told, checkout)
        if name == "kafka":
            broker._command()  # formats the storage, which is not part of a start
        started = time.perf_counter()
        with broker:
            yield broker, time.perf_counter() - started


@contextmanager
def sink() -> Iterator[tuple[str, int]]:
    """Run the sink; yields its address and process id."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.sink", str(port), f"{directory}/sink"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield f"127.0.0.1:{port}", process.pid
        finally:
            process.kill()
            process.communicate()


def cpu_seconds(pid: int) -> float:
    """Return user and system CPU time of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process in MB (10^6 bytes)."""
    return float(psutil.Process(pid).memory_info().rss) / 1e6
