"""The transaction coordinator's records in `__transaction_state`: encoding and decoding.

Owns the bytes of keys (record type 0) and values. Values have version 1 if transaction.version is at least 1. Otherwise
they have version 0, which has fewer fields (KIP-890). Never touches the state.
"""

from __future__ import annotations

from functools import lru_cache

from kbroker.coordination.encoding import decode_value, encode, read_prefix
from kbroker.coordination.partitioning import SHORT_ID
from kbroker.coordination.shard import CoordinatorRecord
from kbroker.protocol.compiler import stored_decoder
from kbroker.protocol.messages.coordinator_records import PartitionsSchema, TransactionLogKey, TransactionLogValue
from kbroker.txn.transaction import BUMPS_EPOCH_SINCE, TopicPartition, Transaction, TxnState

TRANSACTION_LOG = 0
_LATEST_VALUE = 1

_read_key = stored_decoder(TransactionLogKey, 0)


@lru_cache(maxsize=8192)
def _short_key(transactional_id: str) -> bytes:
    return encode(TRANSACTION_LOG, TransactionLogKey(transactional_id=transactional_id), 0)


def _key(transactional_id: str) -> bytes:
    return (_short_key if len(transactional_id) <= SHORT_ID else _short_key.__wrapped__)(transactional_id)


def transaction_record(txn: Transaction, feature_level: int) -> CoordinatorRecord:
    """Return the record of a transaction; `feature_level` is the finalized transaction.version. Raises ApiError."""
    version = min(feature_level, _LATEST_VALUE)
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(txn.partitions):
        by_topic.setdefault(topic, []).append(index)
    value = TransactionLogValue(
        producer_id=txn.producer_id,
        previous_producer_id=txn.prev_producer_id,
        next_producer_id=txn.next_producer_id,
        producer_epoch=txn.producer_epoch,
        transaction_timeout_ms=txn.timeout_ms,
        transaction_status=txn.state,
        transaction_partitions=None
        if txn.state is TxnState.EMPTY
        else [PartitionsSchema(topic=topic, partition_ids=indexes) for topic, indexes in by_topic.items()],
        transaction_last_update_timestamp_ms=txn.updated_ms,
        transaction_start_timestamp_ms=txn.start_ms,
        client_transaction_version=txn.client_version,
    )
    return CoordinatorRecord(_key(txn.transactional_id), encode(version, value, version))


def transaction_tombstone(transactional_id: str) -> CoordinatorRecord:
    """Return the record that deletes a transactional id."""
    return CoordinatorRecord(_key(transactional_id), None)


def read_key(key: bytes) -> str | None:
    """Return the transactional id of a key; None if the record has another type. Raises Malformed."""
    if read_prefix(key, "key") != TRANSACTION_LOG:
        return None
    transactional_id: str = _read_key(key[2:]).transactional_id
    return transactional_id


def read_value(transactional_id: str, value: bytes) -> Transaction:
    """Return the transaction that a value describes; raises ValueError (Malformed)."""
    read = decode_value(TransactionLogValue, value)
    state = TxnState(read.transaction_status)
    if read.transaction_partitions is None and state is not TxnState.EMPTY:
        raise ValueError(f"it has no partitions in state {state.name}")
    if not 0 <= read.client_transaction_version <= BUMPS_EPOCH_SINCE:
        raise ValueError(f"its client speaks transaction version {read.client_transaction_version}")
    partitions: frozenset[TopicPartition] = frozenset(
        (entry.topic, index) for entry in read.transaction_partitions or () for index in entry.partition_ids
    )
    return Transaction(
        transactional_id,
        read.producer_id,
        read.producer_epoch,
        prev_producer_id=read.previous_producer_id,
        next_producer_id=read.next_producer_id,
        timeout_ms=read.transaction_timeout_ms,
        state=state,
        partitions=partitions,
        start_ms=read.transaction_start_timestamp_ms,
        updated_ms=read.transaction_last_update_timestamp_ms,
        client_version=read.client_transaction_version,
    )
