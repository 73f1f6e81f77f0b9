"""What an embedded broker costs a test suite: `python -m benchmarks.embedded`.

    start    `with Broker()`, until clients can connect; the first one, which also imports, is told apart
    reset    of 100 topics, with a group that has committed and a transaction that is open

Medians of rounds in one process. Asserts nothing about time.
"""

from __future__ import annotations

import argparse
import statistics
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from kbroker import Broker

TOPICS = 100


def starts(rounds: int) -> tuple[float, float]:
    """Return the first start and the median of the others, in ms."""
    took = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        with Broker():
            took.append((time.perf_counter() - began) * 1000)
    return took[0], statistics.median(took[1:])


def use(broker: Broker) -> None:
    """Leave what a test leaves."""
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


if __name__ == "__main__":
    main()
