"""The five verbs on stores without a network, and what addresses and settings are refused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from kbroker.remote.object_client import PART_BYTES, StoredObject
from kbroker.remote.store import Store, open_store
from kbroker.remote.store_address import open_obstore
from kbroker.remote.store_errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreDeniedError,
    StoreSettingError,
    StoreTooSlowError,
    StoreUnavailableError,
    WrongLengthError,
    classified,
    first_line,
)
from tests.tries import tries


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path) -> Store:
    return open_store("memory://" if request.param == "memory" else f"file://{tmp_path}", deadline_s=20)


def pieces(size: int, each: int = 1 << 20) -> Iterator[bytes]:
    for at in range(0, size, each):
        yield bytes([at // each % 251]) * min(each, size - at)


async def listed(store: Store, prefix: str) -> list[StoredObject]:
    return [each async for each in store.list(prefix)]


@pytest.mark.asyncio
async def test_what_is_put_comes_back_in_ranges(store):
    size = PART_BYTES * 2 + 12345
    before = time.time() * 1000
    await store.put("t/0/large", pieces(size), size)
    await store.put("t/0/small", [b"abc", memoryview(b"def"), b""], 6)
    assert bytes(await store.get("t/0/small", 1, 4)) == b"bcde"
    assert bytes(await store.get("t/0/large", (1 << 20) - 1, 2)) == b"\0\x01"
    assert bytes(await store.get("t/0/large", size - 1, 1)) == b"\x10"
    found = await store.head("t/0/large")
    assert (found.name, found.size) == ("t/0/large", size)
    assert abs(found.modified_ms - before) < 60_000
    await store.put("t/00/x", [b"y"], 1)
    assert {(each.name, each.size) for each in await listed(store, "t/0")} == {("t/0/large", size), ("t/0/small", 6)}
    assert len(await listed(store, "t")) == 3
    assert await listed(store, "nothing") == []


@pytest.mark.asyncio
async def test_an_object_is_never_overwritten(store):
    for size in (3, PART_BYTES + 1):
        name = f"o/{size}"
        await store.put(name, pieces(size), size)
        with pytest.raises(ObjectExistsError, match=f"put of {name} in .*: the object exists already"):
            await store.put(name, pieces(size), size)


@pytest.mark.asyncio
async def test_deleted_objects_are_gone_and_may_be_deleted_again(store):
    await store.put("a/b", [b"1"], 1)
    await store.delete("a/b")
    await store.delete("a/b")
    for verb in (store.head("a/b"), store.get("a/b", 0, 1)):
        with pytest.raises(ObjectNotFoundError, match=r"of a/b in .*: no such object"):
            await verb
    assert await listed(store, "a") == []


@pytest.mark.asyncio
async def test_a_deletion_removes_what_a_killed_process_has_written(tmp_path):
    code = (
        "import asyncio, os, signal\n"
        "from kbroker.remote.object_client import PART_BYTES\nfrom kbroker.remote.store import open_store\n"
        "def pieces():\n"
        "    for _ in range(4):\n"
        "        yield b'x' * PART_BYTES\n"
        f"    while not os.path.exists('{tmp_path}/t/a#1'): pass\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"asyncio.run(open_store('file://{tmp_path}').put('t/a', pieces(), 5 * PART_BYTES))\n"
    )
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await asyncio.wait_for(killed.wait(), 20) == -9
    (tmp_path / "t/aa#1").write_text("of another object")
    store = open_store(f"file://{tmp_path}")
    await store.delete("t/a")
    assert [each.name for each in (tmp_path / "t").iterdir()] == ["aa#1"]


@pytest.mark.asyncio
async def test_a_range_beyond_the_end_is_an_error(store):
    await store.put("a", [b"12345"], 5)
    for start, size in ((3, 3), (5, 1), (100, 7)):
        with pytest.raises(WrongLengthError):
            await store.get("a", start, size)
    for start, size in ((0, 0), (-1, 2), (0, -1)):
        with pytest.raises(ValueError, match="a range of"):
            await store.get("a", start, size)


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [5, PART_BYTES + 5])
@pytest.mark.parametrize("off", [-1, 1])
async def test_pieces_of_another_size_leave_nothing(store, size, off):
    with pytest.raises(WrongLengthError, match=f"an object of {size} bytes"):
        await store.put("a", pieces(size + off), size)
    assert await listed(store, "") == []


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [5, PART_BYTES * 2])
async def test_an_error_of_the_source_comes_through_and_leaves_nothing(store, size):
    def failing() -> Iterator[bytes]:
        yield bytes(size // 2)
        raise FileNotFoundError("the segment's file is gone")

    with pytest.raises(FileNotFoundError, match="file is gone"):
        await store.put("a", failing(), size)
    assert await listed(store, "") == []


@pytest.mark.asyncio
async def test_a_source_that_blocks_meets_the_deadline_and_leaves_the_loop_free(store):
    gate = threading.Event()

    def blocking() -> Iterator[bytes]:
        yield bytes(PART_BYTES)
        gate.wait(30)
        yield bytes(PART_BYTES)

    began = time.monotonic()
    with pytest.raises(StoreTooSlowError, match=r"put of a in .*: no answer within 0.3 s"):
        await store.put("a", blocking(), PART_BYTES * 2, deadline_s=0.3)
    assert time.monotonic() - began < 10
    gate.set()
    await store.close()
    assert await listed(store, "") == []


@pytest.mark.asyncio
async def test_a_cancelled_put_stops_its_source(store):
    started, gate, taken = threading.Event(), threading.Event(), []

    def endless() -> Iterator[bytes]:
        for number in range(100):
            taken.append(number)
            started.set()
            gate.wait(30)
            yield bytes(PART_BYTES)

    putting = asyncio.ensure_future(store.put("a", endless(), PART_BYTES * 100))
    await asyncio.to_thread(started.wait, 30)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    gate.set()
    await store.close()
    assert await listed(store, "") == []
    assert len(taken) < 10


@pytest.mark.asyncio
async def test_a_name_that_leads_out_of_the_store_is_refused(store):
    with pytest.raises(ValueError, match=r"put of ../a in .*: no object can have this name"):
        await store.put("../a", [b"1"], 1)


def test_a_directory_without_rights_is_denied(tmp_path):
    text = "Generic LocalFileSystem error: Unable to open file: Permission denied (os error 13)"
    assert classified("GenericError", text) == (StoreDeniedError, "access denied")
    assert classified("GenericError", "x: No space left (os error 28)") == (StoreUnavailableError, "no space left")


@pytest.mark.parametrize(
    ("url", "settings", "why"),
    [
        ("s4://bucket", {}, "begins with one of s3://, gs://, az://, hdfs://, file://, memory://, not with 's4'"),
        ("bucket", {}, "begins with one of"),
        ("s3://", {}, "names no bucket"),
        ("s3://key:hidden@bucket", {}, "has a user, a query or a fragment"),
        ("s3://bucket?signature=hidden", {}, "has a user, a query or a fragment"),
        ("s3://[bucket", {}, "is not a URL"),
        ("file:///no/such/directory", {}, "does not name an existing directory"),
        ("file://relative", {}, "does not name an existing directory"),
        ("memory://", {"region": "hidden"}, "has no settings: region"),
        ("s3://bucket", {"secret_access_key": "hidden"}, "cannot use the store s3://bucket"),
        ("s3://bucket", {"secret_key_of_all": "hidden"}, "'secret_key_of_all' is not valid"),
        ("s3://bucket", {"timeout": "hidden"}, "one of its settings is unknown: timeout"),
        ("az://container", {"account_name": "me", "account_key": "!hidden!"}, "Invalid Access Key"),
        ("gs://bucket", {"service_account_key": '{"private_key": "hidden"}'}, "cannot use the store gs://bucket"),
    ],
)
def test_addresses_and_settings_are_refused_in_one_line_without_secrets(url, settings, why, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(StoreSettingError, match=why) as refused:
        open_store(url, settings)
    assert "hidden" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None or refused.value.__suppress_context__


WITHOUT_THE_EXTRA = """
import pkgutil, sys
sys.modules["obstore"] = sys.modules["sortedcontainers"] = None
import kbroker.remote
for each in pkgutil.iter_modules(kbroker.remote.__path__):
    __import__(f"kbroker.remote.{each.name}")
