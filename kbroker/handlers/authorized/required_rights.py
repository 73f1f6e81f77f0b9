"""The rights that each API needs: one table, by the names of APIs, as in Apache Kafka (KafkaApis, ControllerApis).

Owns the table, and the rule that an API without an entry is not served. The other modules of this package contain the
guards. Guards of one line are in this module.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from kbroker.handlers.authorized import groups, records, topics, transactions
from kbroker.handlers.authorized.audit import audited
from kbroker.handlers.authorized.guard import (
    REFUSALS,
    Guard,
    Verdict,
    filtered,
    in_turn,
    needs,
    on_cluster,
    open_to_all,
    partly,
    rights_of,
    topic_right,
)
from kbroker.handlers.delegation_tokens import describe_delegation_token as describe_handler
from kbroker.handlers.delegation_tokens import is_allowed, owner_of, refused
from kbroker.handlers.describe_configs import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP
from kbroker.handlers.describe_configs import TOPIC as TOPIC_CONFIGS
from kbroker.handlers.offset_commit import TOPIC_IDS_SINCE, TXN_TOPIC_IDS_SINCE
from kbroker.handlers.registry import Api, Handler, RequestContext
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.access import CreateDelegationTokenRequest, DescribeDelegationTokenRequest
from kbroker.security.authorizer.acls import CLUSTER_NAME, Operation, ResourceType
from kbroker.security.authorizer.authorizer import Rights
from kbroker.security.tokens.token import Token

_KINDS = {
    TOPIC_CONFIGS: ResourceType.TOPIC,
    GROUP: ResourceType.GROUP,
    BROKER: ResourceType.CLUSTER,
    BROKER_LOGGER: ResourceType.CLUSTER,
    CLIENT_METRICS: ResourceType.CLUSTER,
}


def resource_right(operation: Operation) -> Verdict:
    """Check a right on a resource. A resource of unknown type passes, because the handler refuses it."""

    def verdict(_ctx: RequestContext, rights: Rights, resource: Any) -> int:
        kind = _KINDS.get(resource.resource_type)
        if kind is None:
            return 0
        name = CLUSTER_NAME if kind is ResourceType.CLUSTER else resource.resource_name
        return 0 if rights.may(operation, kind, name) else REFUSALS[kind]

    return verdict


def goes_to_the_controller(resource: Any) -> bool:
    """Whether Kafka's controller changes a resource's configs.

    Only the controller's refusals contain a reason.
    """
    return resource.resource_type not in (BROKER, BROKER_LOGGER)


def create_delegation_token(handler: Handler, _response: type[Any]) -> Handler:
    """Require User:CreateTokens for a token of another owner."""

    def guarded(ctx: RequestContext, request: CreateDelegationTokenRequest) -> Any:
        owner = owner_of(ctx, request)
        is_of_other = owner != ctx.principal and is_allowed(ctx)  # if not is_allowed, the handler refuses the request
        if is_of_other and not rights_of(ctx).may(Operation.CREATE_TOKENS, ResourceType.USER, str(owner)):
            return refused(owner, ctx.principal, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
        return handler(ctx, request)

    return guarded


def describe_delegation_token(_handler: Handler, _response: type[Any]) -> Handler:
    """Require DelegationToken:Describe or User:DescribeTokens for tokens of other users."""

    def guarded(ctx: RequestContext, request: DescribeDelegationTokenRequest) -> Any:
        rights = rights_of(ctx)

        def may_see(token: Token) -> bool:
            of_token = (Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.info.token_id)
            of_owner = (Operation.DESCRIBE_TOKENS, ResourceType.USER, str(token.info.owner))
            return rights.may(*of_token, logs=False) or rights.may(*of_owner, logs=False)

        return describe_handler(ctx, request, may_see=may_see)  # type: ignore[call-arg]

    return guarded


READ, WRITE, DELETE, ALTER, DESCRIBE = (
    Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
)  # fmt: skip
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS = (
    Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
)  # fmt: skip
GROUP, TXN = ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID


class Rule(NamedTuple):
    """The rights that an API needs, written as TYPE:OPERATION, and its guard."""

    rights: str
    guard: Guard


_OF_BROKERS: Final = Rule("Cluster:ClusterAction", on_cluster(CLUSTER_ACTION))
_ADMINISTERS: Final = Rule("Cluster:Alter", on_cluster(ALTER))
_MEMBER: Final = Rule("Group:Read", needs((READ, GROUP, "group_id")))
_OPEN: Final = Rule("nothing", open_to_all)

_DESCRIBES: Final = topic_right(DESCRIBE, "topic")

RULES: Final[dict[str, Rule]] = {
    # Authentication, APIs and telemetry.
    "ApiVersions": _OPEN,
    "SaslHandshake": _OPEN,
    "SaslAuthenticate": _OPEN,
    "GetTelemetrySubscriptions": _OPEN,
    "PushTelemetry": _OPEN,
    # Records and topics.
    "Produce": Rule("Topic:Write, and in a transaction TransactionalId:Write", records.produce),
    "Fetch": Rule("Topic:Read; with a replica id Cluster:ClusterAction instead", records.fetch),
    "ShareFetch": Rule("Group:Read, Topic:Read", records.of_share_group),
    "ShareAcknowledge": Rule("Group:Read, Topic:Read", records.of_share_group),
    "ListOffsets": Rule("Topic:Describe", partly("topics", topic_right(DESCRIBE))),
    "OffsetForLeaderEpoch": Rule(
        "Topic:Describe, or Cluster:ClusterAction",
        partly(
            "topics",
            lambda ctx, rights, topic: (
                0 if rights.on_cluster(CLUSTER_ACTION, logs=False) else _DESCRIBES(ctx, rights, topic)
            ),
        ),
    ),
    "DeleteRecords": Rule("Topic:Delete", partly("topics", topic_right(DELETE), low_watermark=-1)),
    "DescribeProducers": Rule("Topic:Read", partly("topics", topic_right(READ), default_message=True)),
    "Metadata": Rule("Topic:Describe; to create Topic:Create or Cluster:Create", topics.metadata),
    "DescribeTopicPartitions": Rule("Topic:Describe", topics.describe_topic_partitions),
    "CreateTopics": Rule("Topic:Create or Cluster:Create", topics.create_topics),
    "CreatePartitions": Rule("Topic:Alter", topics.create_partitions),
    "DeleteTopics": Rule("Topic:Delete or Cluster:Delete", topics.delete_topics),
    # Groups and their offsets.
    "FindCoordinator": Rule("Group:Describe or TransactionalId:Describe", groups.find_coordinator),
    "JoinGroup": Rule("Group:Read", groups.join_group),
    "SyncGroup": Rule("Group:Read", groups.sync_group),
    "Heartbeat": _MEMBER,
    "LeaveGroup": _MEMBER,
    "ConsumerGroupHeartbeat": Rule("Group:Read, Topic:Describe", groups.consumer_group_heartbeat),
    "OffsetCommit": Rule(
        "Group:Read, Topic:Read", in_turn(
            needs((READ, GROUP, "group_id")), partly("topics", topic_right(READ, ids_since=TOPIC_IDS_SINCE))
        ),
    ),
    "OffsetFetch": Rule("Group:Describe, Topic:Describe", groups.offset_fetch),
    "OffsetDelete": Rule(
        "Group:Delete, Topic:Read",
        in_turn(needs((DELETE, GROUP, "group_id")), partly("topics", topic_right(READ), asked_anyway=True)),
    ),
    "ListGroups": Rule("Cluster:Describe or Group:Describe", filtered("groups", groups.may_describe)),
    "DescribeGroups": Rule(
        "Group:Describe",
        in_turn(groups.rereads_for_brokers, groups.with_operations, partly("groups", groups.group_right(DESCRIBE))),
    ),
    "ConsumerGroupDescribe": Rule(
        "Group:Describe, Topic:Describe",
        in_turn(
            groups.with_operations,
            groups.without_hidden_topics,
            partly("group_ids", groups.group_right(DESCRIBE)),
        ),
    ),
    "StreamsGroupHeartbeat": Rule(
        "Group:Read, Topic:Describe; to create Topic:Create or Cluster:Create", groups.streams_group_heartbeat
    ),
    "StreamsGroupDescribe": Rule(
        "Group:Describe, Topic:Describe",
        in_turn(
            groups.with_operations,
            groups.without_hidden_topologies,
            partly("group_ids", groups.group_right(DESCRIBE)),
        ),
    ),
    "StreamsGroupTopologyDescriptionUpdate": _MEMBER,
    "ShareGroupHeartbeat": Rule("Group:Read, Topic:Describe", groups.share_group_heartbeat),
    "ShareGroupDescribe": Rule(
        "Group:Describe, Topic:Describe",
        in_turn(
            groups.with_operations,
            groups.without_hidden_topics,
            partly("group_ids", groups.group_right(DESCRIBE)),
        ),
    ),
    "DescribeShareGroupOffsets": Rule(
        "Group:Describe, Topic:Describe",
        in_turn(
            partly("groups", lambda _ctx, rights, group: groups.may_use(rights, DESCRIBE, group.group_id)),
            groups.describe_share_group_offsets,
        ),
    ),
    "AlterShareGroupOffsets": Rule(
        "Group:Read, Topic:Read",
        in_turn(
            needs((READ, GROUP, "group_id"), default_message=True),
            groups.with_topic_ids,
            partly("topics", topic_right(READ, "topic_name"), asked_anyway=True, default_message=True),
        ),
    ),
    "DeleteShareGroupOffsets": Rule(
        "Group:Delete, Topic:Read",
        in_turn(
            needs((DELETE, GROUP, "group_id"), default_message=True),
            partly("topics", topic_right(READ, "topic_name"), asked_anyway=True, default_message=True),
        ),
    ),
    "DeleteGroups": Rule("Group:Delete", partly("groups_names", groups.group_right(DELETE))),
    # Transactions and producer ids.
    "InitProducerId": Rule(
        "TransactionalId:Write; without one Cluster:IdempotentWrite or any Topic:Write", transactions.init_producer_id
    ),
    "AddPartitionsToTxn": Rule(
        "TransactionalId:Write, Topic:Write; since v4 Cluster:ClusterAction", transactions.add_partitions_to_txn
    ),
    "AddOffsetsToTxn": Rule(
        "TransactionalId:Write, Group:Read", needs((WRITE, TXN, "transactional_id"), (READ, GROUP, "group_id"))
    ),
    "TxnOffsetCommit": Rule(
        "TransactionalId:Write, Group:Read, Topic:Read",
        in_turn(
            needs((WRITE, TXN, "transactional_id"), (READ, GROUP, "group_id")),
            partly("topics", topic_right(READ, ids_since=TXN_TOPIC_IDS_SINCE)),
        ),
    ),
    "EndTxn": Rule("TransactionalId:Write", needs((WRITE, TXN, "transactional_id"))),
    "DescribeTransactions": Rule(
        "TransactionalId:Describe; of its topics Topic:Describe",
        in_turn(transactions.without_hidden_topics, partly("transactional_ids", transactions.transaction_right)),
    ),
    "ListTransactions": Rule("TransactionalId:Describe", filtered("transaction_states", transactions.may_describe)),
    "WriteTxnMarkers": Rule("Cluster:Alter or Cluster:ClusterAction", on_cluster(CLUSTER_ACTION, ALTER)),
    # Configs.
    "DescribeConfigs": Rule(
        "Topic:DescribeConfigs, Group:DescribeConfigs, for brokers and client metrics Cluster:DescribeConfigs",
        partly("resources", resource_right(DESCRIBE_CONFIGS), default_message=True),
    ),
    "AlterConfigs": Rule(
        "Topic:AlterConfigs, Group:AlterConfigs, for brokers and client metrics Cluster:AlterConfigs",
        partly("resources", resource_right(ALTER_CONFIGS), default_message=goes_to_the_controller),
    ),
    "IncrementalAlterConfigs": Rule(
        "Topic:AlterConfigs, Group:AlterConfigs, for brokers and client metrics Cluster:AlterConfigs",
        partly("resources", resource_right(ALTER_CONFIGS), default_message=goes_to_the_controller),
    ),
    "ListConfigResources": Rule("Cluster:DescribeConfigs", on_cluster(DESCRIBE_CONFIGS)),
    "DescribeClientQuotas": Rule("Cluster:DescribeConfigs", on_cluster(DESCRIBE_CONFIGS, names_right=False)),
    "AlterClientQuotas": Rule("Cluster:AlterConfigs", on_cluster(ALTER_CONFIGS)),
    # The cluster.
    "DescribeCluster": Rule("nothing; its operations Cluster:Describe", topics.describe_cluster),
    "DescribeLogDirs": Rule("Cluster:Describe", on_cluster(DESCRIBE)),
    "DescribeQuorum": Rule("Cluster:Describe", on_cluster(DESCRIBE, names_right=False)),
    "AlterReplicaLogDirs": _ADMINISTERS,
    "ElectLeaders": _ADMINISTERS,
    "AlterPartitionReassignments": _ADMINISTERS,
    "ListPartitionReassignments": Rule("Cluster:Describe", on_cluster(DESCRIBE)),
    "UpdateFeatures": _ADMINISTERS,
    "DescribeAcls": Rule("Cluster:Describe", on_cluster(DESCRIBE)),
    "CreateAcls": _ADMINISTERS,
    "DeleteAcls": _ADMINISTERS,
    "DescribeUserScramCredentials": Rule("Cluster:Describe", on_cluster(DESCRIBE, names_right=False)),
    "AlterUserScramCredentials": _ADMINISTERS,
    # Delegation tokens.
    "CreateDelegationToken": Rule("nothing; for another owner User:CreateTokens", create_delegation_token),
    "RenewDelegationToken": Rule("nothing; owners and renewers may", open_to_all),
    "ExpireDelegationToken": Rule("nothing; owners and renewers may", open_to_all),
    "DescribeDelegationToken": Rule(
        "nothing; of others DelegationToken:Describe or User:DescribeTokens", describe_delegation_token
    ),
    # Requests between brokers.
    "LeaderAndIsr": _OF_BROKERS,
    "StopReplica": _OF_BROKERS,
    "UpdateMetadata": _OF_BROKERS,
    "ControlledShutdown": _OF_BROKERS,
    "AlterPartition": _OF_BROKERS,
    "AllocateProducerIds": _OF_BROKERS,
    "InitializeShareGroupState": _OF_BROKERS,
    "ReadShareGroupState": _OF_BROKERS,
    "WriteShareGroupState": _OF_BROKERS,
    "DeleteShareGroupState": _OF_BROKERS,
    "ReadShareGroupStateSummary": _OF_BROKERS,
}  # fmt: skip
"""The rule of each API.

A client needs all rights of a rule. The rights are checked in their order in the rule. If "or" connects rights, the
client needs only one of them.
"""


def guarded(api: Api) -> Handler:
    """Return an API's handler with its guard. Raises KeyError if the table has no entry for the API."""
    response: type[Any] = api.response
    return audited(api, RULES[api.name].guard(api.handler, response))
