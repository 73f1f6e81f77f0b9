"""CreateTopics (key 19): create topics; configs are returned from v5 (KIP-525), topic ids from v7."""

from kbroker.protocol.schema import Uuid, f, i8, i16, i32, message, struct


@struct
class CreatableReplicaAssignment:
    partition_index: i32 = f()
    broker_ids: list[i32] = f()


@struct
class CreatableTopicConfig:
    name: str = f()
    value: str | None = f(nullable="0+")


@struct
class CreatableTopic:
    name: str = f()
    num_partitions: i32 = f()
    replication_factor: i16 = f()
    assignments: list[CreatableReplicaAssignment] = f()
    configs: list[CreatableTopicConfig] = f()


@message(key=19, versions="2-7", flexible="5+")
class CreateTopicsRequest:
    topics: list[CreatableTopic] = f()
    timeout_ms: i32 = f(default=60000)
    validate_only: bool = f("1+", default=False)


@struct
class CreatableTopicConfigs:
    name: str = f("5+")
    value: str | None = f("5+", nullable="5+")
    read_only: bool = f("5+")
    config_source: i8 = f("5+", default=-1)
    is_sensitive: bool = f("5+")


@struct
class CreatableTopicResult:
    name: str = f()
    topic_id: Uuid = f("7+")
    error_code: i16 = f()
    error_message: str | None = f("1+", nullable="0+")
    topic_config_error_code: i16 = f("5+", tag=0)
    num_partitions: i32 = f("5+", default=-1)
    replication_factor: i16 = f("5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = f("5+", nullable="5+")


@message(key=19, versions="2-7", flexible="5+")
class CreateTopicsResponse:
    throttle_time_ms: i32 = f("2+")
    topics: list[CreatableTopicResult] = f()
