"""The delivery of one intent: which errors end it, which are believed at once, and which only after a while."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from kbroker.cluster_state import PartitionState, TopicState
from kbroker.protocol.errors import ErrorCode
from kbroker.schedules.marks import Due, Dues, Intent
from kbroker.scheduling.delivery import LINGERING_MS, Delivery
from kbroker.scheduling.firing import Chosen, Source, SourceGone
from kbroker.scheduling.shared import Outcome, Shared
from tests.replica_manager.virtual_time import VirtualClock, run
from tests.scheduling.world import Ids, Places

TOPIC_ID = b"i" * 16
INTENT = Intent(1, 0, 0, TOPIC_ID, "target", 0, (Due(5, 10), Due(6, 10)))
DELETED_S = 5.0


class Target:
    """Answers with the given codes, and then always with the last one."""

    def __init__(self, codes: Iterable[ErrorCode]) -> None:
        self._codes = list(codes)
        self.batches: list[bytes] = []

    def leader_of(self, _topic: str, _index: int) -> int:
        return 1

    async def produce(self, _topic: str, _index: int, batch: memoryview, topic_id: bytes | None = None) -> Outcome:
        assert topic_id == TOPIC_ID
        self.batches.append(bytes(batch))
        return self._codes.pop(0) if len(self._codes) > 1 else self._codes[0]


class Records:
    """The source of two records, which may be gone."""

    def __init__(self, *, is_gone: bool = False) -> None:
        self._is_gone = is_gone
        self.reads = 0

    async def again(self, intent: Intent, now_ms: int) -> Chosen:
        self.reads += 1
        if self._is_gone:
            raise SourceGone("gone")
        return Chosen(now_ms, 0, Dues.of(intent.records), [b"\x0c\0\0\0\x01\x01\0", b"\x0c\0\0\x02\x01\x01\0"])


class Case:
    def __init__(self, *codes: ErrorCode, was_sent: bool = False, is_gone: bool = False) -> None:
        self.target = Target(codes)
        self.records = Records(is_gone=is_gone)
        self.topics = {"target": TopicState("target", TOPIC_ID, (PartitionState((1,), (1,), 1, 0),), {})}
        shared = Shared(
            VirtualClock(), self.topics.get, lambda _: 1000, Ids(), self.target, Places(),
            lambda _: True,
        )  # fmt: skip
        self._of = shared, cast("Source", self.records)
        self._was_sent = was_sent

    def run(self, during: Any = None) -> tuple[ErrorCode, float]:
        """Return the outcome, and after how many s it was known."""

        async def main() -> tuple[ErrorCode, float]:
            delivery = Delivery(*self._of, INTENT, was_sent=self._was_sent)
            task = asyncio.ensure_future(delivery.run(None, None))
            if during is not None:
                await during()
            code, _ = await task
            return code, asyncio.get_running_loop().time()

        return run(main(), within_s=10_000)


def test_it_ends_with_the_first_success_and_always_sends_the_same_batch() -> None:
    codes = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    case = Case(*codes, ErrorCode.NONE)
    assert case.run()[0] is ErrorCode.NONE
    assert len(case.target.batches) == 4
    assert len({batch[43:57] for batch in case.target.batches}) == 1, "producer id, epoch and sequence"


def test_a_refusal_is_believed_if_no_request_can_still_arrive() -> None:
    case = Case(ErrorCode.MESSAGE_TOO_LARGE)
    assert case.run() == (ErrorCode.MESSAGE_TOO_LARGE, 0)
    assert len(case.target.batches) == 1


@pytest.mark.parametrize("unknown", [ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_after_an_unknown_outcome_a_refusal_is_not_believed_for_a_while(unknown: ErrorCode) -> None:
    code, after_s = Case(unknown, ErrorCode.MESSAGE_TOO_LARGE).run()
    assert code is ErrorCode.MESSAGE_TOO_LARGE
    assert LINGERING_MS / 1000 <= after_s < LINGERING_MS / 1000 + 6


def test_what_an_earlier_leader_may_have_sent_is_not_refused_at_once() -> None:
    code, after_s = Case(ErrorCode.INVALID_RECORD, was_sent=True).run()
    assert code is ErrorCode.INVALID_RECORD
    assert after_s >= LINGERING_MS / 1000
    assert Case(ErrorCode.NONE, was_sent=True).run() == (ErrorCode.NONE, 0)


def test_a_lost_request_that_arrives_later_counts() -> None:
    case = Case(ErrorCode.NETWORK_EXCEPTION, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NONE)
    assert case.run()[0] is ErrorCode.NONE


@pytest.mark.parametrize("successor", [None, b"j" * 16], ids=["deleted", "created again"])
def test_a_deleted_target_ends_it_but_not_at_once(successor: bytes | None) -> None:
    case = Case(ErrorCode.NONE)
    del case.topics["target"]
    if successor is not None:
        case.topics["target"] = TopicState("target", successor, (PartitionState((1,), (1,), 1, 0),), {})
    code, after_s = case.run()
    assert code is ErrorCode.UNKNOWN_TOPIC_ID
    assert DELETED_S <= after_s < 2 * DELETED_S
    assert case.target.batches == []


def test_a_target_that_is_not_known_yet_is_waited_for() -> None:
    case = Case(ErrorCode.NONE)
    known = case.topics.pop("target")

    async def learn() -> None:
        await asyncio.sleep(DELETED_S / 2)
        case.topics["target"] = known

    assert case.run(learn)[0] is ErrorCode.NONE
    assert len(case.target.batches) == 1


def test_records_that_a_user_deleted_meanwhile_are_not_sent() -> None:
    case = Case(ErrorCode.NONE, is_gone=True, was_sent=True)
    assert case.run() == (ErrorCode.NONE, 0)
    assert case.target.batches == []
