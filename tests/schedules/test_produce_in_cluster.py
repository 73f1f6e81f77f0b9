"""The check of a schedule topic on a broker of a cluster, which learns of new topics a moment later."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.log.append_info import AppendError
from kbroker.log.append_validation import BatchRules
from kbroker.log.log_config import LogConfig
from kbroker.log.record_check import may_write_anywhere
from kbroker.protocol.records import build_batch
from kbroker.schedules.produce_check import ScheduleCheck

RULES = BatchRules("later-0", LogConfig(schedule_enable=True))
BATCH = memoryview(build_batch([(0, b"k", b"v", (("x-delay", b"5"), ("x-deliver-to", b"target")))]))
TARGET: Any = SimpleNamespace(partitions=(0,), configs={})


class Topics:
    """The topics that a broker knows."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.state: Any = SimpleNamespace(topics={})

    def settings_of(self, _topic: Any) -> LogConfig:
        return LogConfig()


async def judged(topics: Topics, appears_after_s: float | None) -> None:
    check = ScheduleCheck("later", "", topics, lambda: 0, asyncio.Semaphore(1))
    loop = asyncio.get_running_loop()
    if appears_after_s is not None:
        loop.call_later(appears_after_s, topics.state.topics.__setitem__, "target", TARGET)
    assert await check.judge(BATCH, RULES, may_write_anywhere) is BATCH


def test_a_target_that_was_just_created_is_awaited() -> None:
    asyncio.run(judged(Topics(30.0), 0.1))


@pytest.mark.parametrize(("patience_s", "appears_after_s"), [(0.0, 0.1), (0.1, None)])
def test_a_target_that_does_not_appear_in_time_is_refused(patience_s: float, appears_after_s: float | None) -> None:
    with pytest.raises(AppendError) as refused:
        asyncio.run(judged(Topics(patience_s), appears_after_s))
    assert refused.value.record_errors == [(0, "the target target does not exist")]
