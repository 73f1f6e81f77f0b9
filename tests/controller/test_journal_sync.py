"""The journal's way to the disk: only the requesting client waits, and the possible states after a power loss."""

from __future__ import annotations

import asyncio
import errno
import os
import threading

import pytest

from kbroker.controller import embedded_store
from kbroker.controller.embedded_store import JOURNAL, CorruptMetadata, EmbeddedStore
from kbroker.controller.store_interface import Put

PATIENCE_S = 30


class Disk:
    """Delays syncs until `release`, counts them, and fails them on request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.released = threading.Event()
        self.syncs = 0
        self.error: OSError | None = None
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _sync(self, _fd: int) -> None:
        self.syncs += 1
        assert self.released.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error


def with_store(tmp_path, monkeypatch, work):
    """Run `work(store, disk, failures)` in a loop."""

    async def run():
        store = EmbeddedStore(str(tmp_path))
        failures = []
        store.sync_by_thread(asyncio.get_running_loop(), failures.append)
        disk = Disk(monkeypatch)
        try:
            await asyncio.wait_for(work(store, disk, failures), PATIENCE_S)
        finally:
            disk.error = None
            disk.released.set()
            store.close()

    asyncio.run(run())


def test_a_write_waits_for_nothing_and_its_answer_for_the_disk(tmp_path, monkeypatch):
    async def work(store, disk, _failures):
        assert store.stored() is None
        store.write([Put("/a", {})])
        assert store.get("/a") is not None
        first = store.stored()
        store.write([Put("/b", {})])
        store.write([Put("/c", {})])
        second = store.stored()
        await asyncio.sleep(0)
        assert not first.done()
        assert not second.done()
        disk.released.set()
        await first
        await second
        assert store.stored() is None
        assert disk.syncs == 2, "what was written during the first one shares the second"

    with_store(tmp_path, monkeypatch, work)


def test_who_cannot_wait_settles(tmp_path, monkeypatch):
    async def work(store, disk, _failures):
        disk.released.set()
        store.write([Put("/a", {})])
        store.settle()
        assert store.stored() is None

    with_store(tmp_path, monkeypatch, work)


def test_a_sync_that_fails_is_told_and_nothing_is_written_any_more(tmp_path, monkeypatch):
    async def work(store, disk, failures):
        disk.error = OSError(errno.EIO, "broken")
        store.write([Put("/a", {})])
        stored = store.stored()
        disk.released.set()
        with pytest.raises(OSError, match="broken"):
            await stored
        assert failures == [disk.error]
        with pytest.raises(OSError, match="broken"):
            store.write([Put("/b", {})])
        assert store.get("/b") is None
        with pytest.raises(OSError, match="broken"):
            store.stored()

    with_store(tmp_path, monkeypatch, work)


class ForgetfulDisk:
    """Reports an error in one sync, as Linux does, and in no later one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.left = failing
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _sync(self, _fd: int) -> None:
        self.left -= 1
        fails = self.left == 0
        self.begun.set()
        assert self.may_end.wait(PATIENCE_S)
        if fails:
            raise OSError(errno.EIO, "broken")


@pytest.mark.parametrize("failing", [1, 2])
def test_what_a_sync_lost_is_not_found_by_the_next(tmp_path, monkeypatch, failing):
    """The first sync is the thread's, the second that of a caller that cannot wait."""

    async def work(store, _disk, failures):
        disk = ForgetfulDisk(monkeypatch, failing)
        store.write([Put("/a", {})])
        assert disk.begun.wait(PATIENCE_S)
        store.write([Put("/b", {})])
        stored = store.stored()
        disk.may_end.set()
        with pytest.raises(OSError, match="broken"):
            store.settle()
        with pytest.raises(OSError, match="broken"):
            await stored
        assert len(failures) == 1

    with_store(tmp_path, monkeypatch, work)


def test_a_close_tells_of_what_the_last_sync_lost(tmp_path, monkeypatch):
    async def run():
        store = EmbeddedStore(str(tmp_path))
        store.sync_by_thread(asyncio.get_running_loop(), lambda _error: None)
        disk = ForgetfulDisk(monkeypatch, 1)
        store.write([Put("/a", {})])
        assert disk.begun.wait(PATIENCE_S)
        disk.may_end.set()
        with pytest.raises(OSError, match="broken"):
            store.close()

    asyncio.run(run())


