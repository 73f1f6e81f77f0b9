"""The suite of the order service, unchanged from examples/, against Apache Kafka: one suite, two targets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from compat_tests.harness.brokers import ApacheKafka

SUITE = Path(__file__).parents[2] / "examples/orders"
TIMEOUT_S = 300


@pytest.mark.java
def test_the_order_service_on_apache_kafka(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": apache_kafka.bootstrap}
    done = subprocess.run(
        command, cwd=SUITE, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    cases = list(ET.parse(report).iter("testcase"))
    skipped = [each.get("message", "") for case in cases for each in case.iter("skipped")]
    assert all("cannot be used with the broker that KAFKA_BOOTSTRAP_SERVERS names" in each for each in skipped), skipped
    assert len(cases) >= 40
    assert len(skipped) <= len(cases) // 2, f"{len(skipped)} of {len(cases)} are for kbroker alone"
