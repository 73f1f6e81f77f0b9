"""The tests over the wire say the same of Apache Kafka: every error code of every version, in both generations."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests.harness.brokers import ApacheKafka
from tests.figures import figure

pytestmark = pytest.mark.java

SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}
DEADLINE_S = 600


def test_apache_kafka_passes_the_tests_over_the_wire(kafka_libs: Path, tmp_path: Path) -> None:
    kafka = ApacheKafka(kafka_libs, tmp_path, SETTINGS)
    try:
        kafka.start()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", str(Path(__file__).parent / "test_wire.py")],
            env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    finally:
        kafka.stop()
    assert done.returncode == 0, done.stdout[-4000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    figure("tests of transactions over the wire that Apache Kafka 4.3.0 passes as well", passed[1])
