"""Requests of the embedding program to a cluster. Each request is sent to the broker that is responsible for it.

Owns the path to the leader of a partition, to the coordinator of a group and to the controller, even while these
brokers change. Never interprets a request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kbroker.broker.cluster_node import ClusterNode
from kbroker.changes import NO_CONTROLLER, NO_COORDINATOR
from kbroker.cluster_state import ClusterState
from kbroker.handlers.services import Services
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kbroker.testing.asking import PATIENCE_S, PAUSE_S, Asking, Code, handled
from kbroker.testing.calling import Calling

Answer = TypeVar("Answer")
_NO_LEADER: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
"""The errors of a broker that is no longer the leader, or does not know yet that it is the leader.

The log may still contain records that a former leader appended.
"""
_CHECK_S: Final = 0.05
"""The interval in seconds of the checks whether a request's broker is still the leader."""


class _Moved(Exception):  # noqa: N818 - an outcome
    """Another broker has become the leader while the former leader was handling a request."""


@dataclass(frozen=True, slots=True)
class _One:
    """A role: a function that finds its broker, and the errors that brokers without the role return.

    `no_broker` is the text if no broker has the role.
    """

    find: Callable[[], ClusterNode | None]
    not_it: frozenset[ErrorCode]
    no_broker: str


class ClusterAsking(Asking):
    """The requests to a cluster. `nodes` are the running brokers, by id."""

    replication_factor = -1

    def __init__(self, calling: Calling, nodes: Callable[[], dict[int, ClusterNode]]) -> None:
        self._calling = calling
        self._nodes = nodes

    @property
    def state(self) -> ClusterState:
        """The controller's metadata or, while there is no controller, the metadata of any broker."""
        nodes = self._running()
        any_state = next(iter(nodes.values())).metadata.state
        controller = nodes.get(any_state.controller_id)
        return any_state if controller is None else controller.metadata.state

    def ask(self, request: Any, kind: type[Answer]) -> Answer:
        return self._ask_at(next(iter(self._running().values())), request, kind)

    def ask_leader(self, topic: str, index: int, request: Any, kind: type[Answer], code: Code[Answer]) -> Answer:
        def leader() -> ClusterNode | None:
            return self._led_by(self.leader_of(topic, index))

        one = _One(leader, _NO_LEADER, f"partition {index} of topic {topic} has no leader")
        return self._until_done(one, request, kind, code, only_while_held=True)

    def ask_coordinator(self, group: str, request: Any, kind: type[Answer], code: Code[Answer]) -> Answer:
        def coordinator() -> ClusterNode | None:
            return self._led_by(self.coordinator_of(group))

        one = _One(coordinator, NO_COORDINATOR, f"group {group} has no coordinator")
        return self._until_done(one, request, kind, code)

    def ask_controller(self, request: Any, kind: type[Answer], code: Code[Answer]) -> Answer:
        def controller() -> ClusterNode | None:
            return self._running().get(self.state.controller_id)

        one = _One(controller, NO_CONTROLLER, "the cluster has no controller")
        return self._until_done(one, request, kind, code)

    def groups(self) -> dict[str, ListedGroup]:
        found: dict[str, ListedGroup] = {}
        for node in self._running().values():
            listed = self._ask_at(node, ListGroupsRequest(), ListGroupsResponse)
            found |= {each.group_id: each for each in listed.groups}
        return found

    def batches(self, partitions: Sequence[tuple[str, int]]) -> list[Sequence[tuple[str, int]]]:
        return [[each] for each in partitions]  # each partition can have a different leader

    def wait_for_partitions(self, topics: Sequence[str], count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not all(self._known_everywhere(each, count) for each in topics):
            time.sleep(PAUSE_S)

    def _known_everywhere(self, topic: str, count: int) -> bool:
        """Whether all brokers know the same topic with this number of partitions.

        For 0: whether no broker knows the topic.
        """
        states = [each.metadata.state.topics.get(topic) for each in self._running().values()]
        counts = {0 if each is None else len(each.partitions) for each in states}
        return counts == {count} and len({None if each is None else each.topic_id for each in states}) == 1

    def _all_services(self) -> list[Services]:
        return [node.services for node in self._running().values()]

    def now_ms(self) -> int:
        return next(iter(self._running().values())).clock.now_ms()

    def _running(self) -> dict[int, ClusterNode]:
        nodes = self._nodes()
        if not nodes:
            raise RuntimeError("no broker of the cluster is running")
        return nodes

    def _led_by(self, broker: int | None) -> ClusterNode | None:
        return None if broker is None else self._running().get(broker)

    def _ask_at(self, node: ClusterNode, request: Any, kind: type[Answer], role: _One | None = None) -> Answer:
        """Let a broker handle a request. If a role is given, raise _Moved when another broker takes the role."""
        listener = node.config.listeners.bind[0].name
        work = handled(node.services, listener, request)
        answer: Answer = self._calling.wait_for(work if role is None else _while_held(role, node, work))
        assert isinstance(answer, kind)
        return answer

    def _until_done(
        self, one: _One, request: Any, kind: type[Answer], code: Code[Answer], only_while_held: bool = False
    ) -> Answer:
        """Send a request to the broker with the role; retry until a broker accepts it.

        Raises ApiError if for too long no broker has the role. With `only_while_held`, a request ends when its broker
        has lost the role, because followers never acknowledge the records of a former leader.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            node, is_over = one.find(), time.monotonic() >= deadline
            if node is not None:
                try:
                    answer = self._ask_at(node, request, kind, one if only_while_held and not is_over else None)
                except _Moved:
                    continue
                except ApiError as err:
                    if is_over or err.code not in one.not_it:
                        raise
                else:
                    if is_over or code(answer) not in one.not_it:
                        return answer
            elif is_over:
                raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, one.no_broker)
            time.sleep(PAUSE_S)


async def _while_held(role: _One, node: ClusterNode, work: Coroutine[Any, Any, Answer]) -> Answer:
    """Return the result of a broker's work. If the broker loses the role, cancel the work and raise _Moved."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=_CHECK_S))[0]:
            if role.find() not in (node, None):
                raise _Moved
        return task.result()
    finally:
        task.cancel()
