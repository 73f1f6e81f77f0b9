"""The Streams application as a process, its input, and the output that is expected.

Owns starting and ending `Counts.java`, the records that it reads and the counts that result from them. Never starts a
broker.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compat_tests.harness.parts import fetch

SOURCE: Final = Path(__file__).with_name("Counts.java")
PARTITIONS: Final = 2
WORDS: Final = [f"word{number}" for number in range(40)]
ROOMS: Final = [f"room{number}" for number in range(8)]
VISITORS: Final = [f"visitor{number}" for number in range(50)]
INPUTS: Final = ("lines", "moves")
OUTPUTS: Final = ("words", "rooms")
_END_TIMEOUT_S: Final = 30


def create_topics(bootstrap: str, prefix: str) -> None:
    """Create the topics that the application reads and writes; it creates its internal topics itself."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [f"{prefix}-{name}" for name in (*INPUTS, *OUTPUTS)]
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        future.result(30)


class Application:
    """One process of the application; a context manager that ends it."""

    def __init__(self, bootstrap: str, prefix: str, state: Path, protocol: str = "classic") -> None:
        self._command = [
            *("java", "-Xmx300M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{fetch('streams')}/*", str(SOURCE)),
            *(bootstrap, f"{prefix}-app", str(state), prefix, protocol),
        ]
        self._log = state.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the process; it is ready when it writes counts."""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        return self

    def end(self, how: int = signal.SIGTERM) -> None:
        """End the process with a signal and wait for it."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            try:
                process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def log_tail(self) -> str:
        """Return the last lines that the application printed."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-40:]) if self._log.exists() else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()


class Input:
    """Seeded lines and moves, and the counts that must result from them in the end."""

    def __init__(self, bootstrap: str, prefix: str, seed: int) -> None:
        self._prefix = prefix
        self._random = random.Random(seed)
        self.sent = 0
        self._words: Counter[str] = Counter()
        self._rooms: dict[str, str] = {}
        self._entered: set[str] = set()
        self._failed: list[str] = []
        self.go_to(bootstrap)

    def go_to(self, bootstrap: str) -> None:
        """Send to this broker from now on; it has everything that was sent so far."""
        settings = {"enable.idempotence": True, "reconnect.backoff.max.ms": 200, "log_level": 0}
        self._producer = Producer({"bootstrap.servers": bootstrap, **settings})

    def send(self, count: int) -> None:
        """Send `count` lines and as many moves; each arrives exactly once."""
        for _ in range(count):
            line = self._random.choices(WORDS, k=self._random.randint(1, 6))
            visitor, room = self._random.choice(VISITORS), self._random.choice(ROOMS)
            self._words.update(line)
            self._rooms[visitor] = room
            self._entered.add(room)
            self._put("lines", str(self.sent), " ".join(line))
            self._put("moves", visitor, room)
            self.sent += 1
        left = self._producer.flush(60)
        assert left == 0, f"{left} records were never answered"
        assert not self._failed, self._failed[:3]

    def _put(self, topic: str, key: str, value: str) -> None:
        self._producer.produce(f"{self._prefix}-{topic}", value, key, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: object, _message: object) -> None:
        if error is not None:
            self._failed.append(str(error))

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Return the last values in the output topics, by topic and key."""
        present = Counter(self._rooms.values())
        return {"words": dict(self._words), "rooms": {room: present[room] for room in self._entered}}


class Output:
    """Reads the committed results of the application."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._prefix = prefix
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{prefix}-reader",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(f"{prefix}-{t}", p, 0) for t in OUTPUTS for p in range(PARTITIONS)])
        self.counts: dict[str, dict[str, int]] = {name: {} for name in OUTPUTS}
        self.told: dict[str, list[int]] = {}
        self.records = 0

    def wait_for(self, expected: dict[str, dict[str, int]], application: Application, seconds: float) -> None:
        """Read until the counts are as expected; after `seconds`, fail with the wrong ones."""
        self._read_until(lambda: self.counts == expected, seconds, lambda: self._wrong(expected, application))

    def wait_for_more(self, application: Application, seconds: float) -> None:
        """Read until another count arrives; fail after `seconds`."""
        before = self.records
        self._read_until(lambda: self.records > before, seconds, lambda: f"nothing came; {application.log_tail}")

    def _read_until(self, done: Callable[[], bool], seconds: float, complaint: Callable[[], str]) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            self.read(0.1)
            if time.monotonic() > deadline:
                raise AssertionError(complaint())

    def _wrong(self, expected: dict[str, dict[str, int]], application: Application) -> str:
        wrong = {
            name: {key: (told.get(key), count) for key, count in expected[name].items() if told.get(key) != count}
            for name, told in self.counts.items()
        }
        return f"(is, has to be): {json.dumps(wrong)}\nthe application:\n{application.log_tail}"

    def read(self, seconds: float) -> None:
        """Read the results that arrive within `seconds`."""
        for message in self._consumer.consume(500, seconds):
            if message.error() is not None:
                continue
            name = str(message.topic()).removeprefix(f"{self._prefix}-")
            key, value = message.key().decode(), int(message.value())
            self.counts[name][key] = value
            if name == "words":
                self.told.setdefault(key, []).append(value)
            self.records += 1

    def close(self) -> None:
        self._consumer.close()
