"""The worker's throttle, and the worker's end when the other end of the pipe is closed."""

from __future__ import annotations

import subprocess
import sys

from kbroker.log.cleaner.worker import Throttle


def test_the_throttle_spreads_bytes_over_time() -> None:
    throttle = Throttle(100.0)
    assert throttle.spend(50, 10.0) == 0.5
    assert throttle.spend(50, 10.5) == 0.5
    assert throttle.spend(50, 10.5) == 1.0  # the debt adds up
    assert throttle.spend(25, 20.0) == 0.25  # unused time is not saved
    assert Throttle().spend(1 << 30, 1.0) == 0.0


def test_a_worker_ends_when_its_broker_is_gone() -> None:
    command = [sys.executable, "-m", "kbroker.log.cleaner.worker"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0
    assert process.stdout is not None
    process.stdout.close()
