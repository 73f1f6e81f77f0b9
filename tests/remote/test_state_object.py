"""The object with the copy of a broker's state: what is written is read, and every damage is seen."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.remote.segment_objects import FilePart
from kbroker.remote.state_object import (
    LogCopy,
    LogEnd,
    StateCopy,
    StateName,
    StateObject,
    folder_of_states,
    parse_state_name,
    state_name,
    write_state,
)
from kbroker.remote.store import Store, open_store
from kbroker.remote.store_errors import DamagedObjectError, WrongLengthError

METADATA = b'[["load",{}]]'
FILES = [b"a" * 100, b"b" * 7, b"", b"c" * 2_000_000]
LOGS = (LogCopy("__consumer_offsets", 3, 5, ((0, 100), (50, 7))), LogCopy("_schemas", 0, 0, ((0, 0), (9, 2_000_000))))
COPY = StateCopy(
    "a cluster/%~", "a directory", 1, 1_700_000_000_000, len(METADATA), LOGS, (LogEnd("t", 0, 3, 1 << 40),)
)
NAME = state_name(COPY.cluster_id, COPY.directory_id, COPY.written_ms, b"0" * 16)


async def written(directory: Path) -> int:
    store = open_store(f"file://{directory}")
    parts = []
    for number, content in enumerate(FILES):
        path = directory / f"{number}.part"
        path.write_bytes(content + b"more, which is not in the copy")
        parts.append(FilePart(str(path), len(content)))
    return await write_state(store, NAME, COPY, METADATA, [parts[:2], parts[2:]])


async def read_all(store: Store, size: int) -> tuple[StateCopy, list[bytes]]:
    state = await StateObject.open(store, NAME, size)
    return state.copy, [b"".join([bytes(piece) async for piece in state.pieces(part)]) for part in range(3)]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    async def run() -> None:
        size = await written(tmp_path)
        store = open_store(f"file://{tmp_path}")
        found = [each async for each in store.list(folder_of_states())]
        assert [(each.name, each.size) for each in found] == [(NAME, size)]
        assert await read_all(store, size) == (COPY, [METADATA, FILES[0] + FILES[1], FILES[3]])

    asyncio.run(run())


@pytest.mark.parametrize("at", ["metadata", "log", "directory", "checksums", "footer"])
def test_every_damage_is_seen(tmp_path: Path, at: str) -> None:
    async def run() -> None:
        size = await written(tmp_path)
        path = tmp_path / NAME
        data = bytearray(path.read_bytes())
        end = len(METADATA) + sum(map(len, FILES))
        data[
            {"metadata": 3, "log": end - 9, "directory": end + 5, "checksums": size - 26, "footer": size - 14}[at]
        ] ^= 1
        path.write_bytes(data)
        store = open_store(f"file://{tmp_path}")
        with pytest.raises(DamagedObjectError, match=r"CRC32C|impossible lengths"):
            await read_all(store, size)

    asyncio.run(run())


@given(cut=st.integers(0, 400), junk=st.binary(max_size=40))
def test_other_objects_are_no_copies(tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes) -> None:
    async def run() -> None:
        directory = tmp_path_factory.mktemp("store")
        await written(directory)
        path = directory / NAME
        data = path.read_bytes()
        path.write_bytes(data[: len(data) - cut - 1] + junk)
        with pytest.raises((DamagedObjectError, WrongLengthError)):
            await StateObject.open(open_store(f"file://{directory}"), NAME, path.stat().st_size)

    asyncio.run(run())


def test_a_file_that_has_become_shorter_is_no_copy(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "short"
        path.write_bytes(b"12")
        copy = StateCopy("c", "d", 1, 0, 0, (LogCopy("t", 0, 0, ((0, 3),)),))
        with pytest.raises(WrongLengthError):
            await write_state(open_store(f"file://{tmp_path}"), NAME, copy, b"", [[FilePart(str(path), 3)]])
        assert not [each async for each in open_store(f"file://{tmp_path}").list(folder_of_states())]

    asyncio.run(run())


def test_a_file_that_was_replaced_is_no_copy(tmp_path: Path) -> None:
    async def run() -> None:
        path, new = tmp_path / "old", tmp_path / "new"
        path.write_bytes(b"123")
        new.write_bytes(b"456789")
        part = FilePart(str(path), 3, path.stat().st_ino)
        new.rename(path)
        copy = StateCopy("c", "d", 1, 0, 0, (LogCopy("t", 0, 0, ((0, 3),)),))
        with pytest.raises(WrongLengthError, match="replaced"):
            await write_state(open_store(f"file://{tmp_path}"), NAME, copy, b"", [[part]])
        assert not [each async for each in open_store(f"file://{tmp_path}").list(folder_of_states())]

    asyncio.run(run())


def test_names() -> None:
    assert parse_state_name(f"a/prefix/{NAME}") == StateName(COPY.cluster_id, COPY.directory_id, COPY.written_ms)
    assert state_name("c", "d", 5, bytes(16)) < state_name("c", "d", 10**12, bytes(16))
    for other in (NAME[:-1], NAME.replace("broker-state", "other"), "0" * 22 + "/0/" + "0" * 20 + "-" + "0" * 22):
        assert parse_state_name(other) is None
