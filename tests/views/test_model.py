"""A view's answers against a naive filter of the whole log: random batches, filters, offsets and sizes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kbroker.log import header_indexing
from kbroker.views import dispatch, scanned, source, source_scan
from tests.tries import tries
from tests.views.world import FILTERS, World

_SEEDS = range(20261129, 20261129 + tries(30))


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_view_is_the_log_without_what_does_not_match(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 3:  # with limits that these logs reach
        monkeypatch.setattr(source, "PIECE", 2000)
        monkeypatch.setattr(source_scan, "FAR", 1500)
        monkeypatch.setattr(scanned, "MOST_RANGES", 4)
        monkeypatch.setattr(dispatch, "FEW", 1)
        monkeypatch.setattr(header_indexing, "BLOCK", 300)
    if seed % 3 == 2:
        monkeypatch.setattr(source_scan, "IDLE_MS", 20)  # each filter is given up soon
    asyncio.run(_compare(World(tmp_path, seed)))


async def _compare(world: World) -> None:
    rng = world.rng
    for _ in range(rng.choice((5, 40))):
        world.put()
    for _ in range(25):
        step = rng.random()
        if step < 0.4:
            for _ in range(rng.choice((1, 1, 5, 30))):
                world.put()
        elif step < 0.45:
            world.compact()
        elif step < 0.5:
            world.delete_some()
        elif step < 0.6:
            await world.index()
        selection = world.selection(rng.choice(FILTERS))
        if rng.random() < 0.5:
            world.scan.scan()
            await asyncio.sleep(0)
        log, committed = world.log, rng.random() < 0.5
        start = rng.randint(log.log_start_offset, log.log_end_offset)
        limit = rng.choice((1, 200, 2000, 1 << 20))
        await world.check_read(selection, start, limit, committed=committed)
        if rng.random() < 0.4:
            await _check_ends(world, selection.filter.text)
        if rng.random() < 0.3:
            await _check_times(world, selection.filter.text)
    for text in FILTERS:
        await _read_committed(world, text)
    world.scan.close()
    world.indexes.close()
    await asyncio.sleep(0)


async def _check_ends(world: World, text: str) -> None:
    selection = world.selection(text)
    high_watermark, stable = await world.ends(selection)
    log, start = world.log, world.log.log_start_offset
    least = max(world.last_match(selection.filter, log.high_watermark) + 1, start)
    assert least <= high_watermark <= log.high_watermark, (least, high_watermark)
    least_stable = max(world.last_match(selection.filter, log.last_stable_offset) + 1, start)
    assert least_stable <= stable <= log.last_stable_offset
    if not world.is_compacted:
        assert (high_watermark, stable) == (least, least_stable)


async def _check_times(world: World, text: str) -> None:
    rng, log = world.rng, world.log
    selection, bound = world.selection(text), log.high_watermark
    start, timestamp = rng.randint(log.log_start_offset, log.log_end_offset), 1_700_000_000_000 + rng.randrange(1100)
    found = await world.scan.reader.first_at(selection, start, timestamp, bound, lambda: True)
    expected = [
        (offset, stamp)
        for offset, stamp in world.stamps(selection.filter, bound)
        if offset >= start and stamp >= timestamp
    ]
    assert (None if found is None else found[:2]) == (expected[0] if expected else None)


async def _read_committed(world: World, text: str) -> None:
    """Read the whole view as a client with read_committed does, and with fetches of random sizes."""
    selection, offset = world.selection(text), world.log.log_start_offset
    expected = world.committed_matches(selection.filter, offset)
    offsets: list[int] = []
    while True:
        limit = world.rng.choice((1, 500, 5000))
        records, end = await world.check_read(selection, offset, limit, committed=True)
        if not records:
            break
        offsets += world.delivered(records, offset, end)
        offset = end
    assert offsets == expected
