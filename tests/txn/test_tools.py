"""Java's producer, which uses transaction version 2 if it is finalized, and Kafka's tools for administrators."""

from __future__ import annotations

import pytest

from compat_tests.clients.java_tools.tool import run_class
from kbroker import Broker

from .raw import Raw

pytestmark = pytest.mark.java

TOOLS = "org.apache.kafka.tools"


@pytest.fixture(scope="module")
def own():
    with Broker() as running:
        yield running.bootstrap_servers


def perf(address: str, topic: str, name: str) -> list[str]:
    """Write 500 records in transactions of 5 ms with Java's producer."""
    return run_class(
        f"{TOOLS}.ProducerPerformance", "--topic", topic, "--num-records", "500", "--record-size", "10",
        "--throughput", "5000", "--transactional-id", name, "--transaction-duration-ms", "5",
        "--command-property", f"bootstrap.servers={address}",
    )  # fmt: skip


def feature(address: str, *arguments: str) -> list[str]:
    return run_class(f"{TOOLS}.FeatureCommand", "--bootstrap-server", address, *arguments)


def transactions(address: str, *arguments: str) -> list[str]:
    return run_class(f"{TOOLS}.TransactionsCommand", "--bootstrap-server", address, *arguments)


def test_javas_producer_in_both_generations_and_the_level_switched_between(own, kafka_libs) -> None:
    raw = Raw(own)
    topic = raw.topic()
    shown = "Feature: transaction.version SupportedMinVersion: 0 SupportedMaxVersion: 2 FinalizedVersionLevel: %d"
    assert any(line.startswith(shown % 2) for line in feature(own, "describe"))
    assert perf(own, topic, "second")[0] == "exit 0"
    second = raw.see(topic)
    assert len(second.values) == 500
    epoch = raw.init("second").epoch
    assert epoch == second.high_watermark - 500 + 1, "each end of a transaction, a marker each, began a new epoch"

    assert feature(own, "downgrade", "--feature", "transaction.version=1")[0] == "exit 0"
    assert any(line.startswith(shown % 1) for line in feature(own, "describe"))
    assert perf(own, topic, "first")[0] == "exit 0"
    assert len(raw.see(topic).values) == 1000
    assert raw.init("first").epoch == 1, "ends do not begin epochs"

    refused = feature(own, "upgrade", "--feature", "transaction.version=3")
    assert refused[0] == "exit 1"
    assert "Local controller 1 only supports versions 0-2" in refused[1]
    assert feature(own, "upgrade", "--feature", "no.such=1")[0] == "exit 1"
    assert feature(own, "upgrade", "--feature", "transaction.version=2")[0] == "exit 0"
    raw.close()


def test_kafkas_dump_tool_reads_the_transaction_log(kafka_libs, tmp_path) -> None:
    with Broker({"transaction.state.log.num.partitions": "1"}, data_dir=str(tmp_path)) as broker:
        raw = Raw(broker.bootstrap_servers, 2)
        topic = raw.topic()
        producer = raw.init("dumped")
        raw.write("dumped", producer, topic, [b"x"])
        raw.end("dumped", producer)
        raw.close()
    path = tmp_path / "__transaction_state-0" / f"{0:020}.log"
    dumped = run_class(f"{TOOLS}.DumpLogSegments", "--transaction-log-decoder", "--files", str(path))
    assert dumped[0] == "exit 0", dumped
    payloads = [line for line in dumped if "payload" in line]
    assert len(payloads) == 4, dumped
    for line, state in zip(payloads, ("Empty", "Ongoing", "PrepareCommit", "CompleteCommit"), strict=True):
        assert '"transactionalId":"dumped"' in line
        assert f'"transactionStatus":"{state}"' in line


def test_an_administrator_looks_at_transactions_and_aborts_one(own, kafka_libs) -> None:
    raw = Raw(own)
    topic = raw.topic()
    producer = raw.init("hanging")
    raw.write("hanging", producer, topic, [b"x"])
    listed = transactions(own, "list")
    assert listed[0] == "exit 0"
    assert f"hanging 1 {producer.producer_id} Ongoing" in listed
    assert any("Ongoing" in line for line in transactions(own, "describe", "--transactional-id", "hanging"))
    described = transactions(own, "describe-producers", "--topic", topic, "--partition", "0")
    assert described[-1].startswith(f"{producer.producer_id} {producer.epoch} ")
    assert raw.see(topic).stable == 0
    aborted = transactions(own, "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    assert aborted == ["exit 0"]
    assert raw.see(topic).stable == 2
    assert raw.see(topic).values == []
    raw.close()
