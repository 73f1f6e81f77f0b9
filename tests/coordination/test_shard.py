"""The small parts of a coordinator's outcome: which partition, which code, and what comes then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kbroker.coordination.partitioning import java_hash, partition_for
from kbroker.coordination.shard import answerable
from kbroker.long_work import then
from kbroker.protocol.errors import ErrorCode


@pytest.mark.parametrize(
    ("text", "value"), [("", 0), ("a", 97), ("group", 98629247), ("😀", 1772899), ("polygenelubricants", -(2**31))]
)
def test_java_hash(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_partition_for() -> None:
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("group", 50) == 47
    negative = next(name for name in (f"consumer-{i}" for i in range(1000)) if java_hash(name) < 0)
    assert partition_for(negative, 50) == -java_hash(negative) % 50


def test_small_parts() -> None:
    assert answerable(ErrorCode.ILLEGAL_GENERATION) is ErrorCode.ILLEGAL_GENERATION
    assert answerable(ErrorCode.NETWORK_EXCEPTION) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert then(1, str) == "1"

    async def one() -> int:
        return 1

    later: Any = then(one(), str)
    assert asyncio.run(later) == "1"
