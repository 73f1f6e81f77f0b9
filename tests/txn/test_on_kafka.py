"""The tests over the wire also pass on Apache Kafka: every error code of every version, in both generations."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests.harness.brokers import ApacheKafka
from kbroker.protocol.records import iter_batches, read_records
from kbroker.txn.records import read_key, read_value, transaction_record
from tests.figures import figure
from tests.tries import FORM

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(FORM != "long", reason="asks Apache Kafka alone, which does not change: only in make torture"),
]

SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}
DEADLINE_S = 600


def check_records(data: Path) -> int:
    """Read the records of `__transaction_state`; return how many of them kbroker encodes to the same bytes.

    Java's order of several partitions has no meaning, so such records are compared after decoding only.
    """
    same = 0
    for path in data.glob("__transaction_state-*/*.log"):
        content = path.read_bytes()
        for position, header in iter_batches(content):
            for record in read_records(content[position : position + header.size], max_bytes=1 << 20):
                assert record.key is not None
                name = read_key(record.key)
                if record.value is None:
                    continue
                txn = read_value(name, record.value)
                key, value = transaction_record(txn, 2)
                assert value is not None
                assert key == record.key
                assert read_value(name, value) == txn
                if len(txn.partitions) < 2:
                    assert value == record.value
                    same += 1
    assert same > 100
    return same


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
    same = check_records(tmp_path / "data")
    figure("records of Apache Kafka's __transaction_state read and written again, byte for byte", str(same))
    figure("tests of transactions over the wire that Apache Kafka 4.4.0 passes as well", passed[1])
