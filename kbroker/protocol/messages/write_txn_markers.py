"""WriteTxnMarkers (key 27): write the ends of transactions into partitions (KIP-98, KIP-664)."""

from kbroker.protocol.schema import f, i8, i16, i32, i64, message, struct


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
