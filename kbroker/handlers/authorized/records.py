"""Guards of Produce, Fetch, ShareFetch and ShareAcknowledge: Topic:Write and Topic:Read.

Owns the checks of requests with records. These requests are the most frequent, so a fully allowed request is passed on
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.handlers.authorized.guard import refuse_all, rights_of, with_field
from kbroker.handlers.fetch import fetch as fetch_handler
from kbroker.handlers.fetch_attempt import Fetch
from kbroker.handlers.fetch_session import Key
from kbroker.handlers.mirrored_errors import failed
from kbroker.handlers.produce import FEW
from kbroker.handlers.produce_answers import HEADER_BYTES, HEADER_FIELDS, TRANSACTIONAL
from kbroker.handlers.registry import CloseConnection, Handler, RequestContext
from kbroker.long_work import awaited, turn
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, PartitionData
from kbroker.protocol.messages.produce import (
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kbroker.protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from kbroker.protocol.messages.share_fetch import ShareFetchRequest
from kbroker.security.authorizer.acls import Operation, ResourceType
from kbroker.security.authorizer.authorizer import Rights

TOPIC = ResourceType.TOPIC
_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_FIRST_ID_VERSION = 13


def produce(handler: Handler, _response: type[Any]) -> Handler:
    """Require Topic:Write; transactional batches also need TransactionalId:Write."""

    def guarded(ctx: RequestContext, request: ProduceRequest) -> Any:
        left = FEW
        for topic in request.topic_data:
            left -= 1 + len(topic.partition_data)
            if left < 0:
                return in_pieces(ctx, request)
        rights = rights_of(ctx)
        if any(_is_transactional(topic) for topic in request.topic_data):
            _check_transaction(rights, request)
        verdicts = [_may_write(ctx, rights, topic) for topic in request.topic_data]
        return handler(ctx, request) if all(verdicts) else partly(ctx, request, verdicts)

    async def in_pieces(ctx: RequestContext, request: ProduceRequest) -> Any:
        rights, is_transactional, verdicts = rights_of(ctx), False, []
        for topic in request.topic_data:
            verdicts.append(_may_write(ctx, rights, topic))
            for data in topic.partition_data:
                is_transactional = is_transactional or _has_transactional(data.records)
                await turn
            await turn
        if is_transactional:
            _check_transaction(rights, request)
        if all(verdicts):
            return await awaited(handler(ctx, request))
        return await partly(ctx, request, verdicts)

    async def partly(ctx: RequestContext, request: ProduceRequest, verdicts: list[bool]) -> Any:
        allowed = [topic for topic, may in zip(request.topic_data, verdicts, strict=True) if may]
        answer: ProduceResponse = ProduceResponse()
        if allowed:
            answer = await awaited(handler(ctx, with_field(request, "topic_data", allowed)))
        if request.acks == 0:
            raise CloseConnection("a Produce with acks=0 is not authorized")
        in_order = iter(answer.responses) if len(answer.responses) == len(allowed) else None
        merged = [] if in_order is not None else answer.responses
        for topic, may in zip(request.topic_data, verdicts, strict=True):
            if not may:
                merged.append(await failed(TopicProduceResponse, topic, _REFUSED, base_offset=-1))
            elif in_order is not None:
                merged.append(next(in_order))
            await turn
        answer.responses = merged
        return answer

    return guarded


def _check_transaction(rights: Rights, request: ProduceRequest) -> None:
    kind = ResourceType.TRANSACTIONAL_ID
    name = request.transactional_id
    if name is None or not rights.may(Operation.WRITE, kind, name):
        raise refuse_all(kind)


def _is_transactional(topic: TopicProduceData) -> bool:
    return any(_has_transactional(data.records) for data in topic.partition_data)


def _has_transactional(records: Any) -> bool:
    return (
        records is not None
        and len(records) >= HEADER_BYTES
        and bool(HEADER_FIELDS.unpack_from(records)[2] & TRANSACTIONAL)
    )


def _may_write(ctx: RequestContext, rights: Rights, topic: TopicProduceData) -> bool:
    by_id = ctx.version >= _FIRST_ID_VERSION
    name = ctx.services.controller.state.topic_names.get(topic.topic_id) if by_id else topic.name
    return name is None or rights.may(Operation.WRITE, TOPIC, name)


def fetch(_handler: Handler, _response: type[Any]) -> Handler:
    """Require Topic:Read. A request with a broker's replica id needs Cluster:ClusterAction instead."""

    def guarded(ctx: RequestContext, request: FetchRequest) -> Any:
        return fetch_handler(ctx, request, AuthorizedFetch)  # type: ignore[call-arg]

    return guarded


def of_share_group(handler: Handler, _response: type[Any]) -> Handler:
    """Require Group:Read, and Topic:Read for each topic."""

    def guarded(ctx: RequestContext, request: ShareFetchRequest | ShareAcknowledgeRequest) -> Any:
        rights, group = rights_of(ctx), request.group_id
        if group is not None and not rights.may(Operation.READ, ResourceType.GROUP, group):
            raise refuse_all(ResourceType.GROUP)
        return handler(ctx, request, may_read=rights.may_read)  # type: ignore[call-arg]

    return guarded


class AuthorizedFetch(Fetch):
    """A Fetch that reads and awaits only the allowed partitions, even if its session contains other partitions."""

    __slots__ = ()

    def _add(self, wanted: Iterable[tuple[Key, FetchPartition]]) -> None:
        first = len(self.items)
        super()._add(wanted)
        rights = rights_of(self._ctx)
        of_consumer = self._replica < 0
        for place in range(first, len(self.items)):
            partition = self.items[place][2]
            if not (of_consumer and partition is not None and rights.may_read(partition.topic)):
                self._check(place, rights)

    def _check(self, place: int, rights: Rights) -> None:
        key, want, partition = self.items[place]
        if self._replica >= 0:
            may = rights.on_cluster(Operation.CLUSTER_ACTION)
        else:
            name = partition.topic if partition is not None else self._name_of(key)
            may = name is None or rights.may_read(name)
        if not may:
            if self._refused is None:
                self._refused = set()
            self._refused.add(key)
            self.items[place] = (key, want, None)
            self.views.discard(key)
            self.remote.discard(key)

    def _name_of(self, key: Key) -> str | None:
        if self._version < _FIRST_ID_VERSION:
            return key[0]
        return self._ctx.services.controller.state.topic_names.get(key[1])

    def missing(self, key: Key) -> PartitionData:
        if self._refused is not None and key in self._refused:
            return PartitionData(key[2], _REFUSED, -1, aborted_transactions=[], records=b"")
        return super().missing(key)
