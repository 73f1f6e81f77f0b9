"""Mutated batches are produced, and Java's consumer reads every topic to its end.

A consumer can read everything that the broker accepts: as many records as the end offset says, each offset once. The
batches are those of tests/log/mutated_batches.py, in each codec; the topics differ by the settings that change what is
checked.

python -m compat_tests.clients.mutated_batches --batches 1000000 --seed 1
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from compat_tests.harness.brokers import KBroker
from compat_tests.harness.jvm import run_java
from compat_tests.harness.parts import fetch
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.logs import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tests.log.builders import NOW
from tests.log.mutated_batches import mutated_inside, seeds
from tests.log.test_fuzz import mutated

_DAY_MS = 86_400_000
TOPICS = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
    "uncompressed": {"compression.type": "uncompressed"},
    "lz4": {"compression.type": "lz4"},
    "zstd": {"compression.type": "zstd"},
}
_FORMAT = ("--property", "print.offset=true", "--property", "print.value=false")
_LATEST = -1
_READING_S = 1800


def produce(client: WireClient, batches: int, rng: random.Random) -> Counter[int]:
    """Produce `count` batches to topics that are drawn at random; return how often each error code was answered."""
    base, names = seeds(), list(TOPICS)
    seen: Counter[int] = Counter()
    for number in range(batches):
        mutate = mutated_inside if number % 2 else mutated
        data = PartitionProduceData(0, memoryview(bytes(mutate(rng, rng.choice(base)))))
        topic = TopicProduceData(name=rng.choice(names), partition_data=[data])
        answer = client.ask(ProduceRequest(acks=1, timeout_ms=5000, topic_data=[topic]), 9)
        assert not isinstance(answer, str), f"batch {number}: {answer}"
        seen[answer.responses[0].partition_responses[0].error_code] += 1
        if not (number + 1) % 100_000:
            print(f"{number + 1:,} batches: {dict(seen)}", flush=True)
    return seen


def end_of(client: WireClient, topic: str) -> int:
    asked = ListOffsetsTopic(topic, [ListOffsetsPartition(partition_index=0, timestamp=_LATEST)])
    answer = client.ask(ListOffsetsRequest(replica_id=-1, topics=[asked]), 2)
    return int(answer.topics[0].partitions[0].offset)


def read(libs: Path, bootstrap: str, topic: str, end: int) -> str | None:
    """Read a topic with Java's consumer; return what is wrong, None if the consumer reaches the end."""
    consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    asked = ("--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning", "--max-messages", str(end))
    status, out, err = run_java(libs, consumer, *asked, "--timeout-ms", "60000", *_FORMAT, timeout_s=_READING_S)
    offsets = [int(line.removeprefix("Offset:")) for line in out.splitlines() if line.startswith("Offset:")]
    if status or offsets != list(range(end)):
        return f"exit {status}, {len(offsets)} records up to {offsets[-1:]} of {end}: {err[-2000:]}"
    return None


def main() -> int:
    """Produce, read, and print what was seen; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, failed = random.Random(options.seed), False
    # The batches' timestamps come from the tests' clock.
    age_ms = int(time.time() * 1000) - NOW + 10 * 365 * _DAY_MS
    settings = {
        "log.message.timestamp.before.max.ms": str(age_ms),
        "log.retention.ms": "-1",
        "log.cleaner.enable": "false",
    }
    with tempfile.TemporaryDirectory() as directory, KBroker(Path(directory), settings) as broker:
        with WireClient(broker.bootstrap) as client:
            asked = [
                CreatableTopic(
                    name=name,
                    num_partitions=1,
                    replication_factor=1,
                    configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
                )
                for name, configs in TOPICS.items()
            ]
            created = client.ask(CreateTopicsRequest(topics=asked, timeout_ms=30_000), 5)
            assert {each.error_code for each in created.topics} == {0}, created
            seen = produce(client, options.batches, rng)
            ends = {topic: end_of(client, topic) for topic in TOPICS}
        print(f"seed {options.seed}: {options.batches:,} batches, by error code {dict(seen)}")
        for topic, end in ends.items():
            wrong = read(fetch("kafka"), broker.bootstrap, topic, end)
            failed |= wrong is not None
            print(f"{topic}: {wrong or f'{end:,} records read by Java, each offset once'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
