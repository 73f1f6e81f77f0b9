"""The search for the last match of a view's filter, when reading the source fails."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from kbroker.views import last_matches
from tests.views.world import World


def test_a_search_that_failed_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_matches, "RETRY_MS", 20)
    asyncio.run(_fail_and_go_on(World(tmp_path, 1), monkeypatch))


async def _fail_and_go_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(20):
        world.put()
    world.log.set_high_watermark(world.log.log_end_offset)
    failures = 0

    def failing(*_args: Any) -> Any:
        nonlocal failures
        failures += 1
        raise OSError(errno.EIO, "the disk cannot be read")

    loop = asyncio.get_running_loop()
    text = "header.region = 'EU'"
    with monkeypatch.context() as patched:
        patched.setattr(last_matches, "scan_batches", failing)
        for _ in range(10):  # the pause doubles, so that a broken disk is not read again and again
            with pytest.raises(OSError, match="cannot be read"):
                await world.scan.ends(world.selection(text), loop.time() + 10)
        assert failures < 10
    until = loop.time() + 10
    while True:
        try:
            selection = world.selection(text)
            assert await world.scan.ends(selection, until)
            break
        except OSError:
            assert loop.time() < until
            await asyncio.sleep(0.01)
    assert selection.high_watermark(0) == world.last_match(selection.filter, world.log.high_watermark) + 1
    world.scan.close()
