"""A leader that missed the epochs in between discards what it knew of its followers before them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kbroker.protocol.errors import ErrorCode
from kbroker.replica_manager.replicated_partition import PartitionContext, ReplicatedPartition
from kbroker.replication.leadership import Granted

ME, B, C = 1, 2, 3


class Log(SimpleNamespace):
    def set_high_watermark(self, offset: int) -> None:
        self.high_watermark = offset


def partition() -> ReplicatedPartition:
    log: Any = Log(
        log_end_offset=110,
        high_watermark=90,
        log_start_offset=0,
        config=SimpleNamespace(min_insync_replicas=2),
        leader_epochs=SimpleNamespace(begin=lambda *_arguments, **_options: None),
        finish_truncation=lambda: None,
    )
    clock: Any = SimpleNamespace(monotonic_ms=lambda: 0.0)
    return ReplicatedPartition(
        "t", bytes(16), 0, log, PartitionContext(ME, clock, 30_000, lambda: {ME, B, C}, lambda *_proposal: None)
    )


def told(epoch: int, *isr: int) -> Granted:
    return Granted(epoch, epoch, frozenset(isr))


def led_in_epoch_5() -> ReplicatedPartition:
    found = partition()
    found.lead(told(5, ME, B, C), (ME, B, C))
    assert found.follower_fetched(C, 100, 0) is ErrorCode.NONE
    assert found.follower_fetched(B, 90, 0) is ErrorCode.NONE
    return found


def test_a_follower_may_have_been_cut_by_a_leader_in_between() -> None:
    found, answers = led_in_epoch_5(), []
    found.when_committed(100, answers.append)
    # In epoch 6 B led, C was cut to 90, and then B died.
    found.lead(told(7, ME, C), (ME, B, C))
    assert (found.log.high_watermark, answers) == (90, [])
    found.follower_fetched(C, 90, 0)
    assert (found.log.high_watermark, answers) == (90, [])
    found.follower_fetched(C, 100, 0)
    assert (found.log.high_watermark, answers) == (100, [ErrorCode.NONE])


def test_in_the_next_epoch_what_is_known_of_followers_still_holds() -> None:
    found = led_in_epoch_5()
    found.lead(told(6, ME, C), (ME, B, C))
    assert found.log.high_watermark == 100