"""


@pytest.mark.parametrize(
    ("url", "environment", "settings", "allowed"),
    [
        ("s3://b", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, {}, "true"),
        ("s3://b", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, {"endpoint": "https://127.0.0.1:1"}, "false"),
        ("s3://b", {}, {"endpoint": "http://127.0.0.1:1"}, "true"),
        ("s3://b", {}, {}, "false"),
        ("gs://b", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, {}, "false"),
    ],
)
def test_an_endpoint_without_tls_is_used_if_it_is_named(url, environment, settings, allowed, monkeypatch):
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert open_obstore(url.partition(":")[0], url, settings).client_options["allow_http"] == allowed


def test_without_the_extra_the_modules_can_be_imported():
    done = subprocess.run([sys.executable, "-c", WITHOUT_THE_EXTRA], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_the_extra_the_refusal_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(StoreSettingError, match=r"needs the extra tiers: .*pip install '.\[tiers\]'"):
        open_store("memory://")


READ_AND_END = """
import asyncio, sys
from kbroker.remote.store import open_store

async def main():
    store = open_store(sys.argv[1])
    for _ in range(50):
        await store.get("first", 0, 1)

asyncio.run(main())
"""


def test_a_process_that_ends_right_after_a_call_ends_well(tmp_path):
    (tmp_path / "first").write_bytes(b"1")
    for _ in range(tries(12)):
        command = [sys.executable, "-c", READ_AND_END, f"file://{tmp_path}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_values_of_settings_never_get_into_a_line():
    assert first_line("bad key abcdef of abc\nmore", ["abc", "abcdef", "f"]) == "bad key *** of ***"
