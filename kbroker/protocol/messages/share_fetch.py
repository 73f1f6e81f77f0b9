"""ShareFetch (key 78): acquire records for a member of a share group, and acknowledge earlier records (KIP-932).

A session epoch of 0 opens a share session, -1 closes it. Version 2 adds acquire modes (KIP-1206) and the renewal of
locks (KIP-1222).
"""

from kbroker.protocol.schema import Records, Uuid, f, i8, i16, i32, i64, message, struct


@struct
class AcknowledgementBatch:
    first_offset: i64 = f()
    last_offset: i64 = f()
    acknowledge_types: list[i8] = f()


@struct
class FetchPartition:
    partition_index: i32 = f()
    acknowledgement_batches: list[AcknowledgementBatch] = f()


@struct
class FetchTopic:
    topic_id: Uuid = f()
    partitions: list[FetchPartition] = f()


@struct
class ForgottenTopic:
    topic_id: Uuid = f()
    partitions: list[i32] = f()


@message(key=78, versions="1-2", flexible="0+")
class ShareFetchRequest:
    group_id: str | None = f(nullable="0+", default=None)
    member_id: str | None = f(nullable="0+")
    share_session_epoch: i32 = f()
    max_wait_ms: i32 = f()
    min_bytes: i32 = f()
    max_bytes: i32 = f(default=0x7FFFFFFF)
    max_records: i32 = f("1+")
    batch_size: i32 = f("1+")
    share_acquire_mode: i8 = f("2+", default=0)
    is_renew_ack: bool = f("2+", default=False)
    topics: list[FetchTopic] = f()
    forgotten_topics_data: list[ForgottenTopic] = f()


@struct
class LeaderIdAndEpoch:
    leader_id: i32 = f()
    leader_epoch: i32 = f()


@struct
class AcquiredRecords:
    first_offset: i64 = f()
    last_offset: i64 = f()
    delivery_count: i16 = f()


@struct
class PartitionData:
    partition_index: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    acknowledge_error_code: i16 = f()
    acknowledge_error_message: str | None = f(nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = f()
    records: Records = f(nullable="0")
    acquired_records: list[AcquiredRecords] = f()


@struct
class ShareFetchableTopicResponse:
    topic_id: Uuid = f()
    partitions: list[PartitionData] = f()


@struct
class NodeEndpoint:
    node_id: i32 = f()
    host: str = f()
    port: i32 = f()
    rack: str | None = f(nullable="0+", default=None)


@message(key=78, versions="1-2", flexible="0+")
class ShareFetchResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    acquisition_lock_timeout_ms: i32 = f("1+")
    responses: list[ShareFetchableTopicResponse] = f()
    node_endpoints: list[NodeEndpoint] = f()
