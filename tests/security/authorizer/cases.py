"""For each API a request, the rights that it needs, and the error code if one of them is missing."""

from __future__ import annotations

from typing import Any, NamedTuple

from compat_tests.wire.exchanges.produce import batch
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages import (
    access,
    clients,
    cluster,
    configs,
    consumer_groups,
    fetch,
    group_offsets,
    groups,
    logs,
    produce,
    share_acknowledge,
    share_fetch,
    share_groups,
    streams_groups,
    topics,
    transactions,
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
SHARE_GROUP = "workers"
"""A share group without members."""
DOOMED = "doomed"
"""A topic that must exist again before each request."""
TOPIC_KIND, BROKER_KIND, GROUP_KIND = 2, 4, 32


class Right(NamedTuple):
    """A required right, and the error code without it."""

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
    """Each of `rights` is (kind, operation) or (kind, operation, name), or a list of such of which one is enough."""
    needed = []
    for each in rights:
        some = each if isinstance(each, list) else [each]
        refused = CODES[some[0][0]]
        needed.append(tuple(right(*one, code=refused) for one in some))
    return Case(request, version, tuple(needed))


def produced(transactional_id=None, records=None):
    data = [produce.PartitionProduceData(0, records or batch(1))]
    topic = produce.TopicProduceData(name=TOPIC, partition_data=data)
    return produce.ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1000, topic_data=[topic])


def fetched(replica_id=-1):
    partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topic = fetch.FetchTopic(topic=TOPIC, partitions=[partition])
    return fetch.FetchRequest(replica_id=replica_id, max_wait_ms=0, min_bytes=0, topics=[topic])


def resource(kind, name, cls):
    return cls(kind, name, None if cls is configs.DescribeConfigsResource else [])


def config_cases():
    for kind, name, needs in ((TOPIC_KIND, TOPIC, T), (GROUP_KIND, GROUP, G), (BROKER_KIND, "1", C)):
        described = configs.DescribeConfigsRequest(resources=[resource(kind, name, configs.DescribeConfigsResource)])
        yield case(described, 4, (needs, O.DESCRIBE_CONFIGS))
        for altered, cls, version in (
            (configs.AlterConfigsResource, configs.AlterConfigsRequest, 2),
            (configs.IncrementalResource, configs.IncrementalAlterConfigsRequest, 1),
        ):
            asked = cls(resources=[resource(kind, name, altered)], validate_only=True)
            yield case(asked, version, (needs, O.ALTER_CONFIGS))


