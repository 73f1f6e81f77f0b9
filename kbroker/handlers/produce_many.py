"""Produce to many partitions: a piece of the request after the other, with others served in between.

Owns how a long request is taken apart, and how the answers to its pieces become one. No API, and no rule of Produce:
every piece goes the way of a short request. What refuses a request as a whole is looked for in all of it before the
first piece is appended; a piece that fails later is an error of its own partitions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from types import GeneratorType
from typing import Any

from kbroker.divided import Divided
from kbroker.handlers.delayed_produce import Groups, Uncommitted, all_committed, group
from kbroker.handlers.produce_refusals import check_first_batches, code_of_unexpected
from kbroker.handlers.registry import CloseConnection, Later, RequestContext
from kbroker.protocol.messages.produce import (
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

_Result = ProduceResponse | Later[ProduceResponse] | None
FEW = 64
"""Topics and partitions together up to which a request is short."""
AT_ONCE = 8
"""Partitions appended to between two yields: some 0.1 ms."""


def produce_many(ctx: RequestContext, request: ProduceRequest, produce: Callable[..., Any]) -> Divided[_Result]:
    """Produce all pieces of a request by `produce`, in order; raises ApiError before the first.

    What other replicas have to have before the answer is waited for once all is appended.
    """
    for piece, _ in _pieces(request):
        if check_first_batches(piece):
            break
        yield
    return (yield from _Pieces(ctx, request, produce).go_on())


class _Pieces:
    """A request on its way through its pieces."""

    def __init__(self, ctx: RequestContext, request: ProduceRequest, produce: Callable[..., Any]) -> None:
        self._ctx = ctx
        self._produce = produce
        self._timeout_ms = request.timeout_ms
        self._uncommitted: list[Uncommitted] = []
        self._groups: Groups = {}
        self._acks = request.acks
        self._left = _pieces(request)
        self._topics: list[TopicProduceResponse] = []
        self._nodes: dict[int, NodeEndpoint] = {}
        self._failed: CloseConnection | None = None

    def go_on(self) -> Divided[_Result]:
        """Go through the pieces that are left."""
        for piece, is_first in self._left:
            try:
                answer = self._produce(piece, later=self._uncommitted)
                if isinstance(answer, GeneratorType):
                    answer = yield from answer
            except Exception as error:  # noqa: BLE001 - earlier pieces stand, and are answered so
                answer = self._refused(piece, error)
            if isinstance(answer, Awaitable):
                resumed: Any = self._wait(piece, is_first, answer)
                return resumed  # type: ignore[no-any-return]
            self._take(answer, is_first)
            yield
        if self._failed is not None:
            raise self._failed
        if self._acks == 0:
            return None
        response = ProduceResponse(self._topics, node_endpoints=list(self._nodes.values()))
        if self._groups:
            return all_committed(self._ctx, response, self._groups, self._timeout_ms)
        return response

    async def _wait(self, piece: ProduceRequest, is_first: bool, waits: Awaitable[Any]) -> Divided[_Result]:
        try:
            answer = await waits
        except Exception as error:  # noqa: BLE001 - as in `go_on`
            answer = self._refused(piece, error)
        return self._resume(piece, is_first, answer)

    def _resume(self, piece: ProduceRequest, is_first: bool, answer: Any) -> Divided[_Result]:
        try:
            if isinstance(answer, GeneratorType):
                answer = yield from answer
        except Exception as error:  # noqa: BLE001 - as in `go_on`
            answer = self._refused(piece, error)
        self._take(answer, is_first)
        return (yield from self.go_on())

    def _refused(self, piece: ProduceRequest, error: Exception) -> ProduceResponse | None:
        """Return the answer to a piece of which nothing is known to stand."""
        if isinstance(error, CloseConnection):
            self._failed = error  # acks=0: the connection ends once all partitions had their turn
            return None
        code = code_of_unexpected(error)
        if self._acks == 0:
            self._failed = CloseConnection(f"a Produce with acks=0 failed with error {code}")
            return None
        (topic,) = piece.topic_data
        answers = [
            PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1) for data in topic.partition_data
        ]
        return ProduceResponse([TopicProduceResponse(topic.name, topic.topic_id, answers)])

    def _take(self, answer: ProduceResponse | None, is_first: bool) -> None:
        group(self._uncommitted, self._groups)
        self._uncommitted.clear()
        if answer is None:
            return
        (topic,) = answer.responses
        if is_first:
            self._topics.append(topic)
        else:
            self._topics[-1].partition_responses += topic.partition_responses
        for node in answer.node_endpoints:
            self._nodes[node.node_id] = node


def _pieces(request: ProduceRequest) -> Iterator[tuple[ProduceRequest, bool]]:
    """Yield short requests for parts of one topic each, and whether it is the topic's first part."""
    for topic in request.topic_data:
        for start in range(0, max(len(topic.partition_data), 1), AT_ONCE):
            part = TopicProduceData(topic.name, topic.topic_id, topic.partition_data[start : start + AT_ONCE])
            piece = ProduceRequest(request.transactional_id, request.acks, request.timeout_ms, [part])
            yield piece, start == 0
