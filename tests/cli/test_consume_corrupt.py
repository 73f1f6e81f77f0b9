"""`kbroker consume` with unreadable batches: it names them, and skips them on request."""

from __future__ import annotations

import pytest

from kbroker import Broker
from kbroker.admin.cluster_view import cluster_view
from kbroker.admin.connection import Connection
from kbroker.admin.own_request import ask_broker
from kbroker.protocol.compression import GZIP, LZ4, SNAPPY, ZSTD
from kbroker.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kbroker.protocol.records import build_batch
from tests.cli.conftest import CommandLine
from tests.log.bombs import BASE, MINIMAL, sealed

LYING = {
    "a count too high": sealed(MINIMAL, 2, 0),
    "a count too low": sealed(MINIMAL * 2, 1, 0),
    "a record that is cut off": sealed(MINIMAL[:-2], 1, 0),
    "headers less than none": sealed(bytes([12, 0, 0, 0, 1, 1, 1]), 1, 0),
    **{f"garbage, codec {codec}": sealed(b"none", 2, codec, compressed=True) for codec in (GZIP, SNAPPY, LZ4, ZSTD)},
    "a count too high in zstd": sealed(MINIMAL, 2, ZSTD),
}


def append(broker: Broker, topic: str, *batches: bytes) -> None:
    with Connection(broker.bootstrap_servers, {}).admin() as admin:
        view = cluster_view(admin, [topic])
        for batch in batches:
            data = [PartitionProduceData(0, memoryview(batch))]
            asked = ProduceRequest(
                acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(topic, view.topics[topic].topic_id, data)]
            )
            answer = ask_broker(admin, view.brokers[0].node_id, asked, ProduceResponse)
            assert answer.responses[0].partition_responses[0].error_code == 0


def good(value: bytes) -> bytes:
    return build_batch([(BASE, None, value, ())])


@pytest.mark.parametrize("lying", LYING.values(), ids=LYING)
def test_a_batch_that_cannot_be_read_is_named_and_passed_over(
    embedded: Broker, cli: CommandLine, name: str, lying: bytes
) -> None:
    cli.ok("topic", "create", name, "-c", "record.validation=header")
    append(embedded, name, good(b"before"), lying, good(b"behind"))
    line = cli.fails("consume", name, "--from-beginning", "--until-end")
    behind = 1 + int.from_bytes(lying[23:27]) + 1
    assert line.startswith(f"{name}-0 cannot be read at offset 1: ")
    assert line.endswith(f"; --skip-corrupt continues after it, at {behind}")
    done = cli("consume", name, "--from-beginning", "--until-end", "--skip-corrupt")
    assert done.status == 0
    assert [done.lines[0], done.lines[-1]] == ["before", "behind"]
    assert f"skipped up to {behind}" in done.err


def test_a_group_does_not_come_back_to_a_batch_that_was_passed_over(
    embedded: Broker, cli: CommandLine, name: str
) -> None:
    cli.ok("topic", "create", name, "-c", "record.validation=header")
    append(embedded, name, good(b"before"), LYING["a count too high in zstd"])
    once = ("consume", name, "--group", name, "--from-beginning", "--until-end", "--skip-corrupt")
    assert "skipped up to 3" in cli(*once).err
    again = cli(*once)
    assert (again.status, again.out, again.err) == (0, b"", "")