def test_a_compaction_whose_end_fails_leaves_no_hole(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded_store, "_COMPACT_BYTES", 200)
    store = EmbeddedStore(str(tmp_path))
    sync = os.fdatasync

    def failing(fd: int) -> None:
        if os.fstat(fd).st_size == 0:
            raise OSError(errno.EIO, "broken")
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", failing)
    for number in range(20):
        store.write([Put(f"/{number}", {})])
    store.close()
    again = EmbeddedStore(str(tmp_path))
    assert len(again.children("")) == 20
    again.close()


def test_what_is_written_before_a_close_is_there(tmp_path, monkeypatch):
    async def work(store, _disk, _failures):
        for i in range(3):
            store.write([Put(f"/{i}", {"i": i})])

    with_store(tmp_path, monkeypatch, work)
    again = EmbeddedStore(str(tmp_path))
    assert again.children("") == ["0", "1", "2"]
    assert again.get("/2").value == {"i": 2}
    again.close()


def lines_of_four(tmp_path, monkeypatch, *, release_after):
    """Write four lines, of which the disk stores the first `release_after` before the next is written."""

    async def work(store, disk, _failures):
        for i in range(4):
            if i == release_after:
                disk.released.set()
                while store.stored() is not None:
                    await store.stored()
            store.write([Put(f"/{i}", {})])

    with_store(tmp_path, monkeypatch, work)
    raw = (tmp_path / JOURNAL).read_bytes()
    begins = [0]
    for line in raw.splitlines(keepends=True)[:-1]:
        begins.append(begins[-1] + len(line))
    return bytearray(raw), begins


@pytest.mark.parametrize("torn", [0, 1, 2, 3])
@pytest.mark.parametrize("length", [5, 30, 70])
def test_zeros_in_lines_that_were_not_on_disk_end_the_journal(tmp_path, monkeypatch, torn, length):
    raw, begins = lines_of_four(tmp_path, monkeypatch, release_after=4)
    end = min(begins[torn] + length, len(raw))
    raw[begins[torn] + 1 : end] = bytes(end - begins[torn] - 1)
    (tmp_path / JOURNAL).write_bytes(raw)
    store = EmbeddedStore(str(tmp_path))
    assert store.children("") == [str(i) for i in range(torn)]
    store.write([Put("/new", {})])
    store.close()
    again = EmbeddedStore(str(tmp_path))
    assert again.children("") == [*(str(i) for i in range(torn)), "new"]
    again.close()


@pytest.mark.parametrize("torn", [0, 1])
def test_zeros_in_a_line_that_was_on_disk_stop_the_start(tmp_path, monkeypatch, torn):
    raw, begins = lines_of_four(tmp_path, monkeypatch, release_after=2)
    raw[begins[torn] + 12 : begins[torn] + 20] = bytes(8)
    (tmp_path / JOURNAL).write_bytes(raw)
    with pytest.raises(CorruptMetadata, match=f"damaged at byte {begins[torn]}"):
        EmbeddedStore(str(tmp_path))
    assert (tmp_path / JOURNAL).read_bytes() == bytes(raw)


def test_a_flipped_bit_in_a_line_that_was_not_on_disk_stops_the_start(tmp_path, monkeypatch):
    raw, begins = lines_of_four(tmp_path, monkeypatch, release_after=4)
    raw[begins[2] + 12] ^= 1
    (tmp_path / JOURNAL).write_bytes(raw)
    with pytest.raises(CorruptMetadata):
        EmbeddedStore(str(tmp_path))


def test_what_the_sync_of_a_compaction_lost_is_not_found_by_the_next(tmp_path, monkeypatch):
    begun, may_end = threading.Event(), threading.Event()
    sync = os.fdatasync

    def forgetful(fd: int) -> None:
        if (tmp_path / embedded_store.SNAPSHOT).exists() and not begun.is_set():
            begun.set()
            assert may_end.wait(PATIENCE_S)
            raise OSError(errno.EIO, "broken")
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", forgetful)

    async def run():
        store = EmbeddedStore(str(tmp_path))
        failures = []
        store.sync_by_thread(asyncio.get_running_loop(), failures.append)
        try:
            store._compact_at = 0
            store.write([Put("/a", {})])
            assert await asyncio.to_thread(begun.wait, PATIENCE_S)
            store.write([Put("/b", {})])
            stored = store.stored()
            may_end.set()
            with pytest.raises(OSError, match="broken"):
                await stored
            assert len(failures) == 1
        finally:
            may_end.set()
            store.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
