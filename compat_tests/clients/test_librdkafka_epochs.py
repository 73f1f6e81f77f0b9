"""What an idempotent producer of librdkafka writes twice, on both brokers: no broker can prevent it.

A proxy between the producer and the broker causes what happens when a cluster has trouble: it refuses the first request
for partition 0 because there are too few replicas, while other requests are in flight, and it loses one answer about
partition 1.
"""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.harness.brokers import BrokerProcess
from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.cluster.batches import judge, read_batches

TOPIC = "epochs"
PATIENCE_S = 30.0
IN_FLIGHT_S = 0.3
_HEADER = struct.Struct(">hhih")
_SIZE = struct.Struct(">i")


class Proxy(socketserver.ThreadingTCPServer):
    """Passes requests and responses between clients and a broker, except what is `refused` and `lost`, once each."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), Between)
        host, _, port = target.rpartition(":")
        self.target = host, int(port)
        self.refused = self.lost = False


class Between(socketserver.BaseRequestHandler):
    """One connection: it passes one request after the other, each with its response."""

    server: Proxy

    def handle(self) -> None:
        with socket.create_connection(self.server.target, PATIENCE_S) as broker:
            try:
                while True:
                    frame = _frame(self.request)
                    answer = self._answer(broker, frame)
                    if answer is not None:
                        self.request.sendall(_SIZE.pack(len(answer)) + answer)
            except (ConnectionError, TimeoutError):
                pass

    def _answer(self, broker: socket.socket, frame: bytes) -> bytes | None:
        key, version, correlation, id_length = _HEADER.unpack_from(frame)
        produces = key == _key(ProduceRequest)
        partitions: set[int] = set()
        if produces:
            at = _HEADER.size + id_length + (version >= 9)
            request = decode(ProduceRequest, version, memoryview(frame)[at:])
            partitions = {each.index for topic in request.topic_data for each in topic.partition_data}
            if partitions == {0} and not self.server.refused:
                self.server.refused = True
                time.sleep(IN_FLIGHT_S)
                return _head(correlation, tagged=version >= 9) + encode(_refusal(request), version)
        broker.sendall(_SIZE.pack(len(frame)) + frame)
        answer = _frame(broker)
        if produces and partitions == {1} and not self.server.lost:
            self.server.lost = True
            return None
        if key == _key(MetadataRequest):
            tagged = version >= 9
            told = decode(MetadataResponse, version, memoryview(answer)[4 + tagged :])
            for each in told.brokers:
                each.host, each.port = "127.0.0.1", self.server.server_address[1]
            return _head(correlation, tagged=tagged) + encode(told, version)
        return answer


def _key(request: Any) -> int:
    return int(request.KEY)


def _head(correlation: int, *, tagged: bool) -> bytes:
    return _SIZE.pack(correlation) + b"\0" * tagged


def _refusal(request: ProduceRequest) -> ProduceResponse:
    code = ErrorCode.NOT_ENOUGH_REPLICAS
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    PartitionProduceResponse(index=each.index, error_code=code, base_offset=-1)
                    for each in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _frame(sock: socket.socket) -> bytes:
    return _exactly(sock, _SIZE.unpack(_exactly(sock, 4))[0])


def _exactly(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        data = sock.recv(size - len(found))
        if not data:
            raise ConnectionError("closed")
        found += data
    return found


@contextmanager
def proxy(target: str) -> Iterator[Proxy]:
    with Proxy(target) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("side", ["kbroker_process", pytest.param("apache_kafka", marks=pytest.mark.java)])
def test_an_answer_lost_on_one_partition_and_a_refusal_on_another(side: str, request: pytest.FixtureRequest) -> None:
    broker: BrokerProcess = request.getfixturevalue(side)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(PATIENCE_S)
    failed: list[object] = []
    with proxy(broker.bootstrap) as between:
        producer = Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{between.server_address[1]}",
                "enable.idempotence": True,
                "linger.ms": 0,
                "batch.num.messages": 1,
                "socket.timeout.ms": 1000,
                "log_level": 0,
            }
        )
        between.refused = between.lost = True

        def produce(partition: int, number: int) -> None:
            producer.produce(
                TOPIC, str(number), partition=partition, on_delivery=lambda err, _: failed.append(err) if err else None
            )

        for partition in (0, 1):
            produce(partition, 0)
        assert producer.flush(PATIENCE_S) == 0
        between.refused = between.lost = False
        produce(1, 1)
        for number in (1, 2, 3):
            produce(0, number)
        assert producer.flush(PATIENCE_S) == 0
        assert (between.refused, between.lost, failed) == (True, True, [])
    first, second = (judge(read_batches(broker.bootstrap, TOPIC, index, PATIENCE_S)) for index in (0, 1))
    assert (first.twice, first.epochs) == (0, 2)
    assert (second.twice, second.epochs, second.places[1]) == (1, 2, [1, 2]), "a new epoch for all partitions"
