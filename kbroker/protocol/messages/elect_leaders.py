"""ElectLeaders (key 43): preferred leaders, or any, are elected (KIP-183, KIP-460)."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct


@struct
class TopicPartitions:
    topic: str = f()
    partitions: list[i32] = f()


@message(key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest:
    election_type: i8 = f("1+")
    topic_partitions: list[TopicPartitions] | None = f(nullable="0+")
    timeout_ms: i32 = f(default=60000)


@struct
class PartitionResult:
    partition_id: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")


@struct
class ReplicaElectionResult:
    topic: str = f()
    partition_result: list[PartitionResult] = f()


@message(key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f("1+")
    replica_election_results: list[ReplicaElectionResult] = f()
