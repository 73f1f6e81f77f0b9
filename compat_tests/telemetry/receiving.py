"""Both brokers with a receiver: Apache Kafka with one that writes to a file, kbroker with its metrics page."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from compat_tests.harness.brokers import ApacheKafka, KBroker
from compat_tests.harness.jvm import BRIEF
from kbroker.metrics.otlp import read_metrics

HERE: Final = Path(__file__).parent
_JAVAC_S: Final = 60


@dataclass(frozen=True)
class Received:
    """One push that Apache Kafka's receiver has received."""

    instance_id: str
    terminating: bool
    interval_ms: int
    data: bytes


class ReceivingKafka(ApacheKafka):
    """Apache Kafka with Writes.java as its metrics reporter."""

    def __init__(self, libs: Path, directory: Path) -> None:
        super().__init__(libs, directory, {"metric.reporters": "Writes"})
        directory.mkdir(parents=True, exist_ok=True)
        self._file = directory / "received"
        self._reporter = directory / "classes"
        command = ["javac", "-cp", f"{libs}/*", "-d", str(self._reporter), str(HERE / "Writes.java")]
        subprocess.run(command, check=True, timeout=_JAVAC_S, capture_output=True)

    def _java(self, *arguments: str) -> list[str]:
        command = super()._java(f"-Dtelemetry.file={self._file}", *arguments)
        command[command.index("-cp") + 1] += f":{self._reporter}"
        return command

    def received(self) -> list[Received]:
        """Return all pushes that were received so far."""
        if not self._file.exists():
            return []
        whole = self._file.read_text().rpartition("\n")[0]
        rows = [line.split(" ") for line in whole.splitlines()]
        return [Received(row[0], row[1] == "true", int(row[2]), bytes.fromhex(row[3])) for row in rows]

    def names_of(self, instance_id: str) -> set[str]:
        """Return the names of the metrics that a client has pushed, in the form of kbroker's metrics page."""
        pushes = [each for each in self.received() if each.instance_id == instance_id]
        return {point.name for each in pushes for point in read_metrics(each.data).points}


class ReceivingKBroker(KBroker):
    """kbroker with its metrics page."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--metrics", "127.0.0.1:0"]

    def page(self, **labels: str) -> Mapping[str, float]:
        """Return the values of all samples that have these labels, by name; for each name the last value."""
        with urllib.request.urlopen(f"{self.facts['metrics']}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {each.name: each.value for each in samples if labels.items() <= each.labels.items()}

    def names_of(self, instance_id: str) -> set[str]:
        """Return the names of the metrics that the page shows of a client."""
        return {name for name in self.page(client_instance_id=instance_id) if name != "kbroker_telemetry_client_info"}


@contextmanager
def java_producer(libs: Path, bootstrap: str, topic: str, client_id: str) -> Iterator[str]:
    """Run a producer of Apache Kafka during the block; yields its client instance id."""
    command = ["java", "-Xmx200M", *BRIEF, "-cp", f"{libs}/*"]
    command += [str(HERE / "Pushes.java"), bootstrap, topic, client_id]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(30) == 0
        finally:
            process.kill()
