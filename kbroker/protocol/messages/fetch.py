"""Fetch (key 1).

Reads record batches, optionally in a fetch session (KIP-227). Topic ids replace names in v13 (KIP-516).
"""

from kbroker.protocol.schema import Records, Uuid, f, i8, i16, i32, i64, message, struct


@struct
class ReplicaState:
    replica_id: i32 = f("15+", default=-1)
    replica_epoch: i64 = f("15+", default=-1)


@struct
class FetchPartition:
    partition: i32 = f()
    current_leader_epoch: i32 = f("9+", default=-1)
    fetch_offset: i64 = f()
    last_fetched_epoch: i32 = f("12+", default=-1)
    log_start_offset: i64 = f("5+", default=-1)
    partition_max_bytes: i32 = f()
    replica_directory_id: Uuid = f("17+", tag=0)
    high_watermark: i64 = f("18+", tag=1, default=0x7FFFFFFFFFFFFFFF)


@struct
class FetchTopic:
    topic: str = f("0-12")
    topic_id: Uuid = f("13+")
    partitions: list[FetchPartition] = f()


@struct
class ForgottenTopic:
    topic: str = f("7-12")
    topic_id: Uuid = f("13+")
    partitions: list[i32] = f("7+")


@message(key=1, versions="4-18", flexible="12+")
class FetchRequest:
    cluster_id: str | None = f("12+", nullable="12+", tag=0, default=None)
    replica_id: i32 = f("0-14", default=-1)
    replica_state: ReplicaState | None = f("15+", tag=1)
    max_wait_ms: i32 = f()
    min_bytes: i32 = f()
    max_bytes: i32 = f("3+", default=0x7FFFFFFF)
    isolation_level: i8 = f("4+")
    session_id: i32 = f("7+")
    session_epoch: i32 = f("7+", default=-1)
    topics: list[FetchTopic] = f()
    forgotten_topics_data: list[ForgottenTopic] = f("7+")
    rack_id: str = f("11+")


@struct
class EpochEndOffset:
    epoch: i32 = f("12+", default=-1)
    end_offset: i64 = f("12+", default=-1)


@struct
class LeaderIdAndEpoch:
    leader_id: i32 = f("12+", default=-1)
    leader_epoch: i32 = f("12+", default=-1)


@struct
class SnapshotId:
    end_offset: i64 = f(default=-1)
    epoch: i32 = f(default=-1)


@struct
class AbortedTransaction:
    producer_id: i64 = f("4+")
    first_offset: i64 = f("4+")


@struct
class PartitionData:
    partition_index: i32 = f()
    error_code: i16 = f()
    high_watermark: i64 = f()
    last_stable_offset: i64 = f("4+", default=-1)
    log_start_offset: i64 = f("5+", default=-1)
    diverging_epoch: EpochEndOffset | None = f("12+", tag=0)
    current_leader: LeaderIdAndEpoch | None = f("12+", tag=1)
    snapshot_id: SnapshotId | None = f("12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = f("4+", nullable="4+")
    preferred_read_replica: i32 = f("11+", default=-1)
    records: Records = f(nullable="0+")


@struct
class FetchableTopicResponse:
    topic: str = f("0-12")
    topic_id: Uuid = f("13+")
    partitions: list[PartitionData] = f()


@struct
class NodeEndpoint:
    node_id: i32 = f("16+")
    host: str = f("16+")
    port: i32 = f("16+")
    rack: str | None = f("16+", nullable="16+", default=None)


@message(key=1, versions="4-18", flexible="12+")
class FetchResponse:
    throttle_time_ms: i32 = f("1+")
    error_code: i16 = f("7+")
    session_id: i32 = f("7+")
    responses: list[FetchableTopicResponse] = f()
    node_endpoints: list[NodeEndpoint] = f("16+", tag=0)
