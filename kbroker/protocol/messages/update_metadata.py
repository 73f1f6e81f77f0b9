"""UpdateMetadata (key 6): the controller tells a broker which brokers live and what has changed of which partition.

Partitions are merged into what the broker knows; the live brokers replace it. A leader of -2 says that the topic is
being deleted.
"""

from kbroker.protocol.schema import Uuid, f, i8, i16, i32, i64, message, struct


@struct
class UpdateMetadataPartitionState:
    """One partition; `zk_version` is the version of its znode."""

    partition_index: i32 = f()
    controller_epoch: i32 = f()
    leader: i32 = f()
    leader_epoch: i32 = f()
    isr: list[i32] = f()
    zk_version: i32 = f()
    replicas: list[i32] = f()
    offline_replicas: list[i32] = f("4+")


@struct
class UpdateMetadataTopicState:
    topic_name: str = f("5+")
    topic_id: Uuid = f("7+")
    partition_states: list[UpdateMetadataPartitionState] = f("5+")


@struct
class UpdateMetadataEndpoint:
    port: i32 = f("1+")
    host: str = f("1+")
    listener: str = f("3+")
    security_protocol: i16 = f("1+")


@struct
class UpdateMetadataBroker:
    id: i32 = f()
    endpoints: list[UpdateMetadataEndpoint] = f("1+")
    rack: str | None = f("2+", nullable="0+")


@message(key=6, versions="7-8", flexible="6+")
class UpdateMetadataRequest:
    controller_id: i32 = f()
    is_k_raft_controller: bool = f("8+", default=False)
    type: i8 = f("8+", tag=0, default=0)
    controller_epoch: i32 = f()
    broker_epoch: i64 = f("5+", default=-1)
    topic_states: list[UpdateMetadataTopicState] = f("5+")
    live_brokers: list[UpdateMetadataBroker] = f()


@message(key=6, versions="7-8", flexible="6+")
class UpdateMetadataResponse:
    error_code: i16 = f()
