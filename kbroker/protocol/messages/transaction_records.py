"""The records of `__transaction_state`: a transactional id and the state of its transaction.

On disk a key or value is preceded by an int16: the record type (0) for keys, the value's version for values.
"""

from kbroker.protocol.schema import f, i8, i16, i32, i64, message, struct


@message(key=0, versions="0")
class TransactionLogKey:
    transactional_id: str = f("0")


@struct
class PartitionsSchema:
    topic: str = f()
    partition_ids: list[i32] = f()


@message(key=0, versions="0-1", flexible="1+")
class TransactionLogValue:
    producer_id: i64 = f()
    previous_producer_id: i64 = f("1+", tag=0, default=-1)
    next_producer_id: i64 = f("1+", tag=1, default=-1)
    producer_epoch: i16 = f()
    next_producer_epoch: i16 = f("1+", tag=3, default=-1)
    transaction_timeout_ms: i32 = f()
    transaction_status: i8 = f()
    transaction_partitions: list[PartitionsSchema] | None = f(nullable="0+")
    transaction_last_update_timestamp_ms: i64 = f()
    transaction_start_timestamp_ms: i64 = f()
    client_transaction_version: i16 = f("1+", tag=2, default=0)
