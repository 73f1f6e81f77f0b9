"""Requests between the controller of a cluster on ZooKeeper and its brokers, in both directions."""

from kbroker.protocol.schema import Uuid, f, i8, i16, i32, i64, message, struct

# LeaderAndIsr (key 4): the leaders and followers of the partitions that a broker hosts.
#
# Only the versions with topic ids are declared (KIP-516); `partition_epoch` is the version of the partition's znode.


@struct
class LeaderAndIsrPartitionState:
    """One partition. `controller_epoch` is the epoch of the controller that wrote this state."""

    partition_index: i32 = f()
    controller_epoch: i32 = f()
    leader: i32 = f()
    leader_epoch: i32 = f()
    isr: list[i32] = f()
    partition_epoch: i32 = f()
    replicas: list[i32] = f()
    adding_replicas: list[i32] = f("3+")
    removing_replicas: list[i32] = f("3+")
    is_new: bool = f("1+", default=False)
    leader_recovery_state: i8 = f("6+", default=0)


@struct
class LeaderAndIsrTopicState:
    topic_name: str = f("2+")
    topic_id: Uuid = f("5+")
    partition_states: list[LeaderAndIsrPartitionState] = f("2+")


@struct
class LeaderAndIsrLiveLeader:
    """The address of a leader that this request names."""

    broker_id: i32 = f()
    host_name: str = f()
    port: i32 = f()


@message(key=4, versions="5-7", flexible="4+")
class LeaderAndIsrRequest:
    controller_id: i32 = f()
    is_k_raft_controller: bool = f("7+", default=False)
    controller_epoch: i32 = f()
    broker_epoch: i64 = f("2+", default=-1)
    type: i8 = f("5+")
    topic_states: list[LeaderAndIsrTopicState] = f("2+")
    live_leaders: list[LeaderAndIsrLiveLeader] = f()


@struct
class LeaderAndIsrPartitionError:
    partition_index: i32 = f()
    error_code: i16 = f()


@struct
class LeaderAndIsrTopicError:
    topic_id: Uuid = f("5+")
    partition_errors: list[LeaderAndIsrPartitionError] = f("5+")


@message(key=4, versions="5-7", flexible="4+")
class LeaderAndIsrResponse:
    error_code: i16 = f()
    topics: list[LeaderAndIsrTopicError] = f("5+")


# StopReplica (key 5): the partitions that a broker must stop hosting (KIP-570).
#
# A leader epoch of -1 means any epoch; -2 means that the topic is being deleted.


@struct
class StopReplicaPartitionState:
    partition_index: i32 = f("3+")
    leader_epoch: i32 = f("3+", default=-1)
    delete_partition: bool = f("3+")


@struct
class StopReplicaTopicState:
    topic_name: str = f("3+")
    partition_states: list[StopReplicaPartitionState] = f("3+")


@message(key=5, versions="3-4", flexible="2+")
class StopReplicaRequest:
    controller_id: i32 = f()
    is_k_raft_controller: bool = f("4+", default=False)
    controller_epoch: i32 = f()
    broker_epoch: i64 = f("1+", default=-1)
    topic_states: list[StopReplicaTopicState] = f("3+")


@struct
class StopReplicaPartitionError:
    topic_name: str = f()
    partition_index: i32 = f()
    error_code: i16 = f()


@message(key=5, versions="3-4", flexible="2+")
class StopReplicaResponse:
    error_code: i16 = f()
    partition_errors: list[StopReplicaPartitionError] = f()


# UpdateMetadata (key 6): the live brokers, and the changes of partitions.
#
# Partitions are merged into the receiver's metadata; the live brokers replace its list of live brokers. A leader of -2
# means that the topic is being deleted.


@struct
class UpdateMetadataPartitionState:
    """One partition. `zk_version` is the version of the partition's znode."""

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


# AllocateProducerIds (key 67): a broker requests a block of producer ids (KIP-730).


@message(key=67, versions="0", flexible="0+")
class AllocateProducerIdsRequest:
    broker_id: i32 = f()
    broker_epoch: i64 = f(default=-1)


@message(key=67, versions="0", flexible="0+")
class AllocateProducerIdsResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    producer_id_start: i64 = f()
    producer_id_len: i32 = f()


# AlterPartition (key 56): a leader requests another set of in-sync replicas (KIP-497, KIP-903).


@struct
class BrokerState:
    """A replica of the requested set. An epoch of -1 is not checked."""

    broker_id: i32 = f("3+")
    broker_epoch: i64 = f("3+", default=-1)


@struct
class AlterPartitionData:
    """One partition. `partition_epoch` is the leader's current value."""

    partition_index: i32 = f()
    leader_epoch: i32 = f()
    new_isr: list[i32] = f("0-2")
    new_isr_with_epochs: list[BrokerState] = f("3+")
    leader_recovery_state: i8 = f("1+", default=0)
    partition_epoch: i32 = f()


@struct
class AlterPartitionTopic:
    topic_id: Uuid = f("2+")
    partitions: list[AlterPartitionData] = f()


@message(key=56, versions="2-3", flexible="0+")
class AlterPartitionRequest:
    broker_id: i32 = f()
    broker_epoch: i64 = f(default=-1)
    topics: list[AlterPartitionTopic] = f()


@struct
class AlteredPartition:
    """The controller's current state of a partition, or the error if the partition was not changed."""

    partition_index: i32 = f()
    error_code: i16 = f()
    leader_id: i32 = f()
    leader_epoch: i32 = f()
    isr: list[i32] = f()
    leader_recovery_state: i8 = f("1+", default=0)
    partition_epoch: i32 = f()


@struct
class AlteredTopic:
    topic_id: Uuid = f("2+")
    partitions: list[AlteredPartition] = f()


@message(key=56, versions="2-3", flexible="0+")
class AlterPartitionResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    topics: list[AlteredTopic] = f()


# ControlledShutdown (key 7): before a broker stops, the controller moves the leadership of its partitions away.


@message(key=7, versions="3", flexible="3+")
class ControlledShutdownRequest:
    broker_id: i32 = f()
    broker_epoch: i64 = f("2+", default=-1)


@struct
class RemainingPartition:
    """A partition that the broker still leads."""

    topic_name: str = f()
    partition_index: i32 = f()


@message(key=7, versions="3", flexible="3+")
class ControlledShutdownResponse:
    error_code: i16 = f()
    remaining_partitions: list[RemainingPartition] = f()


# UnregisterBroker (key 64): permanently remove a broker from a cluster on KRaft. This broker does not serve it.


@message(key=64, versions="0", flexible="0+")
class UnregisterBrokerRequest:
    broker_id: i32 = f()


@message(key=64, versions="0", flexible="0+")
class UnregisterBrokerResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default="")
