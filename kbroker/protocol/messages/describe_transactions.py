"""DescribeTransactions (key 65): the state of transactions by transactional id (KIP-664)."""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct


@message(key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest:
    transactional_ids: list[str] = f()


@struct
class TopicData:
    topic: str = f()
    partitions: list[i32] = f()


@struct
class TransactionState:
    error_code: i16 = f()
    transactional_id: str = f()
    transaction_state: str = f()
    transaction_timeout_ms: i32 = f()
    transaction_start_time_ms: i64 = f()
    producer_id: i64 = f()
    producer_epoch: i16 = f()
    topics: list[TopicData] = f()


@message(key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse:
    throttle_time_ms: i32 = f()
    transaction_states: list[TransactionState] = f()
