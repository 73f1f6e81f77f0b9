"""Produce requests of which a part fails: refused before anything is appended, or answered for each partition."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.broker.node import BrokerNode
from kbroker.config.server_config import BrokerConfig
from kbroker.handlers.produce import FEW, produce
from kbroker.handlers.registry import CloseConnection, RequestContext
from kbroker.log import record_validation
from kbroker.long_work import awaited, in_slices
from kbroker.partition import Partition
from kbroker.protocol.compiler import encode
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.connections import RequestHeader
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.broker.in_effect import in_effect
from tests.broker.test_endings import create
from tests.log.builders import batch

NOW = int(time.time() * 1000)
MANY = FEW + 10
GOOD = batch(3, timestamp=NOW)
TRANSACTIONAL = batch(1, timestamp=NOW, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)


def patched(position: int, form: str, value: int) -> bytes:
    raw = bytearray(GOOD)
    struct.pack_into(form, raw, position, value)
    return bytes(raw)


NO_MAGIC = patched(16, ">b", 7)
NO_LENGTH = patched(8, ">i", 3)
REFUSING = [
    pytest.param(TRANSACTIONAL, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, id="transactional"),
    pytest.param(NO_MAGIC, ErrorCode.CORRUPT_MESSAGE, id="magic"),
    pytest.param(NO_LENGTH, ErrorCode.CORRUPT_MESSAGE, id="length"),
]


def request(batches: list[bytes], transactional_id: str | None = None, acks: int = -1) -> ProduceRequest:
    parts = [PartitionProduceData(index=i, records=memoryview(bytearray(b))) for i, b in enumerate(batches)]
    topics = [TopicProduceData(name="t", partition_data=parts)]
    return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=topics)


def run(tmp_path: Path, scenario: Callable[[Callable[..., Any], Callable[[], list[int]]], Any], **keys: str) -> None:
    """Run a scenario with a function that produces, and a function that returns the partitions' end offsets."""

    async def main() -> None:
        config = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), "num.partitions": str(MANY)}
        node = await BrokerNode.start(BrokerConfig(config | {k.replace("_", "."): v for k, v in keys.items()}))
        try:
            node.controller.auto_create("t")
            await in_effect(node)
            context = RequestContext(node.services, "/127.0.0.1", "PLAINTEXT", ("", 0))
            context.version = 11

            async def ask(asked: ProduceRequest) -> Any:
                return await in_slices(awaited(produce(context, asked)))

            def ends() -> list[int]:
                found = [node.replicas.get(("t", i)) for i in range(MANY)]
                return [partition.log.log_end_offset for partition in found if partition is not None]

            await scenario(ask, ends)
        finally:
            await node.stop()

    asyncio.run(main())


def codes(answer: Any) -> list[int]:
    return [part.error_code for topic in answer.responses for part in topic.partition_responses]


@pytest.mark.parametrize(("bad", "code"), REFUSING)
@pytest.mark.parametrize("count", [2, MANY])
def test_what_is_refused_whole_is_not_appended_in_part(tmp_path: Path, bad: bytes, code: int, count: int) -> None:
    async def scenario(ask: Any, ends: Any) -> None:
        with pytest.raises(ApiError) as refused:
            await ask(request([GOOD] * (count - 1) + [bad]))
        assert refused.value.code == code
        assert set(ends()) == {0}

    run(tmp_path, scenario)


@pytest.mark.parametrize(("bad", "code"), REFUSING)
def test_one_partition_is_refused_as_before(tmp_path: Path, bad: bytes, code: int) -> None:
    async def scenario(ask: Any, ends: Any) -> None:
        with pytest.raises(ApiError) as refused:
            await ask(request([bad]))
        assert refused.value.code == code

    run(tmp_path, scenario)


def fail_at(monkeypatch: pytest.MonkeyPatch, index: int, error: Exception) -> None:
    append = Partition.append

    def failing(self: Partition, *args: Any, **kw: Any) -> Any:
        if self.index == index:
            raise error
        return append(self, *args, **kw)

    monkeypatch.setattr(Partition, "append", failing)


UNFORESEEN = [
    pytest.param(RuntimeError("a bug"), ErrorCode.UNKNOWN_SERVER_ERROR, id="bug"),
    pytest.param(OSError(5, "Input/output error"), ErrorCode.KAFKA_STORAGE_ERROR, id="disk"),
]


