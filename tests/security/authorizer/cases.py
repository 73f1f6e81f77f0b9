"""For each API a request, the rights that it needs, and the code that the lack of each is answered with."""

from __future__ import annotations

from typing import Any, NamedTuple

from compat_tests.wire.exchanges.produce import batch
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    txn_offset_commit,
    update_features,
    write_txn_markers,
)
from kbroker.security.authorizer.acls import CLUSTER_NAME, Operation, ResourceType

T, G, C, X = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID
O = Operation  # noqa: E741 - it stands in every line of a table
CODES = {
    T: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    G: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    C: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    X: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
TOPIC, GROUP, TXN = "orders", "billing", "mover"
DOOMED = "doomed"
"""A topic that has to be there again before each request."""
TOPIC_KIND, BROKER_KIND, GROUP_KIND = 2, 4, 32


class Right(NamedTuple):
    """What is needed, and the code without it."""

    kind: ResourceType
    name: str
    operation: Operation
    code: int


class Case(NamedTuple):
    """A request, and what it needs: all of `rights`, one of each tuple."""

    request: Any
    version: int
    rights: tuple[tuple[Right, ...], ...]

    @property
    def api(self) -> str:
        return type(self.request).__name__.removesuffix("Request")


def right(kind, operation, name=None, code=None):
    names = {T: TOPIC, G: GROUP, C: CLUSTER_NAME, X: TXN}
    return Right(kind, name or names[kind], operation, CODES[kind] if code is None else code)


def case(request, version, *rights):
    """Each of `rights` is a pair (kind, operation), or a list of such pairs of which one is enough."""
    needed = []
    for each in rights:
        some = each if isinstance(each, list) else [each]
        refused = CODES[some[0][0]]
        needed.append(tuple(right(kind, operation, code=refused) for kind, operation in some))
    return Case(request, version, tuple(needed))


def produced(transactional_id=None, records=None):
    data = [produce.PartitionProduceData(0, records or batch(1))]
    topic = produce.TopicProduceData(name=TOPIC, partition_data=data)
    return produce.ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1000, topic_data=[topic])


def fetched(replica_id=-1):
    partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topic = fetch.FetchTopic(topic=TOPIC, partitions=[partition])
    return fetch.FetchRequest(replica_id=replica_id, max_wait_ms=0, min_bytes=0, topics=[topic])


def resource(kind, name, module):
    if module is describe_configs:
        return describe_configs.DescribeConfigsResource(kind, name, None)
    return module.AlterConfigsResource(kind, name, [])


def config_cases():
    for kind, name, needs in ((TOPIC_KIND, TOPIC, T), (GROUP_KIND, GROUP, G), (BROKER_KIND, "1", C)):
        described = describe_configs.DescribeConfigsRequest(resources=[resource(kind, name, describe_configs)])
        yield case(described, 4, (needs, O.DESCRIBE_CONFIGS))
        for module, cls, version in (
            (alter_configs, alter_configs.AlterConfigsRequest, 2),
            (incremental_alter_configs, incremental_alter_configs.IncrementalAlterConfigsRequest, 1),
        ):
            asked = cls(resources=[resource(kind, name, module)], validate_only=True)
            yield case(asked, version, (needs, O.ALTER_CONFIGS))


