"""Listings of transactions and producers (KIP-664)."""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct

# DescribeTransactions (key 65): the state of transactions by transactional id (KIP-664).


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


# ListTransactions (key 66): the transactional ids that a broker coordinates (KIP-664).


@message(key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest:
    state_filters: list[str] = f()
    producer_id_filters: list[i64] = f()
    duration_filter: i64 = f("1+", default=-1)
    transactional_id_pattern: str | None = f("2+", nullable="2+", default=None)


@struct
class ListedTransaction:
    transactional_id: str = f()
    producer_id: i64 = f()
    transaction_state: str = f()


@message(key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    unknown_state_filters: list[str] = f()
    transaction_states: list[ListedTransaction] = f()


# DescribeProducers (key 61): producers with state in a partition (KIP-664).


@struct
class TopicRequest:
    name: str = f()
    partition_indexes: list[i32] = f()


@message(key=61, versions="0", flexible="0+")
class DescribeProducersRequest:
    topics: list[TopicRequest] = f()


@struct
class ProducerState:
    producer_id: i64 = f()
    producer_epoch: i32 = f()
    last_sequence: i32 = f(default=-1)
    last_timestamp: i64 = f(default=-1)
    coordinator_epoch: i32 = f()
    current_txn_start_offset: i64 = f(default=-1)


@struct
class PartitionResponse:
    partition_index: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    active_producers: list[ProducerState] = f()


@struct
class TopicResponse:
    name: str = f()
    partitions: list[PartitionResponse] = f()


@message(key=61, versions="0", flexible="0+")
class DescribeProducersResponse:
    throttle_time_ms: i32 = f()
    topics: list[TopicResponse] = f()
