"""The pieces of work: each takes a running broker and returns figures by name.

Owns the requests to a broker. Never compares and never prints.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.raw import percentile
from benchmarks.subjects import cpu_seconds, memory_mb
from compat_tests.harness.brokers import BrokerProcess
from compat_tests.harness.parts import fetch

Figures = dict[str, float]


def create(address: str, *topics: str, partitions: int = 1) -> None:
    """Create topics and wait for their leaders."""
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic(t, num_partitions=partitions, replication_factor=1) for t in topics])
    admin.wait_for_topics(list(topics))
    admin.close()


def raw(broker: BrokerProcess, work: str, topic: str, **options: int) -> Figures:
    """Run the raw driver in its own process; adds the broker's CPU seconds per GB."""
    command = [sys.executable, "-m", "benchmarks.raw", work, broker.bootstrap, topic]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    before = cpu_seconds(broker.pid)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    figures: Figures = json.loads(done.stdout)
    # The driver warms up with a twentieth of the work, which the broker's CPU time includes.
    figures["cpu_s_per_gb"] = (cpu_seconds(broker.pid) - before) / (figures["gb"] * 1.05)
    return figures


def small(broker: BrokerProcess, topic: str, connections: int, in_flight: int, requests: int) -> Figures:
    """Send small requests, each after a response; adds the broker's CPU time in us for each."""
    command = [sys.executable, "-m", "benchmarks.small", broker.bootstrap, topic]
    command += ["--connections", str(connections), "--in-flight", str(in_flight), "--requests", str(requests)]
    before = cpu_seconds(broker.pid)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    figures: Figures = json.loads(done.stdout)
    figures["cpu_us"] = (cpu_seconds(broker.pid) - before) / (requests * 1.05) * 1e6
    return figures


def confluent_produce(broker: BrokerProcess, topic: str, records: int, size: int) -> Figures:
    """Produce with librdkafka's defaults except acks=all and idempotence."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    value = bytes(size)
    started = time.perf_counter()
    before = cpu_seconds(broker.pid)
    for i in range(records):
        producer.produce(topic, value)
        if i % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
    seconds = time.perf_counter() - started
    cpu = cpu_seconds(broker.pid) - before
    return {"messages_per_s": records / seconds, "cpu_s_per_gb": cpu / (records * size / 1e9)}


def confluent_consume(broker: BrokerProcess, topic: str, records: int, size: int) -> Figures:
    """Consume the produced records from the start, in a group.

    librdkafka stops fetching for `fetch.queue.backoff.ms` (1,000 by default) once 100,000 messages wait in its queue. A
    broker that fills the queue faster than the application empties it then looks slow, so the pause is set to a short
    time.
    """
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"bench-{topic}-{time.time_ns()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    got, started, before = 0, 0.0, cpu_seconds(broker.pid)
    deadline = time.monotonic() + 120
    while got < records and time.monotonic() < deadline:
        messages = consumer.consume(min(10_000, records - got), 1.0)
        if messages and not started:
            started = time.perf_counter()
        got += sum(1 for m in messages if m.error() is None)
    seconds = time.perf_counter() - started
    consumer.close()
    assert got == records, (got, records)
    return {
        "messages_per_s": records / seconds,
        "cpu_s_per_gb": (cpu_seconds(broker.pid) - before) / (records * size / 1e9),
    }


def java_perf(broker: BrokerProcess, tool: str, topic: str, records: int, size: int) -> Figures:
    """Run Kafka's own perf tools; return their MB/s."""
    libs = fetch("kafka")
    java = ["java", "-Xmx256M", "-XX:+UseSerialGC", "-cp", f"{libs}/*"]
    if tool == "producer":
        command = [*java, "org.apache.kafka.tools.ProducerPerformance", "--topic", topic]
        command += ["--num-records", str(records), "--record-size", str(size), "--throughput", "-1"]
        command += ["--producer-props", f"bootstrap.servers={broker.bootstrap}", "acks=all"]
    else:
        command = [*java, "org.apache.kafka.tools.ConsumerPerformance", "--topic", topic]
        command += ["--messages", str(records), "--bootstrap-server", broker.bootstrap, "--timeout", "60000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if tool == "producer":
        last = [line for line in done.stdout.splitlines() if "MB/sec" in line][-1]
        return {"mb_per_s": float(last.split("(")[1].split()[0]) * 1.048576}
    fields = [line for line in done.stdout.splitlines() if line[:2] == "20"][-1].split(",")
    return {"mb_per_s": float(fields[3]) * 1.048576}


def latency(broker: BrokerProcess, topic: str, records: int) -> Figures:
    """Produce one record at a time and consume it: the time from send to receipt, in us."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "acks": "all", "log_level": 0})
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "latency",
            "fetch.wait.max.ms": 500,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0))
    consumer.assign([TopicPartition(topic, 0, end)])
    taken = []
    for i in range(records + 200):
        started = time.perf_counter()
        producer.produce(topic, b"x" * 100)
        producer.poll(0)
        while True:
            message = consumer.poll(5)
            assert message is not None, "a record did not arrive within 5 s"
            if message.error() is None:
                break
        if i >= 200:
            taken.append(time.perf_counter() - started)
    consumer.close()
    return {f"p{label}_us": percentile(taken, share) * 1e6 for label, share in [(50, 0.5), (99, 0.99), (999, 0.999)]}


def idle_connections(broker: BrokerProcess, count: int) -> Figures:
    """Open connections that send one request each and then stay idle; returns kB for each."""
    from benchmarks.raw import connect, frame
    from kbroker.protocol.compiler import encode
    from kbroker.protocol.messages.connections import ApiVersionsRequest

    question = frame(18, 0, False, encode(ApiVersionsRequest(), 0))
    before = memory_mb(broker.pid)
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            sock = connect(broker.bootstrap)
            sock.sendall(question)
            assert sock.recv(4)
            held.append(sock)
        return {"kb_each": (memory_mb(broker.pid) - before) * 1000 / count, "held": float(count)}
    finally:
        for sock in held:
            sock.close()


def idle_partitions(broker: BrokerProcess, count: int) -> Figures:
    """Create partitions that nobody writes to; returns kB for each and the seconds that the creation took."""
    before = memory_mb(broker.pid)
    started = time.perf_counter()
    create(broker.bootstrap, "idle", partitions=count)
    return {
        "kb_each": (memory_mb(broker.pid) - before) * 1000 / count,
        "seconds": time.perf_counter() - started,
    }


def in_parallel(*calls: Any) -> list[Any]:
    """Run calls in parallel."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