@pytest.mark.parametrize(("error", "code"), UNFORESEEN)
@pytest.mark.parametrize("count", [3, MANY])
@pytest.mark.parametrize("transactional_id", [None, "x"])
def test_what_fails_unforeseen_fails_for_its_partition(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: int,
    count: int,
    transactional_id: str | None,
) -> None:
    fail_at(monkeypatch, 1, error)

    async def scenario(ask: Any, ends: Any) -> None:
        answer = await ask(request([GOOD] * count, transactional_id))
        assert codes(answer) == [0, code] + [0] * (count - 2)
        assert ends()[:count] == [3, 0] + [3] * (count - 2)
        with pytest.raises(CloseConnection):
            await ask(request([GOOD] * count, transactional_id, acks=0))
        assert ends()[:count] == [6, 0] + [6] * (count - 2)

    run(tmp_path, scenario)


@pytest.mark.parametrize(("error", "code"), UNFORESEEN)
def test_likewise_where_batches_are_opened_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    monkeypatch.setattr(record_validation, "_AT_ONCE_SECONDS", 0)
    monkeypatch.setattr(record_validation, "_FEW", 0)
    append = Partition.append

    def failing(self: Partition, *args: Any, **kw: Any) -> Any:
        if self.index == 1 and kw.get("opened") is not None:
            raise error
        return append(self, *args, **kw)

    monkeypatch.setattr(Partition, "append", failing)

    async def scenario(ask: Any, ends: Any) -> None:
        assert codes(await ask(request([GOOD] * 3))) == [0, code, 0]
        assert ends()[:3] == [3, 0, 3]

    run(tmp_path, scenario, log_cleanup_policy="compact")


def test_a_piece_that_fails_leaves_the_others_their_answers(tmp_path: Path) -> None:
    """Two producers are in one piece of a long transactional request."""
    other = batch(1, timestamp=NOW, producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)

    async def scenario(ask: Any, ends: Any) -> None:
        answer = await ask(request([GOOD] * (MANY - 2) + [TRANSACTIONAL, other], "x"))
        found = codes(answer)
        assert len(found) == MANY
        assert found[:64] == [0] * 64
        assert set(found[72:]) == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
        assert [bool(code) for code in found] == [end == 0 for end in ends()]

    run(tmp_path, scenario)


def test_a_verification_that_fails_while_it_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails() -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr("kbroker.handlers.produce_in_transaction.verify", lambda *_args: fails())

    async def scenario(ask: Any, ends: Any) -> None:
        found = codes(await ask(request([GOOD] * 64 + [TRANSACTIONAL] + [GOOD] * (MANY - 65), "x")))
        assert found == [0] * 64 + [ErrorCode.UNKNOWN_SERVER_ERROR] * 8 + [0] * (MANY - 72)
        assert [bool(code) for code in found] == [end == 0 for end in ends()]

    run(tmp_path, scenario)


def test_behind_a_transactional_batch_a_bad_one_concerns_its_partition(tmp_path: Path) -> None:
    """Like Kafka, which then no longer checks for errors that refuse the complete request."""

    async def scenario(ask: Any, ends: Any) -> None:
        assert codes(await ask(request([TRANSACTIONAL, NO_MAGIC], "x")))[1] == ErrorCode.CORRUPT_MESSAGE
        with pytest.raises(ApiError):
            await ask(request([NO_MAGIC, TRANSACTIONAL], "x"))

    run(tmp_path, scenario)


def test_answers_before_an_unforeseen_failure_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two requests in one read, the second fails in the express path: nobody knows whether it is appended."""

    def frame(number: int) -> bytes:
        asked = request([GOOD])
        header = RequestHeader(request_api_key=0, request_api_version=9, correlation_id=number, client_id="c")
        body = encode(header, 2) + encode(asked, 9)
        return struct.pack(">i", len(body)) + body

    def answered(sock: socket.socket) -> int:
        (size,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
        return int(struct.unpack_from(">i", sock.recv(size, socket.MSG_WAITALL))[0])

    with Broker({"num.partitions": "1"}, data_dir=str(tmp_path)) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        with WireClient(broker.bootstrap_servers) as client:
            create(client, "t")
        with socket.create_connection((host, int(port)), timeout=20) as sock:
            for number in range(3):
                sock.sendall(frame(number))
                assert answered(sock) == number
            append, seen = Partition.append, 0

            def failing(self: Partition, *args: Any, **kw: Any) -> Any:
                nonlocal seen
                seen += 1
                if seen == 2:
                    raise OSError(5, "nobody foresaw this")
                return append(self, *args, **kw)

            monkeypatch.setattr(Partition, "append", failing)
            sock.sendall(frame(3) + frame(4))
            assert answered(sock) == 3
            assert sock.recv(1) == b""
            assert seen == 2, "it is not tried again"
