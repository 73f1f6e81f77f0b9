"""Shared code of the pipeline's kill tests: a broker that restarts, drivers as processes, and how they end.

Owns processes and threads. Never knows what a verb should have done.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from compat_tests.harness.brokers import KBroker, free_port
from compat_tests.pipeline.processes import start_verb
from kbroker.failpoints import VARIABLE
from tests.crash.long_form import say

PATIENCE_S = 300.0


class Broker(KBroker):
    """A broker that restarts at the same address."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._address = f"127.0.0.1:{free_port()}"

    def _command(self) -> list[str]:
        return [self._address if part == "127.0.0.1:0" else part for part in super()._command()]


class Feed:
    """Writes to a topic as long as it runs: `produce` passes the record of a number to the producer."""

    def __init__(
        self, bootstrap: str, pace_s: float, produce: Callable[[Producer, int], None], at_once: int = 50
    ) -> None:
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0, "linger.ms": 20}
        self._producer = Producer({**settings, "message.timeout.ms": int(PATIENCE_S * 1000)})
        self._pace_s = pace_s
        self._produce = produce
        self._at_once = at_once
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.written = 0

    def start(self) -> Feed:
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._ended.wait(self._pace_s):
            self.write(self._at_once)

    def write(self, count: int) -> None:
        for number in range(self.written, self.written + count):
            self._produce(self._producer, number)
        self.written += count
        self._producer.poll(0)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_S)
        assert self._producer.flush(PATIENCE_S) == 0


class Driver:
    """A verb of `kbroker pipeline` in its own process group."""

    def __init__(self, folder: Path, *arguments: str, failpoint: str = "") -> None:
        self._errors = open(folder / "driver.log", "w+")  # noqa: SIM115 - closed by `end`
        self._process = start_verb(*arguments, stderr=self._errors, environment={VARIABLE: failpoint}, compiled=True)
        self.lines: list[str] = []
        self.said = ""
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
        """Wait for the first line, with a time limit."""
        self._begun.wait(wait_s)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> int:
        """Wait until the driver ends by itself; returns its status."""
        try:
            return self._process.wait(PATIENCE_S)
        finally:
            self.end(signal.SIGKILL)

    def end(self, number: int) -> None:
        """Kill the complete group: Python and the JVM."""
        for signal_number in (number, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal_number)
            self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        if not self._errors.closed:
            self._errors.seek(0)
            self.said = self._errors.read()
            self._errors.close()


class Kills:
    """Kills drivers and a broker repeatedly; `counts` shows how often and where."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.broker = Broker(folder / "broker")
        self.counts = Counter[str]()

    def drivers(self, verb: tuple[str, ...], steps: tuple[str, ...], kills: int) -> None:
        """Kill a verb's driver: at a failpoint, at a random moment, at the next failpoint, and so on."""
        for number in range(kills):
            step = steps[number // 2 % len(steps)] if number % 2 == 0 else ""
            failpoint = f"{step}:{self.rng.randint(1, 4)}" if step else ""
            driver = self._driver(verb, failpoint)
            if step:
                status = driver.wait()
            else:
                if self.rng.random() < 0.8:
                    driver.begun(PATIENCE_S)
                time.sleep(self.rng.random() * 4)
                driver.end(signal.SIGKILL)
                status = -signal.SIGKILL
            assert status in (-signal.SIGKILL, 0), driver.said
            if status == 0:
                self.counts["ended before its failpoint"] += 1
            else:
                self.counts[f"{verb[0]} killed at {step or 'a moment'}"] += 1
            say(f"  {verb[0]}: driver {number + 1} of {kills} ended, {step or 'at a moment'}")

    def brokers(self, verb: tuple[str, ...], kills: int) -> None:
        """Kill the broker under a verb's driver, which may continue."""
        driver: Driver | None = None
        for number in range(kills):
            if driver is None or not driver.running:
                self._end(driver)
                driver = self._driver(verb)
                driver.begun(PATIENCE_S)
            time.sleep(self.rng.random() * 3)
            self.broker.kill()
            self.counts[f"broker killed under {verb[0]}"] += 1
            time.sleep(self.rng.random())
            self.broker.start()
            say(f"  {verb[0]}: broker {number + 1} of {kills} ended")
        self._end(driver)

    def finish(self, verb: tuple[str, ...], *, clients: bool = True) -> Driver:
        """Run a verb to its successful end; return its output."""
        driver = self._driver(verb) if clients else Driver(self.folder, *verb)
        status = driver.wait()
        assert status == 0, driver.said
        return driver

    def _driver(self, verb: tuple[str, ...], failpoint: str = "") -> Driver:
        return Driver(self.folder, *verb, "--bootstrap", self.broker.bootstrap, failpoint=failpoint)

    def _end(self, driver: Driver | None) -> None:
        """End a driver in any state; a driver that gave up must have printed the reason in one line."""
        if driver is None:
            return
        gave_up = not driver.running
        driver.end(signal.SIGKILL)
        if gave_up:
            self.counts["drivers that gave up"] += 1
            assert driver.said.startswith("kbroker: "), driver.said
            assert len(driver.said.strip().splitlines()) == 1, driver.said
            say(f"  {driver.said.strip()}")
