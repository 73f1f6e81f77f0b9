"""The answer to a request that a fault refuses. The error is in the field in which a client expects it.

Owns the answers of the APIs whose requests the broker itself never refuses completely. The registry of handlers owns
the answers of all other APIs. Never decides which requests are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.handlers.registry import Api
from kbroker.long_work import awaited, whole
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.access import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kbroker.protocol.messages.consumer_groups import DescribedGroup as DescribedConsumerGroup
from kbroker.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kbroker.protocol.messages.groups import (
    Coordinator,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kbroker.protocol.messages.logs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)


def refusal(api: Api, request: Any, code: int, message: str | None) -> Any:
    """Return an answer that has the error for each topic, partition, group and so on in a request."""
    own = _OWN.get(api.key)
    if own is not None:
        return own(request, code, message)
    return whole(awaited(api.on_error(request, code, message)))


def _offset_fetch(request: OffsetFetchRequest, code: int, _: str | None) -> OffsetFetchResponse:
    """Return a response with the error.

    As in Kafka, the partitions have the error in versions 0 and 1, and if the error is UNSTABLE_OFFSET_COMMIT.
    """
    unstable = code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(each, -1, metadata="", error_code=code)
                    for each in topic.partition_indexes
                ],
            )
            for topic in request.topics or []
        ],
        error_code=0 if unstable and request.topics else code,
        groups=[_of_group(each, code, unstable=unstable) for each in request.groups],
    )


def _of_group(group: OffsetFetchRequestGroup, code: int, *, unstable: bool) -> OffsetFetchResponseGroup:
    if not unstable or not group.topics:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=code)
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        topics=[
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetFetchResponsePartitions(each, -1, metadata="", error_code=code)
                    for each in topic.partition_indexes
                ],
            )
            for topic in group.topics
        ],
    )


def _find_coordinator(request: FindCoordinatorRequest, code: int, message: str | None) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        error_code=code,
        error_message=message,
        node_id=-1,
        port=-1,
        coordinators=[
            Coordinator(key=each, node_id=-1, port=-1, error_code=code, error_message=message)
            for each in request.coordinator_keys
        ],
    )


def _describe_groups(request: DescribeGroupsRequest, code: int, message: str | None) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=[DescribedGroup(group_id=each, error_code=code, error_message=message) for each in request.groups]
    )


def _describe_consumer_groups(
    request: ConsumerGroupDescribeRequest, code: int, message: str | None
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[
            DescribedConsumerGroup(group_id=each, error_code=code, error_message=message) for each in request.group_ids
        ]
    )


def _describe_log_dirs(_request: DescribeLogDirsRequest, code: int, _: str | None) -> DescribeLogDirsResponse:
    """Also set the error in a directory, because versions 1 and 2 have no other field for the error."""
    return DescribeLogDirsResponse(error_code=code, results=[DescribeLogDirsResult(error_code=code)])


def _delete_groups(request: DeleteGroupsRequest, code: int, _: str | None) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=each, error_code=code) for each in request.groups_names]
    )


def _alter_scram(
    request: AlterUserScramCredentialsRequest, code: int, message: str | None
) -> AlterUserScramCredentialsResponse:
    users = dict.fromkeys([each.name for each in request.deletions] + [each.name for each in request.upsertions])
    return AlterUserScramCredentialsResponse(
        results=[AlterUserScramCredentialsResult(user=each, error_code=code, error_message=message) for each in users]
    )


def _key(request: Any) -> int:
    key: int = request.KEY
    return key


_OWN: dict[int, Callable[[Any, int, str | None], Any]] = {
    _key(OffsetFetchRequest): _offset_fetch,
    _key(FindCoordinatorRequest): _find_coordinator,
    _key(DescribeGroupsRequest): _describe_groups,
    _key(ConsumerGroupDescribeRequest): _describe_consumer_groups,
    _key(DescribeLogDirsRequest): _describe_log_dirs,
    _key(DeleteGroupsRequest): _delete_groups,
    _key(AlterUserScramCredentialsRequest): _alter_scram,
}
