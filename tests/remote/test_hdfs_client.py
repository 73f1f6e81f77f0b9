"""The client of HDFS with a dictionary in place of the library. HDFS itself: compat_tests/remote/test_hdfs.py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.remote.hdfs_client import _THREADS, HdfsClient
from kbroker.remote.store import Store
from kbroker.remote.store_errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreDeniedError,
    StoreError,
    StoreTooSlowError,
    StoreUnavailableError,
    WrongLengthError,
)

PATIENCE_S = 30.0


class Files:
    """The library's client: whole files by their paths."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.error: BaseException | None = None
        self.wait: threading.Event | None = None
        self.running = 0

    def _begin(self) -> None:
        self.running += 1
        if self.wait is not None:
            self.wait.wait(PATIENCE_S)
        self.running -= 1
        if self.error is not None:
            raise self.error

    def create(self, path: str, _options: Any) -> Any:
        self._begin()
        written: list[bytes] = []

        def close() -> None:
            self.files[path] = b"".join(written)

        return SimpleNamespace(write=lambda piece: written.append(bytes(piece)), hsync=lambda: None, close=close)

    def get_file_info(self, path: str) -> Any:
        self._begin()
        if path not in self.files:
            raise FileNotFoundError(path)
        return SimpleNamespace(path=path, length=len(self.files[path]), modification_time=5, isdir=False)

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        assert not overwrite
        if target in self.files:
            raise FileExistsError(target)
        self.files[target] = self.files.pop(source)

    def delete(self, path: str) -> bool:
        self._begin()
        if any(each.startswith(f"{path}/") for each in self.files):
            raise RuntimeError('RPCError("org.apache.hadoop.fs.PathIsNotEmptyDirectoryException", "")')
        return self.files.pop(path, None) is not None

    def read(self, path: str) -> Any:
        self._begin()
        data = self.files[path]

        class Reader:
            def __len__(self) -> int:
                return len(data)

            def read_range(self, start: int, size: int) -> bytes:
                assert start + size <= len(data)
                return data[start : start + size]

        return Reader()

    def list_status(self, path: str, *, recursive: bool) -> Iterator[Any]:
        assert recursive
        for each in sorted(self.files):
            if each.startswith(f"{path}/"):
                yield self.get_file_info(each)


def run(story: Callable[[Files, Store], Awaitable[None]], deadline_s: float = PATIENCE_S) -> None:
    async def whole() -> None:
        files = Files()
        client: Any = files
        await story(files, Store("hdfs://name/root", HdfsClient(client, "/root"), deadline_s))

    asyncio.run(whole())


def test_an_object_appears_whole_and_is_never_replaced() -> None:
    async def story(files: Files, store: Store) -> None:
        await store.put("t/0/a", [b"ab", b"c"], 3)
        assert files.files == {"/root/t/0/a": b"abc"}
        with pytest.raises(ObjectExistsError, match="put of t/0/a in hdfs://name/root: the object exists already"):
            await store.put("t/0/a", [b"other"], 5)
        with pytest.raises(WrongLengthError):
            await store.put("t/0/b", [b"other"], 4)
        assert files.files == {"/root/t/0/a": b"abc"}
        files.files["/root/t/0/b#1"] = b"half"
        assert [(each.name, each.size, each.modified_ms) async for each in store.list("t")] == [("t/0/a", 3, 5)]
        assert bytes(await store.get("t/0/a", 1, 2)) == b"bc"
        for start, size in ((2, 2), (3, 1), (9, 1)):
            with pytest.raises(WrongLengthError):
                await store.get("t/0/a", start, size)
        await store.delete("t/0/b")
        await store.delete("t/0/a")
        assert files.files == {}

    run(story)


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (FileNotFoundError("/root/a"), ObjectNotFoundError, "no such object"),
        (RuntimeError('RPCError("x.AccessControlException", "user=u")'), StoreDeniedError, "denied"),
        (RuntimeError('RPCError("x.NSQuotaExceededException", "")'), StoreUnavailableError, "no space left"),
        (RuntimeError('RPCError("x.SafeModeException", "")'), StoreUnavailableError, "safe mode"),
        (OSError("Connection refused (os error 111)"), StoreUnavailableError, "cannot reach it"),
        (RuntimeError("something"), StoreUnavailableError, "cannot do this now"),
        (type("PanicException", (BaseException,), {})("panic"), StoreUnavailableError, "cannot do this now"),
    ],
)  # fmt: skip
def test_the_errors_of_the_library(error: BaseException, expected: type[StoreError], text: str) -> None:
    async def story(files: Files, store: Store) -> None:
        files.error = error
        with pytest.raises(expected, match=f"head of a in hdfs://name/root: .*{text}"):
            await store.head("a")

    run(story)


@pytest.mark.parametrize("name", ["a#1", "../a", "a//b", "/a", ""])
def test_names_that_no_object_has(name: str) -> None:
    async def story(_files: Files, store: Store) -> None:
        with pytest.raises(ValueError, match="no object can have this name"):
            await store.put(name, [b"a"], 1)

    run(story)


def test_a_thread_that_cannot_start_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def story(_files: Files, store: Store) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", fail)
            for _ in range(_THREADS + 1):
                with pytest.raises(StoreUnavailableError, match="the system starts no thread"):
                    await store.head("a")
        with pytest.raises(ObjectNotFoundError):
            await store.head("a")

    run(story)


def test_a_rename_during_a_deletion_brings_no_object_back() -> None:
    async def story(files: Files, store: Store) -> None:
        files.files["/root/t/a#1"] = b"late"
        delete = files.delete

        def delete_after_rename(path: str) -> bool:
            found = delete(path)
            if "/root/t/a#1" in files.files:
                files.rename("/root/t/a#1", "/root/t/a", overwrite=False)
            return found

        files.delete = delete_after_rename  # type: ignore[method-assign]
        await store.delete("t/a")
        assert files.files == {}

    run(story)


def test_calls_without_an_answer_keep_few_threads() -> None:
    async def story(files: Files, store: Store) -> None:
        files.wait = threading.Event()
        calls = [asyncio.ensure_future(store.head("a", deadline_s=0.2)) for _ in range(3 * _THREADS)]
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(each) for each in done} == {StoreTooSlowError}
        assert files.running == _THREADS
        with pytest.raises(StoreTooSlowError):
            await store.head("a", deadline_s=0.1)
        files.wait.set()
        with pytest.raises(ObjectNotFoundError):
            await store.head("a")

    run(story)
