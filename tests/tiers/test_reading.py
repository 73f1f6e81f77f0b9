"""The reader of remote segments, without a broker: chunks on the disk, and the aborted transactions of a range."""

from __future__ import annotations

import asyncio
import gc
import random
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.log_slice import LogSlice
from kbroker.log.segment.transaction_index import AbortedTxn, encode_aborted
from kbroker.long_work import whole
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.remote.store_errors import ObjectNotFoundError
from kbroker.tiers.chunk_cache import ChunkCache, ChunkKey
from kbroker.tiers.reading import NOT_YET, RemoteData, _aborted_in
from tests.descriptors import open_descriptors
from tests.tiers.world import SIZE, World

SEED = 20261130


async def read(world: World, offset: int) -> RemoteData:
    until = asyncio.get_running_loop().time() + 20
    return await world.reader.read(
        world.tiered.owner, world.log, offset, 1 << 20, min_one=True, committed=False, until=until
    )


def test_a_chunk_whose_file_is_gone_is_fetched_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        await world.load()
        world.append(12)
        await world.round()
        world.retain()
        assert len((await read(world, 0)).records) == 2 * SIZE
        for each in (tmp_path / "chunks").iterdir():
            each.unlink()
        gc.collect()
        assert await read(world, 0) == NOT_YET
        assert len((await read(world, 0)).records) == 2 * SIZE
        assert world.reader.chunks.size % (2 * SIZE) == 0  # the next chunk may be there already
        assert world.shared.counts.read_errors == 0
        await world.close()

    asyncio.run(scenario())


def test_the_next_segment_is_fetched_before_a_reader_needs_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        await world.load()
        world.append(9)
        await world.round()
        world.retain()
        assert world.log.log_start_offset == 4
        second = world.reader.find(world.tiered.owner, world.log, 2)
        end = asyncio.get_running_loop().time() + 20
        while world.reader.chunks.get(ChunkKey(second.id, 0)) is None:
            assert asyncio.get_running_loop().time() < end
            assert len((await read(world, 0)).records) == 2 * SIZE
        world.shared.store.get = None  # type: ignore[assignment, method-assign]
        assert len((await read(world, 2)).records) == 2 * SIZE
        assert not world.reader.chunks.coming  # the records after it are on the local disk
        await world.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("deleted", [False, True])
def test_an_object_that_is_gone_is_an_error_unless_its_records_are_deleted(tmp_path: Path, deleted: bool) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        await world.load()
        world.append(12)
        await world.round()
        world.retain()

        async def get(*_args: Any, **_more: Any) -> memoryview:
            if deleted:
                world.log.advance_log_start(6)
            raise ObjectNotFoundError("gone")

        world.shared.store.get = get  # type: ignore[method-assign]
        with pytest.raises(ApiError) as failed:
            await read(world, 0)
        assert failed.value.code is (ErrorCode.OFFSET_OUT_OF_RANGE if deleted else ErrorCode.KAFKA_STORAGE_ERROR)
        assert world.shared.counts.read_errors == (not deleted)
        await world.close()

    asyncio.run(scenario())


def test_a_slice_stays_readable_without_the_cache_and_then_closes_its_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        await world.load()
        world.append(12)
        await world.round()
        world.retain()
        piece = (await read(world, 0)).records
        assert isinstance(piece, LogSlice)
        world.reader.chunks.close()
        assert len(piece.view()) == 2 * SIZE
        assert [each for each in open_descriptors(tmp_path) if "chunks" in each]
        del piece
        gc.collect()
        assert not [each for each in open_descriptors(tmp_path) if "chunks" in each]
        await world.close()

    asyncio.run(scenario())


def test_a_full_disk_keeps_few_chunks_in_memory(tmp_path: Path) -> None:
    (tmp_path / "chunks").write_text("no directory")

    async def scenario() -> None:
        cache = ChunkCache(str(tmp_path / "chunks"), 1 << 30, 2)
        (tmp_path / "chunks").write_text("no directory")
        for number in range(20):
            key = ChunkKey(b"a" * 16, number)
            chunk = await cache.bring(key, lambda number=number: _bytes(number))  # type: ignore[misc]
            assert chunk.read(0, 10) == bytes([number] * 10)
            assert cache.get(key) is chunk, "who waited reads it next"
        assert sum(cache.get(ChunkKey(b"a" * 16, number)) is not None for number in range(20)) == 4
        cache.close()

    async def _bytes(number: int) -> memoryview:
        return memoryview(bytes([number] * 10))

    asyncio.run(scenario())


def test_aborted_transactions_of_a_range() -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    entries: list[AbortedTxn] = []
    stable = 0
    for marker in sorted(rng.sample(range(1, 1000), 200)):
        first = rng.randrange(stable, marker)
        stable = rng.randrange(stable, first + 1)
        entries.append(AbortedTxn(rng.randrange(9), first, marker, stable))
    index = encode_aborted(entries)
    for _ in range(300):
        start = rng.randrange(1000)
        end = start + rng.randrange(1, 100)
        expected = [each[:2] for each in entries if each.last_offset >= start and each.first_offset < end]
        work = _aborted_in(index, start, end)
        assert whole(work) == expected
