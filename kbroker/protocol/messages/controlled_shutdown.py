"""ControlledShutdown (key 7): a broker asks the controller to move away what it leads, before it stops."""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct


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
