"""Produce to many partitions: a piece of the request after the other, with others served in between.

Owns how a long request is taken apart, and how the answers to its pieces become one. No API, and no rule of Produce:
every piece goes the way of a short request. What refuses a request as a whole is looked for in all of it before the
first piece is appended; a piece that fails later is an error of its own partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kbroker.handlers.delayed_produce import Groups, Uncommitted, all_committed, group
from kbroker.handlers.produce_refusals import check_first_batches, code_of_unexpected
from kbroker.handlers.registry import CloseConnection, RequestContext
from kbroker.long_work import awaited, turn
from kbroker.protocol.messages.produce import (
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

FEW = 64
"""Topics and partitions together up to which a request is short."""
AT_ONCE = 8
"""Partitions appended to between two turns: some 0.1 ms."""


async def produce_many(
    ctx: RequestContext, request: ProduceRequest, produce: Callable[..., Any]
) -> ProduceResponse | None:
    """Produce all pieces of a request by `produce`, in order; raises ApiError before the first.

    What other replicas have to have before the answer is waited for once all is appended.
    """
    for piece, _ in _pieces(request):
        if check_first_batches(piece):
            break
        await turn
    done = _Done(request.acks)
    for piece, is_first in _pieces(request):
        try:
            answer = await awaited(produce(piece, later=done.uncommitted))
        except Exception as error:  # noqa: BLE001 - earlier pieces stand, and are answered so
            answer = done.refused(piece, error)
        done.take(answer, is_first)
        await turn
    if done.failed is not None:
        raise done.failed
    if request.acks == 0:
        return None
    response = ProduceResponse(done.topics, node_endpoints=list(done.nodes.values()))
    if done.groups:
        return await all_committed(ctx, response, done.groups, request.timeout_ms)
    return response


class _Done:
    """What came of the pieces so far."""

    def __init__(self, acks: int) -> None:
        self._acks = acks
        self.uncommitted: list[Uncommitted] = []
        self.groups: Groups = {}
        self.topics: list[TopicProduceResponse] = []
        self.nodes: dict[int, NodeEndpoint] = {}
        self.failed: CloseConnection | None = None

    def refused(self, piece: ProduceRequest, error: Exception) -> ProduceResponse | None:
        """Return the answer to a piece of which nothing is known to stand."""
        if isinstance(error, CloseConnection):
            self.failed = error  # acks=0: the connection ends once all partitions had their turn
            return None
        code = code_of_unexpected(error)
        if self._acks == 0:
            self.failed = CloseConnection(f"a Produce with acks=0 failed with error {code}")
            return None
        (topic,) = piece.topic_data
        answers = [
            PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1) for data in topic.partition_data
        ]
        return ProduceResponse([TopicProduceResponse(topic.name, topic.topic_id, answers)])

    def take(self, answer: ProduceResponse | None, is_first: bool) -> None:
        group(self.uncommitted, self.groups)
        self.uncommitted.clear()
        if answer is None:
            return
        (topic,) = answer.responses
        if is_first:
            self.topics.append(topic)
        else:
            self.topics[-1].partition_responses += topic.partition_responses
        for node in answer.node_endpoints:
            self.nodes[node.node_id] = node


def _pieces(request: ProduceRequest) -> Iterator[tuple[ProduceRequest, bool]]:
    """Yield short requests for parts of one topic each, and whether it is the topic's first part."""
    for topic in request.topic_data:
        for start in range(0, max(len(topic.partition_data), 1), AT_ONCE):
            part = TopicProduceData(topic.name, topic.topic_id, topic.partition_data[start : start + AT_ONCE])
            piece = ProduceRequest(request.transactional_id, request.acks, request.timeout_ms, [part])
            yield piece, start == 0
