"""AddPartitionsToTxn (key 24): add partitions to a transaction, or verify that they are in it (KIP-98, KIP-890)."""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct


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
