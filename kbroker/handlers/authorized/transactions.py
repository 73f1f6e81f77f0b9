"""Guards of the APIs about transactions and producer ids.

Owns the checks of transactional producers, and of requests that list transactions.
"""

from __future__ import annotations

from typing import Any

from kbroker.handlers.authorized.guard import refuse_all, rights_of
from kbroker.handlers.registry import Handler, RequestContext
from kbroker.handlers.transactions import add_partitions_to_txn as add_partitions_handler
from kbroker.long_work import awaited, turn
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import AddPartitionsToTxnRequest, InitProducerIdRequest
from kbroker.security.authorizer.acls import Operation, ResourceType
from kbroker.security.authorizer.authorizer import Rights

TOPIC, TXN = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
_OF_BROKERS_SINCE = 4


def init_producer_id(handler: Handler, _response: type[Any]) -> Handler:
    """Require TransactionalId:Write. Without a transactional id, require Cluster:IdempotentWrite or any Topic:Write."""

    def guarded(ctx: RequestContext, request: InitProducerIdRequest) -> Any:
        rights = rights_of(ctx)
        if request.transactional_id is not None:
            if not rights.may(Operation.WRITE, TXN, request.transactional_id):
                raise refuse_all(TXN)
        elif not (
            rights.on_cluster(Operation.IDEMPOTENT_WRITE, logs=False) or rights.may_with_any(Operation.WRITE, TOPIC)
        ):
            raise refuse_all(ResourceType.CLUSTER)
        return handler(ctx, request)

    return guarded


def add_partitions_to_txn(_handler: Handler, _response: type[Any]) -> Handler:
    """Require TransactionalId:Write and Topic:Write; brokers (since v4) need Cluster:ClusterAction."""

    def guarded(ctx: RequestContext, request: AddPartitionsToTxnRequest) -> Any:
        rights = rights_of(ctx)
        if ctx.version >= _OF_BROKERS_SINCE:
            if not rights.on_cluster(Operation.CLUSTER_ACTION):
                raise refuse_all(ResourceType.CLUSTER)
        elif not rights.may(Operation.WRITE, TXN, request.v3_and_below_transactional_id):
            raise refuse_all(TXN)

        def may_write(topic: str) -> bool:
            return rights.may(Operation.WRITE, TOPIC, topic)

        return add_partitions_handler(ctx, request, may_write=may_write)  # type: ignore[call-arg]

    return guarded


def transaction_right(_ctx: RequestContext, rights: Rights, name: str) -> int:
    """Check TransactionalId:Describe."""
    allowed = rights.may(Operation.DESCRIBE, TXN, name)
    return 0 if allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def without_hidden_topics(handler: Handler, _response: type[Any]) -> Handler:
    """Remove from described transactions the topics that the client may not describe."""

    async def guarded(ctx: RequestContext, request: Any) -> Any:
        answer = await awaited(handler(ctx, request))
        rights = rights_of(ctx)
        for state in answer.transaction_states:
            kept = []
            for topic in state.topics:
                if rights.may(Operation.DESCRIBE, TOPIC, topic.topic):
                    kept.append(topic)
                await turn
            state.topics = kept
            await turn
        return answer

    return guarded


def may_describe(_ctx: RequestContext, rights: Rights, state: Any) -> bool:
    """Whether the client may describe a listed transaction."""
    return rights.may(Operation.DESCRIBE, TXN, state.transactional_id)
