"""What an embedded broker costs a test suite: `python -m benchmarks.embedded`.

    start    `with Broker()`, until clients can connect; the first start, which includes imports, is reported alone
    reset    of 100 topics, with a group that has committed and an open transaction
    suite    100 tests in a pytest process, each with `kafka` and a producer and a consumer of confluent-kafka: the
             seconds that pytest spends on setup and teardown, which is the fixture's share of the tests' total time

Medians of rounds in one process. Asserts nothing about time.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from kbroker import Broker

TOPICS = 100
TESTS = 100
_SUITE = """
import pytest
from confluent_kafka import Consumer, Producer


@pytest.mark.parametrize("number", range({tests}))
def test_what_is_written_is_read(kafka, number):
    producer = Producer({{"bootstrap.servers": kafka.bootstrap_servers}})
    producer.produce("orders", str(number))
    assert producer.flush(10) == 0
    reader = {{"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}}
    consumer = Consumer(reader)
    consumer.subscribe(["orders"])
    assert consumer.poll(10).value() == str(number).encode()
    consumer.close()
"""
_CONFTEST = """
took = {"setup": 0.0, "call": 0.0, "teardown": 0.0}


def pytest_runtest_logreport(report):
    took[report.when] += report.duration


def pytest_unconfigure():
    print("\\nshare", took["setup"] + took["teardown"], took["call"])
"""


def starts(rounds: int) -> tuple[float, float]:
    """Return the first start and the median of the others, in ms."""
    took = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        with Broker():
            took.append((time.perf_counter() - began) * 1000)
    return took[0], statistics.median(took[1:])


def use(broker: Broker) -> None:
    """Create the state that a test leaves behind."""
    for number in range(TOPICS):
        broker.topics.create(f"topic-{number}").produce("v")
    group = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    group.commit(offsets=[TopicPartition("topic-0", 0, 1)], asynchronous=False)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce("topic-1", "v")
    producer.flush(10)
    group.close()


def resets(rounds: int) -> list[float]:
    took = []
    with Broker() as broker:
        for _ in range(rounds):
            use(broker)
            began = time.perf_counter()
            broker.reset()
            took.append((time.perf_counter() - began) * 1000)
            assert not broker.topics
    return took


def suite() -> tuple[float, float]:
    """Return the seconds spent in the fixture and in the tests' own work."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        Path(directory, "test_orders.py").write_text(_SUITE.format(tests=TESTS))
        Path(directory, "conftest.py").write_text(_CONFTEST)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", directory, directory]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory)
        if done.returncode:
            raise SystemExit(done.stdout[-2000:])
    share, work = next(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("share "))
    return float(share), float(work)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embedded", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    first, start = starts(rounds)
    reset = sorted(resets(rounds))
    print("| | ms | target |\n|---|---|---|")
    print(f"| start, the first in a process | {first:.1f} | |")
    print(f"| start, median of {rounds} | {start:.1f} | <= 15 {'met' if start <= 15 else 'MISSED'} |")
    middle = statistics.median(reset)
    print(
        f"| reset of {TOPICS} topics, median of {rounds} | {middle:.1f} | <= 20 {'met' if middle <= 20 else 'MISSED'} |"
    )
    print(f"| reset, the longest | {reset[-1]:.1f} | |")
    share, work = suite()
    met = "met" if share <= 5 else "MISSED"
    print(f"| the fixture's share of {TESTS} tests, which take {work:.1f} s | {share * 1000:.0f} | <= 5000 {met} |")


if __name__ == "__main__":
    main()
