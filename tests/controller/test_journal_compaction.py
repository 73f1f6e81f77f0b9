"""The metadata journal is compacted in pieces: an interruption loses nothing, and nobody waits for it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import shutil
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from kbroker.controller import embedded_store, metadata_snapshot
from kbroker.controller.embedded_store import JOURNAL, NEXT, SNAPSHOT, CorruptMetadata, EmbeddedStore
from kbroker.controller.store_interface import Change, Delete, Put
from tests.crash.power import Power
from tests.own_thread import in_this_thread

SEED = 20261122
PATHS = [f"/{a}/{b}" for a in "abc" for b in range(20)]
PATIENCE_S = 60


class Model:
    """The expected contents of the store."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.values: dict[str, int] = {}
        self.count = 0

    def change(self, store: EmbeddedStore) -> None:
        """Make a random change."""
        changes: list[Change] = []
        for _ in range(self.rng.randint(1, 3)):
            self.count += 1
            if self.rng.random() < 0.2:
                gone = self.rng.choice([*PATHS, "/a"])
                changes.append(Delete(gone))
                self.values = {p: n for p, n in self.values.items() if p != gone and not p.startswith(gone + "/")}
            else:
                path = self.rng.choice(PATHS)
                changes.append(Put(path, {"n": self.count}))
                self.values[path] = self.count
        store.write(changes)


def held(directory: Path) -> dict[str, int]:
    """Open a store and return its contents; the store must also accept new changes."""
    store = EmbeddedStore(str(directory))
    found = {path: node.value["n"] for path in PATHS if (node := store.get(path)) is not None}
    store.write([Put("/later", {})])
    store.close()
    again = EmbeddedStore(str(directory))
    kept = {path: node.value["n"] for path in PATHS if (node := again.get(path)) is not None}
    assert kept == found
    assert again.get("/later") is not None
    again.close()
    return found


def steps_of(store: EmbeddedStore) -> Any:
    """Run a compaction step by step; a yielded step that waits for the disk has finished waiting."""
    for waits in store.compacting():
        if waits is not None:
            waits()
        yield


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_snapshot, "_AT_ONCE", 5)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
@pytest.mark.parametrize("loss", ["process", "power"])
def test_whenever_it_is_cut_off_all_changes_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, loss: str
) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    power, model, cuts = Power(directory), Model(seed), 0

    def check() -> None:
        nonlocal cuts
        target = tmp_path / f"cut-{cuts}"
        cuts += 1
        if loss == "power":
            power.after_power_loss(target)
        else:
            shutil.copytree(directory, target)
        assert held(target) == model.values
        shutil.rmtree(target)

    with power.watched(monkeypatch):
        store = EmbeddedStore(str(directory))
        for round_ in range(3):
            for _ in range(20):
                model.change(store)
            for _ in steps_of(store):
                check()
                for _ in range(model.rng.choice([0, 0, 1, 2])):
                    model.change(store)
                check()
            assert not (directory / NEXT).exists()
            if round_ == 1:
                store.close()
                store = EmbeddedStore(str(directory))
        store.close()
    assert cuts > 30
    assert held(directory) == model.values
    assert not any(path.name.endswith(".tmp") for path in directory.iterdir())


@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_one_that_was_cut_off_is_ended_later(tmp_path: Path, seed: int) -> None:
    """Both journals, from before and after, stay until a snapshot contains everything in the first one."""
    model = Model(seed)
    for cut in range(1, 12):
        store = EmbeddedStore(str(tmp_path))
        for _ in range(5):
            model.change(store)
        compaction = steps_of(store)
        for _ in range(cut):
            next(compaction, None)
            model.change(store)
        shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-{cut}"))
        store.close()
        left = tmp_path.with_name(f"{tmp_path.name}-{cut}")
        was_cut = (left / NEXT).exists()
        again = EmbeddedStore(str(left))
        model.change(again)  # begins where it was interrupted
        assert not (left / NEXT).exists()
        assert (left / SNAPSHOT).exists() or not was_cut
        again.close()
        assert held(left) == model.values
        model.values = held(tmp_path)


