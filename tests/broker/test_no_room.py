"""The disk of a single node is full: it serves reads, refuses writes, and reports it until there is room."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kbroker import Broker
from kbroker.log.directories import room
from kbroker.long_work import whole
from kbroker.metrics.health import readiness
from kbroker.protocol.errors import ErrorCode

WAIT_S = 20


class Disk:
    """A disk that the test makes full for its writers."""

    def __init__(self) -> None:
        self.full = False

    def refusing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*arguments: object, **more: object) -> Any:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return call(*arguments, **more)

        return instead


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(os, "pwrite", made.refusing(os.pwrite))
    monkeypatch.setattr(os, "posix_fallocate", made.refusing(os.posix_fallocate))
    monkeypatch.setattr(room, "_CHECK_MS", 100)
    return made


def test_a_full_disk_is_told_of_until_there_is_room(disk: Disk) -> None:
    with Broker() as broker:
        node = broker._node
        assert node is not None
        address = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(address)

        def told() -> tuple[bool, int, int]:
            async def inside() -> bool:
                return whole(readiness(node, None, stopping=False, strict=False))[0]

            ready = broker._steering().wait_for(inside())
            return ready, len(node.logs.full), dict(node.replicas.traffic.now()[0])["t"].failed_produces

        broker.topics.create("t")
        assert told() == (True, 0, 0)
        disk.full = True
        refused: list[int] = []
        producer = Producer({**address, "retries": 0})
        producer.produce("t", b"v", on_delivery=lambda error, _record: refused.append(error.code()))
        assert producer.flush(WAIT_S) == 0
        assert refused == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert told() == (False, 1, 1)
        created = admin.create_topics([NewTopic("new", 1, 1)])["new"]
        grown = admin.create_partitions([NewPartitions("t", 2)])["t"]
        for asked in (created, grown):
            with pytest.raises(KafkaException) as failed:
                asked.result(WAIT_S)
            assert failed.value.args[0].code() == ErrorCode.KAFKA_STORAGE_ERROR
        disk.full = False
        deadline = time.monotonic() + WAIT_S
        while told() != (True, 0, 1):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        admin.create_topics([NewTopic("new", 1, 1)])["new"].result(WAIT_S)


def test_a_disk_that_cannot_be_asked_is_asked_again(tmp_path: Path) -> None:
    """A failed check does not end the periodic work."""
    gone = room.Room(str(tmp_path / "gone"))
    with ThreadPoolExecutor(1) as pool:
        gone.on_error(OSError(errno.ENOSPC, "full"))
        for now_ms in range(room._CHECK_MS, 10 * room._CHECK_MS, room._CHECK_MS):
            gone.check(now_ms, pool)
            if gone._checking is not None:
                wait([gone._checking], WAIT_S)
        assert gone.lacking
        (tmp_path / "gone").mkdir()
        for now_ms in range(10 * room._CHECK_MS, 14 * room._CHECK_MS, room._CHECK_MS):
            gone.check(now_ms, pool)
            if gone._checking is not None:
                wait([gone._checking], WAIT_S)
        assert not gone.lacking


@pytest.mark.parametrize(
    ("blocks", "free", "for_others", "user", "enough"),
    [
        (0, 0, 0, 1000, True),  # ramfs, and a tmpfs without a size
        (100, 10, 0, 1000, False),
        (100, 10, 0, 0, True),  # some blocks of a file system are reserved for root
        (100, 0, 0, 0, False),
    ],
)
def test_what_a_file_system_says_of_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, free: int, for_others: int, user: int, enough: bool
) -> None:
    told = os.statvfs_result((4096, 4096, blocks, free, for_others, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: told)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert room.Room(str(tmp_path)).has_for(10) == enough
