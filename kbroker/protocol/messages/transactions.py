"""Transactions: their start, their growth and their end, and lists of transactions and producers (KIP-664)."""

from kbroker.protocol.schema import f, i8, i16, i32, i64, message, struct

# InitProducerId (key 22): obtain a producer id and epoch (KIP-98, KIP-360).


@message(key=22, versions="0-5", flexible="2+")
class InitProducerIdRequest:
    transactional_id: str | None = f(nullable="0+")
    transaction_timeout_ms: i32 = f()
    producer_id: i64 = f("3+", default=-1)
    producer_epoch: i16 = f("3+", default=-1)
    enable2_pc: bool = f("6+", default=False)
    keep_prepared_txn: bool = f("6+", default=False)


@message(key=22, versions="0-5", flexible="2+")
class InitProducerIdResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    producer_id: i64 = f(default=-1)
    producer_epoch: i16 = f()
    ongoing_txn_producer_id: i64 = f("6+", default=-1)
    ongoing_txn_producer_epoch: i16 = f("6+", default=-1)


# AddPartitionsToTxn (key 24): add partitions to a transaction, or verify that they are in it (KIP-98, KIP-890).


@struct
class AddPartitionsToTxnTopic:
    name: str = f()
    partitions: list[i32] = f()


@struct
class AddPartitionsToTxnTransaction:
    transactional_id: str = f("4+")
    producer_id: i64 = f("4+")
    producer_epoch: i16 = f("4+")
    verify_only: bool = f("4+", default=False)
    topics: list[AddPartitionsToTxnTopic] = f("4+")


@message(key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest:
    transactions: list[AddPartitionsToTxnTransaction] = f("4+")
    v3_and_below_transactional_id: str = f("0-3")
    v3_and_below_producer_id: i64 = f("0-3")
    v3_and_below_producer_epoch: i16 = f("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = f("0-3")


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: i32 = f()
    partition_error_code: i16 = f()


@struct
class AddPartitionsToTxnTopicResult:
    name: str = f()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = f()


@struct
class AddPartitionsToTxnResult:
    transactional_id: str = f("4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = f("4+")


@message(key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f("4+")
    results_by_transaction: list[AddPartitionsToTxnResult] = f("4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = f("0-3")


# AddOffsetsToTxn (key 25): add the offsets partition of a group to a transaction (KIP-98).


@message(key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    transactional_id: str = f()
    producer_id: i64 = f()
    producer_epoch: i16 = f()
    group_id: str = f()


@message(key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()


# EndTxn (key 26): commit or abort a transaction (KIP-98, KIP-890).


@message(key=26, versions="0-5", flexible="3+")
class EndTxnRequest:
    transactional_id: str = f()
    producer_id: i64 = f()
    producer_epoch: i16 = f()
    committed: bool = f()


@message(key=26, versions="0-5", flexible="3+")
class EndTxnResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    producer_id: i64 = f("5+", default=-1)
    producer_epoch: i16 = f("5+", default=-1)


# WriteTxnMarkers (key 27): write the markers that end transactions into partitions (KIP-98, KIP-664).


@struct
class WritableTxnMarkerTopic:
    name: str = f()
    partition_indexes: list[i32] = f()


@struct
class WritableTxnMarker:
    producer_id: i64 = f()
    producer_epoch: i16 = f()
    transaction_result: bool = f()
    topics: list[WritableTxnMarkerTopic] = f()
    coordinator_epoch: i32 = f()
    transaction_version: i8 = f("2+", default=0)


@message(key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersRequest:
    markers: list[WritableTxnMarker] = f()


@struct
class WritableTxnMarkerPartitionResult:
    partition_index: i32 = f()
    error_code: i16 = f()


@struct
class WritableTxnMarkerTopicResult:
    name: str = f()
    partitions: list[WritableTxnMarkerPartitionResult] = f()


@struct
class WritableTxnMarkerResult:
    producer_id: i64 = f()
    topics: list[WritableTxnMarkerTopicResult] = f()


@message(key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersResponse:
    markers: list[WritableTxnMarkerResult] = f()


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


# DescribeProducers (key 61): the producers that have state in a partition (KIP-664).


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
