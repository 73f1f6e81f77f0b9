"""The records of streams groups in `__consumer_offsets` (KIP-1071): keys and values, by record type."""

from kbroker.protocol.messages.streams_groups import Endpoint, KeyValue, Subtopology
from kbroker.protocol.messages.streams_groups import TaskIds as TargetTaskIds
from kbroker.protocol.schema import f, i8, i32, i64, message, struct


@message(key=17, versions="0")
class StreamsGroupMetadataKey:
    group_id: str = f("0")


@message(key=17, versions="0", flexible="0+")
class StreamsGroupMetadataValue:
    epoch: i32 = f()
    metadata_hash: i64 = f()
    validated_topology_epoch: i32 = f(tag=0, default=-1)
    last_assignment_configs: list[KeyValue] | None = f(nullable="0+", tag=1)
    stored_description_topology_epoch: i32 = f(tag=2, default=-1)
    failed_description_topology_epoch: i32 = f(tag=3, default=-1)


@message(key=19, versions="0")
class StreamsGroupMemberMetadataKey:
    group_id: str = f("0")
    member_id: str = f("0")


@message(key=19, versions="0", flexible="0+")
class StreamsGroupMemberMetadataValue:
    instance_id: str | None = f(nullable="0+")
    rack_id: str | None = f(nullable="0+")
    client_id: str = f()
    client_host: str = f()
    rebalance_timeout_ms: i32 = f(default=-1)
    topology_epoch: i32 = f()
    process_id: str = f()
    user_endpoint: Endpoint | None = f(nullable="0+", default=None)
    client_tags: list[KeyValue] = f()


@message(key=20, versions="0")
class StreamsGroupTargetAssignmentMetadataKey:
    group_id: str = f("0")


@message(key=20, versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMetadataValue:
    assignment_epoch: i32 = f()
    assignment_timestamp: i64 = f(tag=0)


@message(key=21, versions="0")
class StreamsGroupTargetAssignmentMemberKey:
    group_id: str = f("0")
    member_id: str = f("0")


@message(key=21, versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMemberValue:
    active_tasks: list[TargetTaskIds] = f()
    standby_tasks: list[TargetTaskIds] = f()
    warmup_tasks: list[TargetTaskIds] = f()


@message(key=22, versions="0")
class StreamsGroupCurrentMemberAssignmentKey:
    group_id: str = f("0")
    member_id: str = f("0")


@struct
class CurrentTaskIds:
    subtopology_id: str = f()
    partitions: list[i32] = f()
    assignment_epochs: list[i32] | None = f(nullable="0+", tag=0)


@message(key=22, versions="0", flexible="0+")
class StreamsGroupCurrentMemberAssignmentValue:
    member_epoch: i32 = f()
    previous_member_epoch: i32 = f()
    state: i8 = f()
    active_tasks: list[CurrentTaskIds] = f()
    standby_tasks: list[CurrentTaskIds] = f()
    warmup_tasks: list[CurrentTaskIds] = f()
    active_tasks_pending_revocation: list[CurrentTaskIds] = f()
    standby_tasks_pending_revocation: list[CurrentTaskIds] = f()
    warmup_tasks_pending_revocation: list[CurrentTaskIds] = f()


@message(key=23, versions="0")
class StreamsGroupTopologyKey:
    group_id: str = f("0")


@message(key=23, versions="0", flexible="0+")
class StreamsGroupTopologyValue:
    epoch: i32 = f()
    subtopologies: list[Subtopology] = f()
