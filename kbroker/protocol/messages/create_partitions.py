"""CreatePartitions (key 37): raise the number of partitions (KIP-195)."""

from kbroker.protocol.schema import f, i16, i32, message, struct


@struct
class CreatePartitionsAssignment:
    broker_ids: list[i32] = f()


@struct
class CreatePartitionsTopic:
    name: str = f()
    count: i32 = f()
    assignments: list[CreatePartitionsAssignment] | None = f(nullable="0+")


@message(key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest:
    topics: list[CreatePartitionsTopic] = f()
    timeout_ms: i32 = f()
    validate_only: bool = f()


@struct
class CreatePartitionsTopicResult:
    name: str = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)


@message(key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    throttle_time_ms: i32 = f()
    results: list[CreatePartitionsTopicResult] = f()
