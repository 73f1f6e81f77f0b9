"""Dead letters with copies of large records: no step between two turns takes long, whatever their size."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.log.log_config import LogConfig
from kbroker.protocol.compression import NONE, ZSTD
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import build_batch, read_records
from tests.broker.test_dead_letters import DLQ, World, letter
from tests.fair.gaps import Stopwatch
from tests.figures import figure
from tests.log.builders import NOW, committed, open_log

MB = 1 << 20
SIZE = 50 * MB
LONGEST_S = 0.01
"""Building such a dead letter in one step took 0.05 s, on an idle machine; the steps take 0.002 s at most."""


async def longest_step(work: Coroutine[Any, Any, object]) -> float:
    """Run work to its end; return the longest time in seconds of this thread between two turns, or waits."""
    longest = 0.0
    while True:
        try:
            with Stopwatch() as measured:
                waits = work.send(None)
        except StopIteration:
            return longest
        finally:
            longest = max(longest, measured.spent)
        if waits is not None:
            await waits


@pytest.mark.parametrize("codec", [NONE, ZSTD])
def test_a_copy_of_50_mb_holds_nobody(tmp_path: Path, codec: int) -> None:
    log = open_log(tmp_path / "t-0", config=LogConfig(max_message_bytes=2 * SIZE))
    value = bytes(range(256)) * (SIZE // 256)
    log.append_as_leader(bytearray(build_batch([(NOW, b"k", value, ())], codec=codec)), 0, NOW, patient=True)
    committed(log)
    world = World()
    batches: list[bytes | bytearray] = []

    async def produce(_topic: str, _index: int, batch: bytearray) -> ErrorCode:
        batches.append(batch)
        return ErrorCode.NONE

    world.produce = produce  # type: ignore[method-assign]
    configs = {**world.topic.configs, "max.message.bytes": str(2 * SIZE)}
    group = {**world.state.group_configs["g"], "errors.deadletterqueue.copy.record.enable": "true"}
    world.state = replace(world.state, topics={DLQ: replace(world.topic, configs=configs)}, group_configs={"g": group})
    source: Any = SimpleNamespace(topic="t", index=0, key=("t", 0), log=log)
    longest = min(asyncio.run(longest_step(world.writer.write("g", source, [letter(0)]))) for _ in range(3))
    figure(f"a dead letter of 50 MB, codec {codec}", f"longest step {longest * 1000:.1f} ms")
    [record] = read_records(bytes(batches[0]), max_bytes=2 * SIZE)
    assert (record.key, record.value == value) == (b"k", True)
    assert longest < LONGEST_S
    log.close()
