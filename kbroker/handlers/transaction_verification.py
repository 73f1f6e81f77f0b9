"""Verification of a partition with the transaction coordinator before transactional records are appended (KIP-890).

Owns the request to the coordinator, and the translation of its results for producers. Serves no API: Produce and
TxnOffsetCommit use it.

If a partition already has an open transaction of this producer and epoch, no request is needed. Otherwise the
coordinator checks that the partition is part of the transaction. Producers of version 2 never add partitions
themselves, so the coordinator adds the partition for them. The append receives the guard that was created before the
request (producer_state.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from kbroker.handlers.services import Services
from kbroker.log.append_info import AppendError
from kbroker.log.producers.producer_state import UNCHECKED
from kbroker.long_work import then
from kbroker.partition import Partition
from kbroker.protocol.errors import ErrorCode
from kbroker.txn.shard import Identity
from kbroker.txn.transaction import BUMPS_EPOCH_SINCE, TopicPartition


class Client(Enum):
    """The errors and features that a producer knows, derived from the version of its request."""

    KNOWS_LITTLE = 0
    KNOWS_ABORTABLE = 1
    """The producer knows the error TRANSACTION_ABORTABLE."""
    ADDS_IMPLICITLY = 2
    """The producer uses transaction version 2."""


class Question(NamedTuple):
    """A partition to append to, and the first sequence number of the batch (-1 for offsets)."""

    partition: Partition
    sequence: int

    @property
    def key(self) -> TopicPartition:
        return (self.partition.topic, self.partition.index)


class Verdict(NamedTuple):
    """Either the error that forbids an append, or the guard that the append needs."""

    code: ErrorCode
    guard: object


Verdicts = dict[TopicPartition, Verdict]


def verify(
    services: Services, transactional_id: str, producer: Identity, questions: Sequence[Question], client: Client
) -> Verdicts | Awaitable[Verdicts]:
    """Return a verdict for each partition, or an awaitable if the answer needs a remote coordinator or a commit."""
    epoch_bump = client is Client.ADDS_IMPLICITLY
    if not epoch_bump and not services.config.get_bool("transaction.partition.verification.enable"):
        return {question.key: Verdict(ErrorCode.NONE, UNCHECKED) for question in questions}
    now_ms = services.clock.now_ms()
    verdicts: Verdicts = {}
    guards: dict[TopicPartition, object] = {}
    asked: dict[TopicPartition, Partition] = {}
    for partition, sequence in questions:
        key = (partition.topic, partition.index)
        if not partition.leading:
            verdicts[key] = Verdict(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)
            continue
        try:
            guard = partition.log.producers.begin_verification(*producer, sequence, epoch_bump, now_ms)
        except AppendError as err:
            verdicts[key] = Verdict(err.code, None)
            continue
        if guard is None:
            verdicts[key] = Verdict(ErrorCode.NONE, None)
        else:
            guards[key], asked[key] = guard, partition
    if not asked:
        return verdicts

    def conclude(codes: Mapping[TopicPartition, ErrorCode]) -> Verdicts:
        for key, code in codes.items():
            if code in _NO_PRODUCER_OF_IT:
                asked[key].log.producers.forget_verification(producer.producer_id)
            verdicts[key] = Verdict(_translated(code, client), guards[key])
        return verdicts

    transactions, cluster = services.transactions, services.cluster
    if cluster is not None and not cluster.other_coordinators.is_here(transactional_id):
        others = cluster.other_coordinators
        return then(others.ask(transactional_id, producer, asked, verify_only=not epoch_bump), conclude)
    if not epoch_bump:
        return conclude(transactions.verify(transactional_id, producer, list(asked)))
    added = transactions.add_partitions(transactional_id, producer, list(asked), BUMPS_EPOCH_SINCE)
    return then(added, lambda code: conclude(dict.fromkeys(asked, code)))


_NO_PRODUCER_OF_IT = frozenset(
    {ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED}
)


def _translated(code: ErrorCode, client: Client) -> ErrorCode:
    """Return the error code that this producer expects in this case (AddPartitionsToTxnManager)."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and client is Client.KNOWS_LITTLE:
        return ErrorCode.INVALID_TXN_STATE
    return code


_PASSES_BY = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def refused_produce(code: ErrorCode, client: Client) -> tuple[ErrorCode, str | None]:
    """Return Produce's error for a partition with this verdict (ReplicaManager.handleProduceAppend).

    A temporary error becomes NOT_ENOUGH_REPLICAS, on which every producer retries.
    """
    if code is ErrorCode.INVALID_TXN_STATE:
        return code, "Partition was not added to the transaction"
    if code in _PASSES_BY or (code is ErrorCode.CONCURRENT_TRANSACTIONS and client is not Client.ADDS_IMPLICITLY):
        text = f"Unable to verify the partition has been added to the transaction. Underlying error: {code.name}"
        return ErrorCode.NOT_ENOUGH_REPLICAS, text
    return code, None
