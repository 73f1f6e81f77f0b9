"""Objects and topics in HDFS: a name node and a data node of Hadoop 3.4.1 in one JVM."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.clients.common import wait_for
from kbroker.embed import Broker
from kbroker.remote.object_client import Piece
from kbroker.remote.store import Store, open_store
from kbroker.remote.store_errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreDeniedError,
    StoreTooSlowError,
    StoreUnavailableError,
    WrongLengthError,
)
from tests.tries import FORM

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(FORM != "long", reason="fetches Hadoop and starts a JVM: only with KBROKER_TESTS=long"),
]
SOURCE = Path(__file__).with_name("MiniHdfs.java")
PATIENCE_S = 60.0


class Hdfs:
    """HDFS in a JVM, and orders for it."""

    def __init__(self, libs: Path, directory: Path) -> None:
        command = ["java", "-Xmx512M", "-cp", f"{libs.resolve()}/*", str(SOURCE), str(directory)]
        self._log = (directory.parent / "hdfs.log").open("wb")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self.url = f"hdfs://127.0.0.1:{self._answer()}"

    def order(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        assert self._answer() == "done"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("= "):
                return line[2:].strip()
        raise AssertionError("HDFS has ended")

    def stop(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self._log.close()


@pytest.fixture(scope="module")
def hdfs(hdfs_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    found = Hdfs(hdfs_libs, tmp_path_factory.mktemp("hdfs") / "data")
    yield found
    found.stop()


def run(hdfs: Hdfs, folder: str, story: Callable[[Store], Awaitable[None]], deadline_s: float = 20.0) -> None:
    async def whole() -> None:
        store = open_store(f"{hdfs.url}/{folder}", deadline_s=deadline_s)
        await story(store)
        await store.close()

    asyncio.run(whole())


async def names(store: Store, prefix: str = "") -> list[str]:
    return sorted([each.name async for each in store.list(prefix)])


def test_the_verbs(hdfs: Hdfs) -> None:
    data = os.urandom(3_000_000)

    async def story(store: Store) -> None:
        assert await names(store) == []
        pieces: list[Piece] = [data[:1_000_000], bytearray(data[1_000_000:2_000_000]), memoryview(data)[2_000_000:]]
        await store.put("t/0/a", pieces, len(data))
        assert await store.get("t/0/a", 1_999_990, 20) == data[1_999_990:2_000_010]
        assert (await store.head("t/0/a")).size == len(data)
        assert abs((await store.head("t/0/a")).modified_ms - time.time() * 1000) < 60_000
        with pytest.raises(ObjectExistsError, match=r"put of t/0/a in hdfs://.*: the object exists already"):
            await store.put("t/0/a", [b"x"], 1)
        await store.put("t/0/b", [b"b"], 1)
        await store.put("t/1/a", [b"a"], 1)
        assert await names(store) == ["t/0/a", "t/0/b", "t/1/a"]
        assert await names(store, "t/0") == ["t/0/a", "t/0/b"]
        assert await names(store, "none") == []
        for start, size in ((len(data) - 5, 10), (len(data), 1), (len(data) + 5, 1)):
            with pytest.raises(WrongLengthError):
                await store.get("t/0/a", start, size)
        for name in ("t/0/none", "t/0", "none/0/a"):
            with pytest.raises(ObjectNotFoundError, match="no such object"):
                await store.head(name)
        with pytest.raises(ObjectNotFoundError):
            await store.get("t/0/none", 0, 1)
        for name in ("t/0/a", "t/0/none", "t/0/b", "t/1/a"):
            await store.delete(name)
        assert await names(store) == []
        with pytest.raises(WrongLengthError):
            await store.put("t/0/a", [b"abc"], 2)
        with pytest.raises(ValueError, match="no object can have this name"):
            await store.put("../a", [b"abc"], 3)
        assert await names(store) == []

    run(hdfs, "verbs", story)


def test_an_incomplete_file_is_no_object_and_goes_with_the_object(hdfs: Hdfs) -> None:
    from hdfs_native import Client, WriteOptions

    client = Client(hdfs.url)
    writer = client.create("/torn/t/a#1", WriteOptions(create_parent=True))
    writer.write(b"half")

    async def story(store: Store) -> None:
        assert await names(store) == []
        await store.put("t/a", [b"whole"], 5)
        assert await names(store) == ["t/a"]
        client.create("/torn/t/a#1", WriteOptions(create_parent=True, overwrite=True)).write(b"half")
        await store.delete("t/a")
        with pytest.raises(FileNotFoundError):
            client.get_file_info("/torn/t")

    run(hdfs, "torn", story)


def test_a_name_node_in_safe_mode_and_a_restart(hdfs: Hdfs) -> None:
    async def story(store: Store) -> None:
        await store.put("a", [b"a"], 1)
        hdfs.order("enter safe mode")
        with pytest.raises(StoreUnavailableError, match="safe mode"):
            await store.put("b", [b"b"], 1)
        hdfs.order("leave safe mode")
        await store.put("b", [b"b"], 1)
        for order in ("restart name node", "restart data node"):
            hdfs.order(order)
            assert bytes(await store.get("a", 0, 1)) == b"a"
            await store.put(order.replace(" ", "-"), [b"c"], 1)

    run(hdfs, "safe", story)


def test_a_user_without_rights(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    from hdfs_native import Client

    client = Client(hdfs.url)
    client.mkdirs("/private", 0o700, True)
    client.create("/private/a").close()
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")

    async def story(store: Store) -> None:
        for call in (
            lambda: store.put("b", [b"b"], 1),
            lambda: store.get("a", 0, 1),
            lambda: store.head("a"),
            lambda: store.delete("a"),
            lambda: names(store),
        ):
            with pytest.raises(StoreDeniedError, match="access denied"):
                await call()

    run(hdfs, "private", story)


def test_a_server_that_does_not_answer_ends_no_call_late_and_no_process(hdfs: Hdfs) -> None:
    async def story(store: Store) -> None:
        await store.put("a", [b"a"], 1)
        os.kill(hdfs.process.pid, signal.SIGSTOP)
        stopped = psutil.Process(hdfs.process.pid)
        wait_for("a stopped JVM", lambda: stopped.status() == psutil.STATUS_STOPPED, PATIENCE_S)
        try:
            for _ in range(40):
                with pytest.raises(StoreTooSlowError, match=r"no answer within 0.2 s"):
                    await store.head("a", deadline_s=0.2)
        finally:
            os.kill(hdfs.process.pid, signal.SIGCONT)
        assert bytes(await store.get("a", 0, 1)) == b"a"

    run(hdfs, "never", story)


def test_a_topic_in_both_tiers(hdfs: Hdfs, tmp_path: Path) -> None:
    settings = {
        "remote.log.storage.system.enable": "true",
        "remote.storage.url": f"{hdfs.url}/tiers",
        "remote.log.manager.task.interval.ms": "100",
        "log.initial.task.delay.ms": "100",
        "log.retention.check.interval.ms": "200",
        "log.segment.delete.delay.ms": "100",
        "remote.log.manager.task.retry.backoff.ms": "50",
        "remote.log.manager.task.retry.backoff.max.ms": "500",
    }
    count = 20_000

    async def stored() -> list[str]:
        store = open_store(f"{hdfs.url}/tiers")
        found = [each async for each in store.list("")]
        return [each.name for each in found if not each.name.startswith("broker-state/")]

    with Broker(settings, data_dir=tmp_path / "data") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        config = {
            "remote.storage.enable": "true",
            "internal.segment.bytes": "100000",
            "local.retention.bytes": "200000",
        }
        admin.create_topics([NewTopic("t", 1, 1, config=config)])["t"].result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 10_000})
        for number in range(count):
            producer.produce("t", b"%d" % number * 20)
            if number in (count // 3, count // 2):
                producer.flush(PATIENCE_S)
                hdfs.order("restart name node" if number == count // 3 else "restart data node")
        producer.flush(PATIENCE_S)
        partition = broker.node.replicas.get(("t", 0))
        assert partition is not None
        log = partition.log
        wait_for("only the last segments on the disk", lambda: log.log_start_offset > count * 2 // 3, PATIENCE_S)
        assert asyncio.run(stored())
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "error"}
        )
        consumer.assign([TopicPartition("t", 0, 0)])
        values: list[bytes] = []
        end = time.monotonic() + PATIENCE_S
        while len(values) < count and time.monotonic() < end:
            values += [each.value() for each in consumer.consume(1000, 1.0) if each.error() is None]
        consumer.close()
        assert values == [b"%d" % number * 20 for number in range(count)]
        admin.delete_topics(["t"])["t"].result(PATIENCE_S)
        wait_for("an empty store", lambda: not asyncio.run(stored()), PATIENCE_S)
