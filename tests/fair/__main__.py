"""How long a quiet client waits beside each row of the table, and the growth of the broker's memory.

    python -m tests.fair [--kafka | --cluster] [--only TEXT] [--elements N] [--topics N] [--patience SECONDS]

The broker and the quiet client run in separate processes. With `--cluster`, the broker is a cluster of one, and
receives the requests that only brokers of a cluster serve. Prints a line for each row, and the worst row at the end.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compat_tests.harness.brokers import ApacheKafka, BrokerProcess, KBroker
from compat_tests.harness.parts import fetch
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.fair.long_requests import TOPIC
from tests.fair.rows import Row, World, every_row

PATIENCE_SECONDS = 120.0
_CHUNK = 1 << 20
_GROUPS, _TRANSACTIONS = 0, 1


class Quiet:
    """The quiet client's process."""

    def __init__(self, address: str) -> None:
        command = [sys.executable, "-m", "tests.fair.quiet", address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def begin(self) -> None:
        """Discard the waits so far. The quiet client has confirmed this on return, so `end` may follow immediately."""
        self._say("begin")

    def end(self) -> dict[str, float]:
        """Return the waits since the beginning, in seconds; nothing if the client has ended."""
        return self._say("end")

    def _say(self, word: str) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        told: dict[str, float] = json.loads(self._process.stdout.readline() or "{}")
        return told

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:  # it waits for a response that never arrives
            self._process.kill()
            self._process.wait()
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()


class Memory:
    """The peak memory of a process since the last reading, in MB (Linux)."""

    def __init__(self, pid: int) -> None:
        self._proc = Path(f"/proc/{pid}")

    def forget_peak(self) -> float:
        """Reset the peak to the current memory, and return that."""
        (self._proc / "clear_refs").write_text("5")
        return self._read("VmRSS")

    def peak(self) -> float:
        return self._read("VmHWM")

    def _read(self, name: str) -> float:
        for line in (self._proc / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) / 1024
        raise LookupError(name)


class Answer:
    """A response, of which only the size matters."""

    def __init__(self) -> None:
        self.received = 0
        self._wanted = 0
        self._head = b""

    def take(self, data: bytes) -> bool:
        """Count bytes; return whether the response is complete."""
        if len(self._head) < 4:
            self._head += data[:4]
        self.received += len(data)
        return len(self._head) >= 4 and self.received >= 4 + int.from_bytes(self._head[:4], "big")


def send(address: str, row: Row, world: World, patience: float = PATIENCE_SECONDS) -> str:
    """Do what a row does; return its outcome. A response that never arrives, or stops, is abandoned."""
    host, _, port = address.rpartition(":")
    received = 0
    with socket.create_connection((host, int(port)), timeout=patience) as sock:
        try:
            for frame in row.frames(world):
                sock.sendall(frame)
                answer = Answer()
                whole = not row.reads
                while not whole:
                    data = sock.recv(_CHUNK)
                    if not data:
                        return "closed"
                    whole = answer.take(data)
                received += answer.received
        except TimeoutError:
            return "silence"
        except OSError:
            return "closed"
    return f"{received / 1e6:.1f} MB"


def prepare(address: str, topics: int) -> bytes:
    """Create what the rows need; return the topic's id."""
    with WireClient(address) as client:
        names = [TOPIC, *(f"fair.other_{n}" for n in range(topics))]
        for start in range(0, len(names), 1_000):
            wanted = [
                CreatableTopic(name=name, num_partitions=1, replication_factor=1)
                for name in names[start : start + 1_000]
            ]
            client.ask(CreateTopicsRequest(topics=wanted, timeout_ms=60_000), 7)
        deadline = time.monotonic() + 60
        for kind in (_GROUPS, _TRANSACTIONS):  # their coordinators are created when somebody first looks for them
            while client.ask(FindCoordinatorRequest(key="fair", key_type=kind), 2).error_code:
                assert time.monotonic() < deadline, "no coordinator"
                time.sleep(0.1)
        while True:
            answer = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), 12)
            if not answer.topics[0].error_code:
                topic_id: bytes = answer.topics[0].topic_id
                return topic_id
            if time.monotonic() > deadline:
                raise TimeoutError("the topic did not come to be")


class ClusterOfOne(KBroker):
    """A broker that is alone in a cluster, with a tree of znodes in memory."""

    def _command(self) -> list[str]:
        self.ready_file.unlink(missing_ok=True)
        return [sys.executable, "-m", "tests.fair.cluster_of_one", str(self.data_dir), str(self.ready_file)]


@contextmanager
def broker(kafka: bool, *, in_cluster: bool = False) -> Iterator[BrokerProcess]:
    with tempfile.TemporaryDirectory(prefix="fair-") as directory:
        made: BrokerProcess = ClusterOfOne(Path(directory)) if in_cluster else KBroker(Path(directory))
        if kafka:
            made = ApacheKafka(fetch("kafka"), Path(directory))
        with made as running:
            yield running


_read: dict[Path, int] = {}


def told_by(running: BrokerProcess) -> Iterator[str]:
    """Yield the broker's new messages about work that held its loop."""
    with open(running.log_file, "rb") as file:
        file.seek(_read.get(running.log_file, 0))
        text = file.read()
        _read[running.log_file] = file.tell()
    for line in text.decode(errors="replace").splitlines():
        if "held for" in line:
            yield line[line.index("the event loop") :] if "the event loop" in line else line


def measure(running: BrokerProcess, rows: list[Row], options: argparse.Namespace) -> list[tuple[float, float, str]]:
    """Do each row, and print its line."""
    world = World(prepare(running.bootstrap, options.topics), options.elements)
    memory, found = Memory(running.pid), []
    quiet = Quiet(running.bootstrap)
    try:
        for row in rows:
            before = memory.forget_peak()
            quiet.begin()
            started = time.perf_counter()
            outcome = send(running.bootstrap, row, world, options.patience)
            seconds = time.perf_counter() - started
            told: dict[str, Any] = quiet.end()
            grown = memory.peak() - before
            longest = 1000 * told.get("longest", 0.0)
            found.append((longest, grown, row.name))
            print(f"{longest:8.1f} ms {grown:8.1f} MB {seconds:7.2f} s {outcome:>10}  {row.name}", flush=True)
            for line in told_by(running):
                print(f"{'':24}{line}", flush=True)
            if not running.running:
                print("the broker has ended:", running.log_tail(), sep="\n")
                break
    finally:
        quiet.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--kafka", action="store_true", help="measure Apache Kafka instead")
    which.add_argument("--cluster", action="store_true", help="measure what only a node of a cluster serves")
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--elements", type=int, default=300_000, help="the most elements of a list")
    parser.add_argument("--topics", type=int, default=0, help="further topics in the cluster")
    parser.add_argument("--patience", type=float, default=PATIENCE_SECONDS, help="seconds to wait for an answer")
    options = parser.parse_args()
    rows = [row for row in every_row(of_clusters=options.cluster) if options.only in row.name]
    with broker(options.kafka, in_cluster=options.cluster) as running:
        found = measure(running, rows, options)
    print("\nthe longest waits:")
    for longest, grown, name in sorted(found, reverse=True)[:10]:
        print(f"{longest:8.1f} ms {grown:8.1f} MB  {name}")
    print("\nthe largest growths:")
    for longest, grown, name in sorted(found, key=lambda row: -row[1])[:5]:
        print(f"{longest:8.1f} ms {grown:8.1f} MB  {name}")


if __name__ == "__main__":
    main()
