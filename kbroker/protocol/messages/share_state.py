"""The state of share partitions, which their leaders store at the share coordinator (KIP-932).

These are requests between brokers. A delivery state is 0 available, 2 acknowledged or 4 archived. A delivery complete
count is the number of offsets, from the start offset on, whose delivery has ended; it is -1 if unknown.
"""

from kbroker.protocol.schema import Uuid, f, i8, i16, i32, i64, message, struct


@struct
class StateBatch:
    """The state of the offsets from first to last, both inclusive."""

    first_offset: i64 = f()
    last_offset: i64 = f()
    delivery_state: i8 = f()
    delivery_count: i16 = f()


@struct
class PartitionResult:
    partition: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)


@struct
class TopicResult:
    topic_id: Uuid = f()
    partitions: list[PartitionResult] = f()


# InitializeShareGroupState (key 83): create the state of share partitions, or replace it with a new start offset.


@struct
class InitializedPartition:
    partition: i32 = f()
    state_epoch: i32 = f()
    start_offset: i64 = f()


@struct
class InitializedTopic:
    topic_id: Uuid = f()
    partitions: list[InitializedPartition] = f()


@message(key=83, versions="0", flexible="0+")
class InitializeShareGroupStateRequest:
    group_id: str = f()
    topics: list[InitializedTopic] = f()


@message(key=83, versions="0", flexible="0+")
class InitializeShareGroupStateResponse:
    results: list[TopicResult] = f()


# ReadShareGroupState (key 84): the complete state, for a new leader of a share partition.


@struct
class PartitionToRead:
    partition: i32 = f()
    leader_epoch: i32 = f()


@struct
class TopicToRead:
    topic_id: Uuid = f()
    partitions: list[PartitionToRead] = f()


@message(key=84, versions="0", flexible="0+")
class ReadShareGroupStateRequest:
    group_id: str = f()
    topics: list[TopicToRead] = f()


@struct
class PartitionState:
    partition: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    state_epoch: i32 = f()
    start_offset: i64 = f()
    state_batches: list[StateBatch] = f()


@struct
class TopicState:
    topic_id: Uuid = f()
    partitions: list[PartitionState] = f()


@message(key=84, versions="0", flexible="0+")
class ReadShareGroupStateResponse:
    results: list[TopicState] = f()


# WriteShareGroupState (key 85): changes of the state. A start offset of -1 means no change of it.


@struct
class PartitionToWrite:
    partition: i32 = f()
    state_epoch: i32 = f()
    leader_epoch: i32 = f()
    start_offset: i64 = f()
    delivery_complete_count: i32 = f("1+", default=-1)
    state_batches: list[StateBatch] = f()


@struct
class TopicToWrite:
    topic_id: Uuid = f()
    partitions: list[PartitionToWrite] = f()


@message(key=85, versions="0-1", flexible="0+")
class WriteShareGroupStateRequest:
    group_id: str = f()
    topics: list[TopicToWrite] = f()


@message(key=85, versions="0-1", flexible="0+")
class WriteShareGroupStateResponse:
    results: list[TopicResult] = f()


# DeleteShareGroupState (key 86)


@struct
class PartitionToDelete:
    partition: i32 = f()


@struct
class TopicToDelete:
    topic_id: Uuid = f()
    partitions: list[PartitionToDelete] = f()


@message(key=86, versions="0", flexible="0+")
class DeleteShareGroupStateRequest:
    group_id: str = f()
    topics: list[TopicToDelete] = f()


@message(key=86, versions="0", flexible="0+")
class DeleteShareGroupStateResponse:
    results: list[TopicResult] = f()


# ReadShareGroupStateSummary (key 87): epochs and offsets without the batches.


@message(key=87, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryRequest:
    group_id: str = f()
    topics: list[TopicToRead] = f()


@struct
class PartitionSummary:
    partition: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    state_epoch: i32 = f()
    leader_epoch: i32 = f()
    start_offset: i64 = f()
    delivery_complete_count: i32 = f("1+", default=-1)


@struct
class TopicSummary:
    topic_id: Uuid = f()
    partitions: list[PartitionSummary] = f()


@message(key=87, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryResponse:
    results: list[TopicSummary] = f()
