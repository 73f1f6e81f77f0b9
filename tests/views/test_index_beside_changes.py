"""The index of headers of segments that are joined by compaction, or truncated and filled again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.clock import SystemClock
from kbroker.log import header_indexing
from kbroker.log.append_info import COORDINATOR
from kbroker.log.files import HEADERS_SUFFIX
from kbroker.log.header_indexing import is_of
from kbroker.log.segment.header_index import HeaderIndex
from kbroker.log.segment.segment import Segment
from kbroker.protocol.records import Headers, build_batch, build_marker, iter_batches, read_records
from kbroker.views import header_indexes
from kbroker.views.header_indexes import HeaderIndexes
from tests.log.builders import NOW, open_log
from tests.log.cleaner.context import clean
from tests.views.world import SMALL, World

EU: Headers = (("region", b"EU"),)
US: Headers = (("region", b"US"),)


def put(world: World, *records: tuple[bytes, bytes, Headers], producer: int = -1) -> None:
    made = [(NOW, key, value, headers) for key, value, headers in records]
    is_transactional = producer >= 0
    batch = build_batch(
        made, producer_id=producer, producer_epoch=0 if is_transactional else -1,
        base_sequence=0 if is_transactional else -1, transactional=is_transactional,
    )  # fmt: skip
    world.log.append_as_leader(bytearray(batch), 0, NOW)


def filled(directory: Path) -> World:
    """Return a log of two closed segments with a match at 22 and one at 24; the first one begins with an abort."""
    world = World(directory, 1, replace(SMALL, segment_bytes=1 << 20))
    put(world, (b"t", b"", US), producer=1)
    marker = build_marker(producer_id=1, producer_epoch=0, commit=False, coordinator_epoch=0, timestamp=NOW)
    world.log.append_as_leader(marker, 0, NOW, origin=COORDINATOR)
    put(world, *[(b"old", bytes(100), US)] * 20, (b"a", b"", EU))
    put(world, (b"b", b"", US))
    world.log.roll(NOW)
    put(world, (b"c", b"", EU))
    put(world, (b"old", b"", US))
    world.log.roll(NOW)
    put(world, (b"d", b"", US))
    world.log.set_high_watermark(world.log.log_end_offset)
    return world


@pytest.mark.parametrize("turns", range(5))
def test_no_match_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    """Behind the match at 22, compaction leaves few bytes, so what was the next segment is read together with it."""
    monkeypatch.setattr(header_indexing, "BLOCK", 1)
    assert asyncio.run(_read(filled(tmp_path), turns)) == [22, 24]


async def _read(world: World, turns: int) -> list[int]:
    """Read a view to its end, and compact the log after some turns."""
    await world.index()
    selection, bound = world.selection("header.region = 'EU'"), world.log.high_watermark
    reading = world.scan.reader.read(selection, 0, 1 << 20, bound, min_one=True, has_time=lambda: True)
    try:
        while True:
            if not turns:
                clean(world.log)
                assert [each.base_offset for each in world.log.segments] == [0, 26]
            reading.send(None)
            turns -= 1
    except StopIteration as end:
        data = end.value.records
    batches = [data[place : place + header.size] for place, header in iter_batches(data) if not header.is_control]
    return [record.offset for batch in batches for record in read_records(batch, max_bytes=1 << 20)]


def test_a_truncated_segment_is_indexed_when_it_is_closed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(header_indexes, "AGAIN_MS", 0)
    asyncio.run(_truncate(filled(tmp_path)))


async def _truncate(world: World) -> None:
    log = world.log
    await world.index()
    for offset in (24, 23):  # the first one cuts nothing off
        log.truncate_to(offset, NOW)
        put(world, (b"e", b"", EU))
        put(world, (b"f", b"", EU))
        log.roll(NOW)
        await world.index()
        assert is_whole(log.segments[0])


def is_whole(segment: Segment) -> bool:
    index = HeaderIndex(Path(segment.path(HEADERS_SUFFIX)).read_bytes())
    return is_of(index, segment.handle, segment.base_offset, segment.size)


def test_indexes_that_a_restart_finds_without_the_config_are_removed(tmp_path: Path) -> None:
    """The config was removed while the broker was down."""
    asyncio.run(_restart(filled(tmp_path)))


async def _restart(world: World) -> None:
    await world.index()
    assert headers_of(world)
    config = replace(world.log.config, filter_index_headers=())
    world.log.close()
    world.partition.log = world.log = open_log(Path(world.log.directory), config=config)
    world.indexes = HeaderIndexes(SystemClock(), lambda: [world.partition])
    await world.index()
    assert not headers_of(world)
    assert not world.log.segments.had_headers


def headers_of(world: World) -> list[Path]:
    return list(Path(world.log.directory).glob(f"*{HEADERS_SUFFIX}"))
