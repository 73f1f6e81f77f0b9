"""Requests that the embedding program makes without a connection. No access checks and no faults apply to them.

Handlers treat such requests like the requests of clients. Owns the path of a request to its handler and back. Never
interprets a request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from kbroker.cluster_state import OFFSETS_TOPIC, ClusterState
from kbroker.coordination.partitioning import partition_for
from kbroker.handlers.registry import APIS, RequestContext
from kbroker.handlers.services import Services
from kbroker.long_work import awaited, in_slices
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kbroker.protocol.messages.logs import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kbroker.share_partition.in_flight import InUse, in_use
from kbroker.testing.calling import Calling
from kbroker.testing.missing import check, topic_state

Answer = TypeVar("Answer")
Code: TypeAlias = Callable[[Answer], int]
"""Returns the error code of an answer, or 0 if there is no error."""
_CLIENT_ID = "kbroker-embedder"
LATEST, EARLIEST = -1, -2
"""The timestamps in ListOffsets that mean the end and the beginning of a partition."""
PATIENCE_S: Final = 10.0
PAUSE_S: Final = 0.01
"""The time for which a request is retried until the right broker handles it, and the pause between retries, in s."""
_NOT_HOSTED: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class Asking:
    """The requests to a single broker, which leads all partitions and coordinates all groups.

    For the requests to a cluster see asking_cluster.py.
    """

    replication_factor = 1
    """The replication factor of topics that are created without a replication factor."""

    def __init__(self, calling: Calling, services: Services, listener: str) -> None:
        self._calling = calling
        self._services = services
        self._listener = listener

    @property
    def state(self) -> ClusterState:
        """The broker's metadata. Raises RuntimeError after the broker has stopped."""
        self._calling.check_alive()
        return self._services.controller.state

    def ask(self, request: Any, kind: type[Answer]) -> Answer:
        """Let the broker handle a request in the API's newest version.

        Return the answer. Raises the handler's exceptions.
        """
        answer: Answer = self._calling.wait_for(handled(self._services, self._listener, request))
        assert isinstance(answer, kind)
        return answer

    def ask_leader(self, topic: str, index: int, request: Any, kind: type[Answer], code: Code[Answer]) -> Answer:
        """Send a request, as `ask` does, to the leader of a partition.

        The error code that `code` returns shows whether the leader has changed. Brokers know a new topic a moment
        before they host its partitions. Until the brokers host the partitions, the request is retried.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self.ask(request, kind)
            if code(answer) not in _NOT_HOSTED or time.monotonic() >= deadline:
                return answer
            if not 0 <= index < self.partitions_of(topic):
                return answer
            time.sleep(PAUSE_S)

    def ask_coordinator(self, group: str, request: Any, kind: type[Answer], code: Code[Answer]) -> Answer:
        """Send a request, as `ask_leader` does, to the coordinator of a group."""
        del group, code
        return self.ask(request, kind)

    def by_coordinator(self, groups: Sequence[str]) -> list[Sequence[str]]:
        """Divide groups into lists, so that one request can handle all groups of a list."""
        return [[each] for each in groups]

    def ask_controller(self, request: Any, kind: type[Answer], code: Code[Answer]) -> Answer:
        """Send a request, as `ask_leader` does, to the controller, which creates and deletes topics."""
        del code
        return self.ask(request, kind)

    def groups(self) -> dict[str, ListedGroup]:
        """Return the existing groups by id."""
        listed = self.ask(ListGroupsRequest(), ListGroupsResponse).groups
        return {each.group_id: each for each in listed}

    def type_of(self, group: str) -> str:
        """Return a group's type, like "share"; "" if the group does not exist."""
        listed = self.groups().get(group)
        return "" if listed is None else listed.group_type.lower()

    def batches(self, partitions: Sequence[tuple[str, int]]) -> list[Sequence[tuple[str, int]]]:
        """Divide partitions into lists. One request handles a list; it is sent to the leader of the first partition."""
        return [partitions] if partitions else []

    def offsets_at(
        self, partitions: Sequence[tuple[str, int]], timestamp: int, about: str | None = None
    ) -> dict[tuple[str, int], int]:
        """Return offsets of partitions from their leaders. Raises ApiError with a message that begins with `about`."""
        found: dict[tuple[str, int], int] = {}
        for part in self.batches(partitions):
            by_topic: dict[str, list[ListOffsetsPartition]] = {}
            for name, index in part:
                by_topic.setdefault(name, []).append(ListOffsetsPartition(partition_index=index, timestamp=timestamp))
            request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(*each) for each in by_topic.items()])
            answer = self.ask_leader(*part[0], request, ListOffsetsResponse, _first_error)
            check(_first_error(answer), about or f"offsets of topic {', '.join(by_topic)}")
            found |= {(each.name, one.partition_index): one.offset for each in answer.topics for one in each.partitions}
        return found

    def wait_for_partitions(self, topics: Sequence[str], count: int) -> None:
        """Wait until every broker knows this number of partitions of each topic.

        The number is 0 for a deleted topic.
        """

    def shares_in_use(
        self, group: str, most: int = 0, topic: str | None = None, partition: int | None = None
    ) -> list[InUse]:
        """Return all or some share partitions of a group, in order.

        The result is empty while no member has a session. The lists `in_flight` of all these partitions together have
        at most `most` elements.
        """
        found: list[InUse] = []
        for each in self._all_services():
            if each.share is not None:
                left = most - sum(len(one.in_flight) for one in found)
                found += self._calling.wait_for(in_slices(in_use(each.share, group, left, topic, partition)))
        return sorted(found, key=lambda one: (one.topic, one.partition))

    def _all_services(self) -> list[Services]:
        """Return the services of all running brokers."""
        return [self._services]

    def now_ms(self) -> int:
        """Return the broker's time, in ms since the epoch."""
        return self._services.clock.now_ms()

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with an id."""
        return self.state.topic_names.get(topic_id)

    def partitions_of(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0 if it does not exist."""
        found = self.state.topics.get(topic)
        return 0 if found is None else len(found.partitions)

    def leader_of(self, topic: str, index: int) -> int | None:
        """Return the id of a partition's leader; None if there is no leader. Raises MissingError, ApiError."""
        partitions = topic_state(topic, self.state).partitions
        if not 0 <= index < len(partitions):
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} has {len(partitions)} partitions, not {index}"
            )
        leader = partitions[index].leader
        return leader if leader >= 0 else None

    def coordinator_of(self, group: str) -> int | None:
        """Return the id of a group's coordinator.

        Return None if there is no coordinator, for instance if no group ever existed.
        """
        count = self.partitions_of(OFFSETS_TOPIC)
        return self.leader_of(OFFSETS_TOPIC, partition_for(group, count)) if count else None


def _first_error(answer: ListOffsetsResponse) -> int:
    return next((one.error_code for each in answer.topics for one in each.partitions if one.error_code), 0)


async def handled(services: Services, listener: str, request: Any) -> Any:
    """Let a broker handle a request, on its loop. Raises ApiError with the API's name in the message."""
    api = APIS[type(request).KEY]
    context = RequestContext(services, "/127.0.0.1", listener, ("", 0))
    context.client_id = _CLIENT_ID
    context.version = api.versions.high
    try:
        answer = await in_slices(awaited(api.handler(context, request)))
    except ApiError as err:
        check(err.code, api.name, err.message)
        raise
    return answer