ADDS_USER = access.AlterUserScramCredentialsRequest(
    upsertions=[access.ScramCredentialUpsertion("eve", 1, 4096, b"salt", bytes(32))]
)
SETS_QUOTA = clients.AlterClientQuotasRequest(
    entries=[clients.AlteredEntry([clients.AlteredEntity("user", "eve")], [clients.OpData("producer_byte_rate", 1e9)])],
    validate_only=True,
)
CREATES_ACL = access.CreateAclsRequest(creations=[access.AclCreation(T, "other", 3, "User:bob", "*", O.READ, 3)])
FINDS_ACLS = {
    "resource_type_filter": 2, "resource_name_filter": "none", "pattern_type_filter": 3, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
CASES = [
    case(produced(), 9, (T, O.WRITE)),
    case(fetched(), 11, (T, O.READ)),
    Case(fetched(replica_id=2), 11, ((right(C, O.CLUSTER_ACTION, code=CODES[T]),),)),
    case(
        logs.ListOffsetsRequest(
            replica_id=-1,
            topics=[logs.ListOffsetsTopic(TOPIC, [logs.ListOffsetsPartition(0, timestamp=-1)])],
        ),
        7,
        (T, O.DESCRIBE),
    ),
    case(
        logs.OffsetForLeaderEpochRequest(
            topics=[logs.OffsetForLeaderTopic(TOPIC, [logs.OffsetForLeaderPartition(0, leader_epoch=0)])]
        ),
        4,
        [(T, O.DESCRIBE), (C, O.CLUSTER_ACTION)],
    ),
    case(
        cluster.MetadataRequest(topics=[cluster.MetadataRequestTopic(name=TOPIC)]),
        12,
        (T, O.DESCRIBE),
    ),
    case(
        cluster.DescribeTopicPartitionsRequest(topics=[cluster.TopicRequest(TOPIC)]),
        0,
        (T, O.DESCRIBE),
    ),
    case(
        topics.CreateTopicsRequest(
            topics=[topics.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)],
            validate_only=True,
        ),
        4,
        [(T, O.CREATE), (C, O.CREATE)],
    ),
    case(
        topics.CreatePartitionsRequest(topics=[topics.CreatePartitionsTopic(TOPIC, 5, None)], validate_only=True),
        3,
        (T, O.ALTER),
    ),
    Case(
        topics.DeleteTopicsRequest(topic_names=[DOOMED], timeout_ms=10_000),
        5,
        ((right(T, O.DELETE, DOOMED), right(C, O.DELETE, code=CODES[T])),),
    ),
    case(
        topics.DeleteRecordsRequest(topics=[topics.DeleteRecordsTopic(TOPIC, [topics.DeleteRecordsPartition(0, 0)])]),
        2,
        (T, O.DELETE),
    ),
    case(
        transactions.DescribeProducersRequest(topics=[transactions.TopicRequest(TOPIC, [0])]),
        0,
        (T, O.READ),
    ),
    case(groups.FindCoordinatorRequest(key=GROUP), 3, (G, O.DESCRIBE)),
    case(groups.FindCoordinatorRequest(coordinator_keys=[GROUP]), 4, (G, O.DESCRIBE)),
    case(groups.FindCoordinatorRequest(key=TXN, key_type=1), 3, (X, O.DESCRIBE)),
    case(groups.FindCoordinatorRequest(coordinator_keys=[TXN], key_type=1), 4, (X, O.DESCRIBE)),
    case(
        groups.JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[groups.JoinGroupRequestProtocol("range", b"")],
        ),
        9,
        (G, O.READ),
    ),
    case(
        groups.SyncGroupRequest(group_id=GROUP, member_id="nobody", protocol_type="consumer", protocol_name="range"),
        5,
        (G, O.READ),
    ),
    case(share_fetch.ShareFetchRequest(group_id=GROUP, member_id="nobody"), 2, (G, O.READ)),
    case(share_acknowledge.ShareAcknowledgeRequest(group_id=GROUP, member_id="nobody"), 2, (G, O.READ)),
    case(groups.HeartbeatRequest(group_id=GROUP, member_id="nobody"), 4, (G, O.READ)),
    case(groups.LeaveGroupRequest(group_id=GROUP, members=[groups.MemberIdentity("m")]), 5, (G, O.READ)),
    case(
        consumer_groups.ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id="m", member_epoch=3, subscribed_topic_names=[TOPIC]
        ),
        1,
        (G, O.READ),
        (T, O.DESCRIBE),
    ),
    case(
        group_offsets.OffsetCommitRequest(
            group_id=GROUP,
            topics=[
                group_offsets.OffsetCommitRequestTopic(
                    name=TOPIC, partitions=[group_offsets.OffsetCommitRequestPartition(0, 1, -1, None)]
                )
            ],
        ),
        8,
        (G, O.READ),
        (T, O.READ),
    ),
    *(
        case(
            group_offsets.OffsetFetchRequest(
                group_id=GROUP,
                topics=[group_offsets.OffsetFetchRequestTopic(TOPIC, [0])],
                groups=[
                    group_offsets.OffsetFetchRequestGroup(
                        GROUP, topics=[group_offsets.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])]
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
        group_offsets.OffsetDeleteRequest(
            group_id=GROUP,
            topics=[group_offsets.OffsetDeleteRequestTopic(TOPIC, [group_offsets.OffsetDeleteRequestPartition(0)])],
        ),
        0,
        (G, O.DELETE),
        (T, O.READ),
    ),
    case(groups.DescribeGroupsRequest(groups=[GROUP]), 5, (G, O.DESCRIBE)),
    case(consumer_groups.ConsumerGroupDescribeRequest(group_ids=[GROUP]), 1, (G, O.DESCRIBE)),
    case(
        streams_groups.StreamsGroupHeartbeatRequest(
            group_id=GROUP,
            member_id="m",
            topology=streams_groups.Topology(0, [streams_groups.Subtopology("0", [TOPIC])]),
        ),
        1,
        (G, O.READ),
        (T, O.DESCRIBE),
    ),
    case(streams_groups.StreamsGroupDescribeRequest(group_ids=[GROUP]), 1, (G, O.DESCRIBE)),
    case(streams_groups.StreamsGroupTopologyDescriptionUpdateRequest(group_id=GROUP, member_id="m"), 0, (G, O.READ)),
    case(groups.DeleteGroupsRequest(groups_names=[GROUP]), 2, (G, O.DELETE)),
    case(
        share_groups.ShareGroupHeartbeatRequest(group_id=GROUP, member_id="m", subscribed_topic_names=[TOPIC]),
        1,
        (G, O.READ),
        (T, O.DESCRIBE),
    ),
    case(share_groups.ShareGroupDescribeRequest(group_ids=[GROUP]), 1, (G, O.DESCRIBE)),
    case(
        share_groups.DescribeShareGroupOffsetsRequest(
            groups=[
                share_groups.DescribeShareGroupOffsetsRequestGroup(
                    SHARE_GROUP, [share_groups.DescribeShareGroupOffsetsRequestTopic(TOPIC, [0])]
                )
            ]
        ),
        1,
        (G, O.DESCRIBE, SHARE_GROUP),
        (T, O.DESCRIBE),
    ),
    case(
        share_groups.AlterShareGroupOffsetsRequest(
            group_id=SHARE_GROUP,
            topics=[
                share_groups.AlterShareGroupOffsetsRequestTopic(
                    TOPIC, [share_groups.AlterShareGroupOffsetsRequestPartition(0, 0)]
                )
            ],
        ),
        0,
        (G, O.READ, SHARE_GROUP),
        (T, O.READ),
    ),
    case(
        share_groups.DeleteShareGroupOffsetsRequest(
            group_id=SHARE_GROUP, topics=[share_groups.DeleteShareGroupOffsetsRequestTopic(TOPIC)]
        ),
        0,
        (G, O.DELETE, SHARE_GROUP),
        (T, O.READ),
    ),
    case(transactions.InitProducerIdRequest(transactional_id=TXN, transaction_timeout_ms=9), 4, (X, O.WRITE)),
    Case(
        transactions.InitProducerIdRequest(transactional_id=None),
        4,
        ((right(C, O.IDEMPOTENT_WRITE), right(T, O.WRITE, code=CODES[C])),),
    ),
    case(
        transactions.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=TXN,
            v3_and_below_topics=[transactions.AddPartitionsToTxnTopic(TOPIC, [0])],
        ),
        3,
        (X, O.WRITE),
        (T, O.WRITE),
    ),
    case(
        transactions.AddPartitionsToTxnRequest(
            transactions=[
                transactions.AddPartitionsToTxnTransaction(
                    TXN, 1, 0, True, [transactions.AddPartitionsToTxnTopic(TOPIC, [0])]
                )
            ]
        ),
        4,
        (C, O.CLUSTER_ACTION),
    ),
    case(transactions.AddOffsetsToTxnRequest(transactional_id=TXN, group_id=GROUP), 3, (X, O.WRITE), (G, O.READ)),
    case(
        group_offsets.TxnOffsetCommitRequest(
            transactional_id=TXN,
            group_id=GROUP,
            topics=[
                group_offsets.TxnOffsetCommitRequestTopic(
                    TOPIC, partitions=[group_offsets.TxnOffsetCommitRequestPartition(0, 1, -1, None)]
                )
            ],
        ),
        3,
        (X, O.WRITE),
        (G, O.READ),
        (T, O.READ),
    ),
    case(transactions.EndTxnRequest(transactional_id=TXN), 3, (X, O.WRITE)),
    case(transactions.DescribeTransactionsRequest(transactional_ids=[TXN]), 0, (X, O.DESCRIBE)),
    case(
        transactions.WriteTxnMarkersRequest(
            markers=[transactions.WritableTxnMarker(1, 0, False, [transactions.WritableTxnMarkerTopic(TOPIC, [0])])]
        ),
        1,
        [(C, O.CLUSTER_ACTION), (C, O.ALTER)],
    ),
    *config_cases(),
    case(configs.ListConfigResourcesRequest(), 1, (C, O.DESCRIBE_CONFIGS)),
    case(logs.DescribeLogDirsRequest(topics=[]), 4, (C, O.DESCRIBE)),
    case(cluster.DescribeQuorumRequest(topics=[]), 2, (C, O.DESCRIBE)),
    case(
        logs.AlterReplicaLogDirsRequest(
            dirs=[logs.AlterReplicaLogDir("/nowhere", [logs.AlterReplicaLogDirTopic(TOPIC, [0])])]
        ),
        2,
        (C, O.ALTER),
    ),
    case(cluster.UpdateFeaturesRequest(), 1, (C, O.ALTER)),
    case(access.DescribeAclsRequest(**FINDS_ACLS), 3, (C, O.DESCRIBE)),
    case(CREATES_ACL, 3, (C, O.ALTER)),
    case(access.DescribeUserScramCredentialsRequest(users=[]), 0, (C, O.DESCRIBE)),
    case(ADDS_USER, 0, (C, O.ALTER)),
    case(access.DeleteAclsRequest(filters=[access.DeleteAclsFilter(**FINDS_ACLS)]), 3, (C, O.ALTER)),
    case(clients.DescribeClientQuotasRequest(), 1, (C, O.DESCRIBE_CONFIGS)),
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
    "InitializeShareGroupState": O.CLUSTER_ACTION,
    "ReadShareGroupState": O.CLUSTER_ACTION,
    "WriteShareGroupState": O.CLUSTER_ACTION,
    "DeleteShareGroupState": O.CLUSTER_ACTION,
    "ReadShareGroupStateSummary": O.CLUSTER_ACTION,
    "ElectLeaders": O.ALTER,
    "AlterPartitionReassignments": O.ALTER,
    "ListPartitionReassignments": O.DESCRIBE,
}
"""What a node alone does not serve, or only with share groups: one right on the cluster."""