ADDS_USER = alter_user_scram_credentials.AlterUserScramCredentialsRequest(
    upsertions=[alter_user_scram_credentials.ScramCredentialUpsertion("eve", 1, 4096, b"salt", bytes(32))]
)
SETS_QUOTA = alter_client_quotas.AlterClientQuotasRequest(
    entries=[
        alter_client_quotas.EntryData(
            [alter_client_quotas.EntityData("user", "eve")], [alter_client_quotas.OpData("producer_byte_rate", 1e9)]
        )
    ],
    validate_only=True,
)
CREATES_ACL = create_acls.CreateAclsRequest(
    creations=[create_acls.AclCreation(T, "other", 3, "User:bob", "*", O.READ, 3)]
)
FINDS_ACLS = {
    "resource_type_filter": 2, "resource_name_filter": "none", "pattern_type_filter": 3, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
CASES = [
    case(produced(), 9, (T, O.WRITE)),
    case(fetched(), 11, (T, O.READ)),
    Case(fetched(replica_id=2), 11, ((right(C, O.CLUSTER_ACTION, code=CODES[T]),),)),
    case(
        list_offsets.ListOffsetsRequest(
            replica_id=-1,
            topics=[list_offsets.ListOffsetsTopic(TOPIC, [list_offsets.ListOffsetsPartition(0, timestamp=-1)])],
        ),
        7,
        (T, O.DESCRIBE),
    ),
    case(
        offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            topics=[
                offset_for_leader_epoch.OffsetForLeaderTopic(
                    TOPIC, [offset_for_leader_epoch.OffsetForLeaderPartition(0, leader_epoch=0)]
                )
            ]
        ),
        4,
        [(T, O.DESCRIBE), (C, O.CLUSTER_ACTION)],
    ),
    case(
        metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=TOPIC)]),
        12,
        (T, O.DESCRIBE),
    ),
    case(
        describe_topic_partitions.DescribeTopicPartitionsRequest(
            topics=[describe_topic_partitions.TopicRequest(TOPIC)]
        ),
        0,
        (T, O.DESCRIBE),
    ),
    case(
        create_topics.CreateTopicsRequest(
            topics=[create_topics.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)],
            validate_only=True,
        ),
        4,
        [(T, O.CREATE), (C, O.CREATE)],
    ),
    case(
        create_partitions.CreatePartitionsRequest(
            topics=[create_partitions.CreatePartitionsTopic(TOPIC, 5, None)], validate_only=True
        ),
        3,
        (T, O.ALTER),
    ),
    Case(
        delete_topics.DeleteTopicsRequest(topic_names=[DOOMED], timeout_ms=10_000),
        5,
        ((right(T, O.DELETE, DOOMED), right(C, O.DELETE, code=CODES[T])),),
    ),
    case(
        delete_records.DeleteRecordsRequest(
            topics=[delete_records.DeleteRecordsTopic(TOPIC, [delete_records.DeleteRecordsPartition(0, 0)])]
        ),
        2,
        (T, O.DELETE),
    ),
    case(
        describe_producers.DescribeProducersRequest(topics=[describe_producers.TopicRequest(TOPIC, [0])]),
        0,
        (T, O.READ),
    ),
    case(find_coordinator.FindCoordinatorRequest(key=GROUP), 3, (G, O.DESCRIBE)),
    case(find_coordinator.FindCoordinatorRequest(coordinator_keys=[GROUP]), 4, (G, O.DESCRIBE)),
    case(find_coordinator.FindCoordinatorRequest(key=TXN, key_type=1), 3, (X, O.DESCRIBE)),
    case(find_coordinator.FindCoordinatorRequest(coordinator_keys=[TXN], key_type=1), 4, (X, O.DESCRIBE)),
    case(
        join_group.JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[join_group.JoinGroupRequestProtocol("range", b"")],
        ),
        9,
        (G, O.READ),
    ),
    case(
        sync_group.SyncGroupRequest(
            group_id=GROUP, member_id="nobody", protocol_type="consumer", protocol_name="range"
        ),
        5,
        (G, O.READ),
    ),
    case(heartbeat.HeartbeatRequest(group_id=GROUP, member_id="nobody"), 4, (G, O.READ)),
    case(leave_group.LeaveGroupRequest(group_id=GROUP, members=[leave_group.MemberIdentity("m")]), 5, (G, O.READ)),
    case(
        consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id="m", member_epoch=3, subscribed_topic_names=[TOPIC]
        ),
        1,
        (G, O.READ),
        (T, O.DESCRIBE),
    ),
    case(
        offset_commit.OffsetCommitRequest(
            group_id=GROUP,
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    name=TOPIC, partitions=[offset_commit.OffsetCommitRequestPartition(0, 1, -1, None)]
                )
            ],
        ),
        8,
        (G, O.READ),
        (T, O.READ),
    ),
    *(
        case(
            offset_fetch.OffsetFetchRequest(
                group_id=GROUP,
                topics=[offset_fetch.OffsetFetchRequestTopic(TOPIC, [0])],
                groups=[
                    offset_fetch.OffsetFetchRequestGroup(
                        GROUP, topics=[offset_fetch.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])]
                    )
                ],
            ),
            version,
            (G, O.DESCRIBE),
            (T, O.DESCRIBE),
        )
        for version in (1, 7, 9)
    ),
    case(
        offset_delete.OffsetDeleteRequest(
            group_id=GROUP,
            topics=[offset_delete.OffsetDeleteRequestTopic(TOPIC, [offset_delete.OffsetDeleteRequestPartition(0)])],
        ),
        0,
        (G, O.DELETE),
        (T, O.READ),
    ),
    case(describe_groups.DescribeGroupsRequest(groups=[GROUP]), 5, (G, O.DESCRIBE)),
    case(consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=[GROUP]), 1, (G, O.DESCRIBE)),
    case(delete_groups.DeleteGroupsRequest(groups_names=[GROUP]), 2, (G, O.DELETE)),
    case(init_producer_id.InitProducerIdRequest(transactional_id=TXN, transaction_timeout_ms=9), 4, (X, O.WRITE)),
    Case(
        init_producer_id.InitProducerIdRequest(transactional_id=None),
        4,
        ((right(C, O.IDEMPOTENT_WRITE), right(T, O.WRITE, code=CODES[C])),),
    ),
    case(
        add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=TXN,
            v3_and_below_topics=[add_partitions_to_txn.AddPartitionsToTxnTopic(TOPIC, [0])],
        ),
        3,
        (X, O.WRITE),
        (T, O.WRITE),
    ),
    case(
        add_partitions_to_txn.AddPartitionsToTxnRequest(
            transactions=[
                add_partitions_to_txn.AddPartitionsToTxnTransaction(
                    TXN, 1, 0, True, [add_partitions_to_txn.AddPartitionsToTxnTopic(TOPIC, [0])]
                )
            ]
        ),
        4,
        (C, O.CLUSTER_ACTION),
    ),
    case(add_offsets_to_txn.AddOffsetsToTxnRequest(transactional_id=TXN, group_id=GROUP), 3, (X, O.WRITE), (G, O.READ)),
    case(
        txn_offset_commit.TxnOffsetCommitRequest(
            transactional_id=TXN,
            group_id=GROUP,
            topics=[
                txn_offset_commit.TxnOffsetCommitRequestTopic(
                    TOPIC, [txn_offset_commit.TxnOffsetCommitRequestPartition(0, 1, -1, None)]
                )
            ],
        ),
        3,
        (X, O.WRITE),
        (G, O.READ),
        (T, O.READ),
    ),
    case(end_txn.EndTxnRequest(transactional_id=TXN), 3, (X, O.WRITE)),
    case(describe_transactions.DescribeTransactionsRequest(transactional_ids=[TXN]), 0, (X, O.DESCRIBE)),
    case(
        write_txn_markers.WriteTxnMarkersRequest(
            markers=[
                write_txn_markers.WritableTxnMarker(1, 0, False, [write_txn_markers.WritableTxnMarkerTopic(TOPIC, [0])])
            ]
        ),
        1,
        [(C, O.CLUSTER_ACTION), (C, O.ALTER)],
    ),
    *config_cases(),
    case(list_config_resources.ListConfigResourcesRequest(), 1, (C, O.DESCRIBE_CONFIGS)),
    case(describe_log_dirs.DescribeLogDirsRequest(topics=[]), 4, (C, O.DESCRIBE)),
    case(describe_quorum.DescribeQuorumRequest(topics=[]), 2, (C, O.DESCRIBE)),
    case(
        alter_replica_log_dirs.AlterReplicaLogDirsRequest(
            dirs=[
                alter_replica_log_dirs.AlterReplicaLogDir(
                    "/nowhere", [alter_replica_log_dirs.AlterReplicaLogDirTopic(TOPIC, [0])]
                )
            ]
        ),
        2,
        (C, O.ALTER),
    ),
    case(update_features.UpdateFeaturesRequest(), 1, (C, O.ALTER)),
    case(describe_acls.DescribeAclsRequest(**FINDS_ACLS), 3, (C, O.DESCRIBE)),
    case(CREATES_ACL, 3, (C, O.ALTER)),
    case(describe_user_scram_credentials.DescribeUserScramCredentialsRequest(users=[]), 0, (C, O.DESCRIBE)),
    case(ADDS_USER, 0, (C, O.ALTER)),
    case(delete_acls.DeleteAclsRequest(filters=[delete_acls.DeleteAclsFilter(**FINDS_ACLS)]), 3, (C, O.ALTER)),
    case(describe_client_quotas.DescribeClientQuotasRequest(), 1, (C, O.DESCRIBE_CONFIGS)),
    case(SETS_QUOTA, 1, (C, O.ALTER_CONFIGS)),
]
OPEN = {
    "ApiVersions", "SaslHandshake", "SaslAuthenticate", "DescribeCluster", "ListGroups", "ListTransactions",
    "CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken", "DescribeDelegationToken",
    "GetTelemetrySubscriptions", "PushTelemetry",
}  # fmt: skip
"""What anybody may ask: some answers then have less in them. test_token_guards.py has those of tokens."""
OF_CLUSTERS = {
    "LeaderAndIsr": O.CLUSTER_ACTION,
    "StopReplica": O.CLUSTER_ACTION,
    "UpdateMetadata": O.CLUSTER_ACTION,
    "ControlledShutdown": O.CLUSTER_ACTION,
    "AlterPartition": O.CLUSTER_ACTION,
    "AllocateProducerIds": O.CLUSTER_ACTION,
    "ElectLeaders": O.ALTER,
    "AlterPartitionReassignments": O.ALTER,
    "ListPartitionReassignments": O.DESCRIBE,
}
"""What a node alone does not serve: one right on the cluster."""