def test_it_goes_on_beside_requests_and_is_told_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is encoded in one step, and what is acknowledged meanwhile is on the disk."""
    monkeypatch.setattr(embedded_store, "_COMPACT_BYTES", 40_000)
    encoded: list[int] = []
    real = json.dumps

    def dumps(value: Any, **options: Any) -> str:
        if threading.get_ident() == own_thread:  # brokers of other tests may encode, too
            encoded.append(len(value))
        return real(value, **options)

    own_thread = threading.get_ident()
    directory = tmp_path / "data"
    directory.mkdir()
    power, model = Power(directory), Model(SEED)
    losses: list[tuple[Path, dict[str, int]]] = []

    async def scenario() -> None:
        store = EmbeddedStore(str(directory))
        store.sync_by_thread(asyncio.get_running_loop(), lambda _error: None)
        monkeypatch.setattr(json, "dumps", dumps)
        snapshots = 0
        while len(losses) < 25 or snapshots < 3:
            before = (directory / SNAPSHOT).stat().st_ino if (directory / SNAPSHOT).exists() else 0
            for _ in range(40):
                model.change(store)
            acknowledged = dict(model.values)
            stored = store.stored()
            if stored is not None:
                await stored
            target = tmp_path / f"loss-{len(losses)}"
            power.after_power_loss(target)
            losses.append((target, acknowledged))
            after = (directory / SNAPSHOT).stat().st_ino if (directory / SNAPSHOT).exists() else 0
            snapshots += before != after
        store.close()

    with power.watched(monkeypatch):
        asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    assert max(encoded) <= 5
    for target, acknowledged in losses:
        assert held(target) == acknowledged
    assert held(directory) == model.values


def test_a_full_disk_ends_it_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_store, "_COMPACT_BYTES", 1000)
    model = Model(SEED)
    store = EmbeddedStore(str(tmp_path))
    pwrite = os.pwrite

    def full(fd: int, data: Any, position: int) -> int:
        if "snapshot" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(28, "No space left on device")
        return pwrite(fd, data, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        for _ in range(100):
            model.change(store)
        assert (tmp_path / NEXT).exists()
        assert not (tmp_path / SNAPSHOT).exists()
    for _ in range(100):
        model.change(store)
    store.close()
    assert not (tmp_path / NEXT).exists()
    assert os.path.getsize(tmp_path / JOURNAL) < 3000
    assert held(tmp_path) == model.values


def begun(directory: Path) -> tuple[bytes, bytes]:
    """Leave a journal of three lines, and a next one of three that does not say that earlier lines are on disk."""
    store = EmbeddedStore(str(directory))
    for number in range(3):
        store.write([Put(f"/{number}", {})])
    next(store.compacting())
    for number in range(3, 6):
        store.write([Put(f"/{number}", {})])
    store.close()
    first, second = (directory / JOURNAL).read_bytes(), (directory / NEXT).read_bytes()
    begin, *rest = second.splitlines(keepends=True)
    lines = [begin]
    for line in rest:
        entries = embedded_store.parse_line(line[:-1])
        assert entries is not None
        lines.append(embedded_store._line([["synced", 0], *entries]))
    (directory / NEXT).write_bytes(b"".join(lines))
    return first, b"".join(lines)


@pytest.mark.parametrize("lost", [1, 30, 60, 500])
def test_what_follows_a_journal_that_lost_its_end_was_never_acknowledged(tmp_path: Path, lost: int) -> None:
    first, _ = begun(tmp_path)
    (tmp_path / JOURNAL).write_bytes(first[:-lost] if lost < len(first) else b"")
    kept = (first[:-lost] if lost < len(first) else b"").count(b"\n")
    store = EmbeddedStore(str(tmp_path))
    assert store.children("") == [str(number) for number in range(kept)]
    store.write([Put("/new", {})])
    store.close()
    again = EmbeddedStore(str(tmp_path))
    assert again.children("") == [*(str(number) for number in range(kept)), "new"]
    again.close()


@pytest.mark.parametrize("where", ["first", "second"])
def test_zeros_end_both(tmp_path: Path, where: str) -> None:
    first, second = begun(tmp_path)
    begins = [0]
    for line in (first + second).splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    torn, kept = (2, 2) if where == "first" else (5, 4)
    raw = bytearray(first + second)
    raw[begins[torn] + 15 : begins[torn] + 20] = bytes(5)
    (tmp_path / JOURNAL).write_bytes(raw[: len(first)])
    (tmp_path / NEXT).write_bytes(raw[len(first) :])
    store = EmbeddedStore(str(tmp_path))
    assert store.children("") == [str(number) for number in range(kept)]
    store.close()


def test_a_journal_that_was_on_disk_and_is_shorter_stops_the_start(tmp_path: Path) -> None:
    store = EmbeddedStore(str(tmp_path))
    for number in range(3):
        store.write([Put(f"/{number}", {})])
    next(store.compacting())
    store.write([Put("/3", {})])
    store.close()
    raw = (tmp_path / JOURNAL).read_bytes()
    (tmp_path / JOURNAL).write_bytes(raw[: raw.rindex(b"\n", 0, -1) + 1])
    with pytest.raises(CorruptMetadata, match="is damaged"):
        EmbeddedStore(str(tmp_path))


def test_a_second_journal_that_could_not_be_begun_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_store, "_COMPACT_BYTES", 200)
    store = EmbeddedStore(str(tmp_path))
    sync = os.fsync

    def failing(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, "broken")
        sync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", in_this_thread(failing, sync))
        for number in range(20):
            store.write([Put(f"/{number}", {})])
    store.close()
    again = EmbeddedStore(str(tmp_path))
    assert len(again.children("")) == 20
    again.close()


def test_one_that_finds_no_descriptors_is_tried_again_and_ends_no_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[OSError] = []
    opened = os.open

    def scarce(path: Any, *rest: Any, **more: Any) -> int:
        if os.fspath(path) == str(tmp_path):
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, *rest, **more)

    async def scenario() -> None:
        store = EmbeddedStore(str(tmp_path))
        store.sync_by_thread(asyncio.get_running_loop(), failures.append)
        store._compact_at = 0
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", scarce)
            for number in range(3):
                store.write([Put(f"/{number}", {})])
                stored = store.stored()
                assert stored is not None
                await asyncio.wait_for(stored, PATIENCE_S)
                await asyncio.sleep(0.01)
        assert failures == []
        store._compact_at = 0
        store.write([Put("/3", {})])
        for _ in range(PATIENCE_S * 1000):
            if (tmp_path / SNAPSHOT).exists() and not (tmp_path / NEXT).exists():
                break
            await asyncio.sleep(0.001)
        store.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    again = EmbeddedStore(str(tmp_path))
    assert again.children("") == ["0", "1", "2", "3"]
    again.close()
