"""StopReplica (key 5): the controller tells a broker which partitions it hosts no longer (KIP-570).

A leader epoch of -1 stands for "whatever it is", -2 for "the topic is being deleted".
"""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct


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
