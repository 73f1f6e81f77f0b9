"""LeaderAndIsr (key 4): the controller tells a broker who leads and follows the partitions that it hosts.

From the version on in which topics have ids (KIP-516); `partition_epoch` is the version of the partition's znode.
"""

from kbroker.protocol.schema import Uuid, f, i8, i16, i32, i64, message, struct


@struct
class LeaderAndIsrPartitionState:
    """One partition. `controller_epoch` is that of the controller which wrote this state."""

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
    """Where a leader that is named in this request is reached."""

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
