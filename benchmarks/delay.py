"""Delay topics beside plain ones on one broker: the CPU time of a request, and how late a record arrives.

Produce and fetch alternate between a topic without a delay and one whose records are all old enough, so that both
return the same bytes. A second part sends a record every few ms to a topic with a delay of half a second, and measures
how much later than the delay a waiting fetch returns it. Prints a table and saves it; asserts no times.

    python -m benchmarks.delay [--rounds 9]
"""

from __future__ import annotations

import argparse
import threading
import time
from statistics import median

from benchmarks.ratios import save
from benchmarks.subjects import cpu_seconds, running
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kbroker.protocol.records import build_batch, iter_batches

REQUESTS, RECORDS, SIZE = 6000, 10, 100
LATE_DELAY_MS, LATE_COUNT, PAUSE_S = 500, 1000, 0.005
STAMPED = {"message.timestamp.type": "LogAppendTime"}
TOPICS = {"plain": STAMPED, "delayed": {**STAMPED, "delivery.delay.ms": "1"}}
SHARES = {"first": 0.0, "p50": 0.5, "p99": 0.99, "last": 1.0}
MEANT_TO_WAIT = {**STAMPED, "delivery.delay.ms": str(LATE_DELAY_MS)}


def create(client: WireClient, topic: str, configs: dict[str, str]) -> None:
    wanted = CreatableTopic(topic, 1, 1, [], [CreatableTopicConfig(*each) for each in configs.items()])
    (answer,) = client.ask(CreateTopicsRequest([wanted], 20_000), 5).topics
    assert not answer.error_code, answer


def produce_request(topic: str, records: int = RECORDS) -> ProduceRequest:
    batch = build_batch([(0, None, b"x" * SIZE, ())] * records)
    return ProduceRequest(None, 1, 20_000, [TopicProduceData(topic, partition_data=[PartitionProduceData(0, batch)])])


def fetch_request(topic: str, offset: int, most: int = 1 << 16, wait_ms: int = 0) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=most)
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=most, topics=[FetchTopic(topic=topic, partitions=[wanted])]
    )


def of_requests(client: WireClient, pid: int, topic: str) -> dict[str, float]:
    """Return the broker's CPU time in us for a Produce and for a Fetch of 64 kB."""
    request, found = produce_request(topic), {}
    before = cpu_seconds(pid)
    for _ in range(REQUESTS):
        client.ask(request, 9)
    found["produce"] = (cpu_seconds(pid) - before) / REQUESTS * 1e6
    time.sleep(0.05)  # all records are old enough
    before = cpu_seconds(pid)
    for number in range(REQUESTS):
        (data,) = client.ask(fetch_request(topic, number * RECORDS // 2), 12).responses[0].partitions
        assert data.records
    found["fetch of 64 kB"] = (cpu_seconds(pid) - before) / REQUESTS * 1e6
    before = cpu_seconds(pid)
    for _ in range(REQUESTS):
        (data,) = client.ask(fetch_request(topic, data.high_watermark), 12).responses[0].partitions
    found["fetch at the end"] = (cpu_seconds(pid) - before) / REQUESTS * 1e6
    return found


def lateness(address: str) -> list[float]:
    """Return how many ms after its append and delay each record arrived."""
    with WireClient(address) as client:
        create(client, "waits", MEANT_TO_WAIT)

    def send() -> None:
        with WireClient(address) as client:
            for _ in range(LATE_COUNT):
                client.ask(produce_request("waits", 1), 9)
                time.sleep(PAUSE_S)

    sender = threading.Thread(target=send)
    sender.start()
    late: list[float] = []
    with WireClient(address) as client:
        offset = 0
        while offset < LATE_COUNT:
            (data,) = client.ask(fetch_request("waits", offset, 1 << 20, 10_000), 12).responses[0].partitions
            now_ms = time.time() * 1000
            for _, header in iter_batches(memoryview(data.records)):
                late.append(now_ms - header.max_timestamp - LATE_DELAY_MS)
                offset = header.last_offset + 1
    sender.join()
    return sorted(late)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {topic: [] for topic in TOPICS}
    with running("kbroker") as (broker, _):
        with WireClient(broker.bootstrap) as client:
            for topic, configs in TOPICS.items():
                create(client, topic, configs)
                of_requests(client, broker.pid, topic)
            for number in range(options.rounds):
                for topic in sorted(TOPICS, reverse=bool(number % 2)):
                    rounds[topic].append(of_requests(client, broker.pid, topic))
        late = lateness(broker.bootstrap)
    lines = ["| request | plain, us | delayed, us | ratio (median of pairs) |", "|---|---|---|---|"]
    for what in rounds["plain"][0]:
        plain, delayed = ([each[what] for each in rounds[topic]] for topic in TOPICS)
        ratio = median(b / a for a, b in zip(plain, delayed, strict=True))
        lines.append(f"| {what} | {median(plain):.1f} | {median(delayed):.1f} | {ratio:.3f} |")
    places = {name: late[min(int(len(late) * share), len(late) - 1)] for name, share in SHARES.items()}
    told = ", ".join(f"{name} {each:.1f}" for name, each in places.items())
    lines += ["", f"{len(late)} records, one every {PAUSE_S * 1000:.0f} ms: ms later than the delay: {told}"]
    save("delay", "Delay topics", "delay", lines)


if __name__ == "__main__":
    main()
