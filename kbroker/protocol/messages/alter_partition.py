"""AlterPartition (key 56): a leader asks the controller for another set of in-sync replicas (KIP-497, KIP-903)."""

from kbroker.protocol.schema import Uuid, f, i8, i16, i32, i64, message, struct


@struct
class BrokerState:
    """A replica that is to be in sync; its epoch is -1 where that is not to be checked."""

    broker_id: i32 = f("3+")
    broker_epoch: i64 = f("3+", default=-1)


@struct
class AlterPartitionData:
    """One partition; `partition_epoch` is what the leader believes it to be."""

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
    """A partition as the controller has it now, or why it was not changed."""

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
