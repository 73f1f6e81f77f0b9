"""Produce with acks=all on partitions with other replicas: the response waits until the batches are committed.

Owns the wait for the high watermark of each partition, for the end of leadership, and for the request's timeout. Serves
no API: produce.py and its siblings pass on what they have appended. (Apache Kafka: DelayedProduce.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from kbroker.handlers.produce_refusals import add_leader_hints
from kbroker.handlers.registry import CloseConnection, RequestContext
from kbroker.log.append_info import AppendInfo
from kbroker.partition import GiveUp, Partition
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse

_FIRST_HINT_VERSION = 10


class Uncommitted(NamedTuple):
    """A batch in the log that ends before `offset`, and the partition's `answer`, which waits until it is committed."""

    partition: Partition
    offset: int
    answer: PartitionProduceResponse


Groups = dict[Partition, tuple[int, list[PartitionProduceResponse]]]
"""Partition -> the offset below which everything must be committed, and the answers that wait for it."""


def when_committed(
    ctx: RequestContext, response: ProduceResponse, uncommitted: Sequence[Uncommitted], timeout_ms: int
) -> asyncio.Future[ProduceResponse]:
    """Return a future of the response to a request with batches that are not committed yet."""
    groups: Groups = {}
    group(uncommitted, groups)
    return all_committed(ctx, response, groups, timeout_ms)


def all_committed(
    ctx: RequestContext, response: ProduceResponse, groups: Groups, timeout_ms: int
) -> asyncio.Future[ProduceResponse]:
    """As `when_committed`, for batches that are already grouped."""
    return _DelayedProduce(ctx, response, groups, timeout_ms).future


def group(uncommitted: Sequence[Uncommitted], groups: Groups) -> None:
    """Group batches by partition, so that the request waits once for each partition."""
    for partition, offset, answer in uncommitted:
        known, answers = groups.get(partition, (0, []))
        answers.append(answer)
        groups[partition] = max(known, offset), answers


def finished(
    ctx: RequestContext,
    request: ProduceRequest,
    response: ProduceResponse,
    uncommitted: Sequence[Uncommitted],
    later: list[Uncommitted] | None,
    *,
    failed: bool,
) -> ProduceResponse | asyncio.Future[ProduceResponse] | None:
    """Return the response to a request, or a future of it if some batches are not committed yet.

    With acks=0 there is no response; the connection is closed if a partition `failed`. If the request is a piece of
    another one, its uncommitted batches are added to `later`.
    """
    if request.acks == 0:
        if failed:
            raise CloseConnection("a Produce with acks=0 failed")
        return None
    if failed and ctx.version >= _FIRST_HINT_VERSION:
        add_leader_hints(ctx, response)
    if uncommitted and later is not None:
        later += uncommitted
    elif uncommitted:
        return when_committed(ctx, response, uncommitted, request.timeout_ms)
    return response


def note_uncommitted(
    partition: Partition, acks: int, info: AppendInfo, answer: PartitionProduceResponse, into: list[Uncommitted]
) -> None:
    """Add an appended batch to `into` if its response has to wait."""
    if acks == -1 and partition.is_replicated and partition.log.high_watermark <= info.last_offset:
        into.append(Uncommitted(partition, info.last_offset + 1, answer))


class _DelayedProduce:
    """One waiting request."""

    __slots__ = ("_ctx", "_failed", "_left", "_response", "_timer", "_version", "_waits", "future")

    def __init__(self, ctx: RequestContext, response: ProduceResponse, groups: Groups, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self._ctx = ctx
        self._version = ctx.version
        self._response = response
        self._failed = False
        self._timer: asyncio.TimerHandle | None = None
        self._left = {partition: answers for partition, (_, answers) in groups.items()}
        self._waits: dict[Partition, GiveUp] = {}
        self.future: asyncio.Future[ProduceResponse] = loop.create_future()
        for partition, (offset, _) in groups.items():
            give_up = partition.when_committed(offset, partial(self._finish_one, partition))
            if give_up is not None:
                self._waits[partition] = give_up
        if self._left:
            self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._expire)
            ctx.services.replicas.traffic.delayed_produces += 1
            self.future.add_done_callback(self._forget)

    def _finish_one(self, partition: Partition, code: ErrorCode) -> None:
        self._note(self._left.pop(partition), code)
        self._waits.pop(partition, None)
        if not self._left:
            self._finish()

    def _note(self, answers: list[PartitionProduceResponse], code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            self._failed = True
            for answer in answers:
                answer.error_code = code

    def _expire(self) -> None:
        for answers in self._left.values():
            self._note(answers, ErrorCode.REQUEST_TIMED_OUT)
        self._finish()

    def _finish(self) -> None:
        if self.future.done():
            return
        if self._failed and self._version >= _FIRST_HINT_VERSION:
            add_leader_hints(self._ctx, self._response)
        self.future.set_result(self._response)

    def _forget(self, _future: asyncio.Future[ProduceResponse]) -> None:
        self._ctx.services.replicas.traffic.delayed_produces -= 1
        if self._timer is not None:
            self._timer.cancel()
        for give_up in self._waits.values():
            give_up()
        self._waits.clear()
