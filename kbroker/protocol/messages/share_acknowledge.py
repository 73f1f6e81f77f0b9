"""ShareAcknowledge (key 79): acknowledge acquired records of a share group without a fetch (KIP-932).

Version 2 adds the renewal of locks (KIP-1222).
"""

from kbroker.protocol.schema import Uuid, f, i8, i16, i32, i64, message, struct


@struct
class AcknowledgementBatch:
    first_offset: i64 = f()
    last_offset: i64 = f()
    acknowledge_types: list[i8] = f()


@struct
class AcknowledgePartition:
    partition_index: i32 = f()
    acknowledgement_batches: list[AcknowledgementBatch] = f()


@struct
class AcknowledgeTopic:
    topic_id: Uuid = f()
    partitions: list[AcknowledgePartition] = f()


@message(key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeRequest:
    group_id: str | None = f(nullable="0+", default=None)
    member_id: str | None = f(nullable="0+")
    share_session_epoch: i32 = f()
    is_renew_ack: bool = f("2+", default=False)
    topics: list[AcknowledgeTopic] = f()


@struct
class LeaderIdAndEpoch:
    leader_id: i32 = f()
    leader_epoch: i32 = f()


@struct
class PartitionData:
    partition_index: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = f()


@struct
class ShareAcknowledgeTopicResponse:
    topic_id: Uuid = f()
    partitions: list[PartitionData] = f()


@struct
class NodeEndpoint:
    node_id: i32 = f()
    host: str = f()
    port: i32 = f()
    rack: str | None = f(nullable="0+", default=None)


@message(key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    acquisition_lock_timeout_ms: i32 = f("2+")
    responses: list[ShareAcknowledgeTopicResponse] = f()
    node_endpoints: list[NodeEndpoint] = f()
