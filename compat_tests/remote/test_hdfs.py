"""Objects and topics in HDFS: a name node and a data node of Hadoop 3.4.1 in one JVM."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from compat_tests.clients.common import wait_for
from compat_tests.remote.stories import PATIENCE_S, keep_topic, names, verbs
from kbroker.remote.store import Store, open_store
from kbroker.remote.store_errors import StoreDeniedError, StoreTooSlowError, StoreUnavailableError
from tests.tries import FORM

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(FORM != "long", reason="fetches Hadoop and starts a JVM: only with KBROKER_TESTS=long"),
]
SOURCE = Path(__file__).with_name("MiniHdfs.java")


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


def test_the_verbs(hdfs: Hdfs) -> None:
    run(hdfs, "verbs", verbs)


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
    keep_topic(
        tmp_path,
        f"{hdfs.url}/tiers",
        {},
        disturb=[lambda: hdfs.order("restart name node"), lambda: hdfs.order("restart data node")],
    )
