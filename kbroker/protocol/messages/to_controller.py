"""Requests from brokers to the controller of a cluster on ZooKeeper."""

from kbroker.protocol.schema import Uuid, f, i8, i16, i32, i64, message, struct

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
    """A replica of the requested set; an epoch of -1 is not checked."""

    broker_id: i32 = f("3+")
    broker_epoch: i64 = f("3+", default=-1)


@struct
class AlterPartitionData:
    """One partition; `partition_epoch` is the leader's current value."""

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
    """The controller's current state of a partition, or why it was not changed."""

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


# UnregisterBroker (key 64): remove a broker that will not come back from a cluster on KRaft. Not served here.


@message(key=64, versions="0", flexible="0+")
class UnregisterBrokerRequest:
    broker_id: i32 = f()


@message(key=64, versions="0", flexible="0+")
class UnregisterBrokerResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default="")
