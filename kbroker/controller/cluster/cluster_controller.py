"""A broker's controller: it takes part in the controller election, and decides for the cluster when it is elected.

Owns election and resignation, the queue of the controller's work, and the responses to other brokers and clients. The
other modules of this package decide; all of them run in one task, one event after the other. Never registers the
broker, and never begins or ends the session: the owner of the tree does both, and notifies the controller. (Apache
Kafka 3.9: KafkaController on ZooKeeper.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from kbroker.clock import Clock
from kbroker.controller.cluster import (
    alter_partition,
    brokers,
    deletion,
    elect_leaders,
    features,
    log_dirs,
    partitions,
    producer_ids,
    reassignment,
    shutdown,
)
from kbroker.controller.cluster.assigned_replicas import Replicas
from kbroker.controller.cluster.channel_queue import Leaderships, Outgoing, Stops
from kbroker.controller.cluster.channels import Channels
from kbroker.controller.cluster.context import Context, Partition
from kbroker.controller.cluster.event_queue import Event, EventQueue
from kbroker.controller.cluster.fenced_tree import ControllerMoved, FencedTree, Sleep, SteadyTree, claim
from kbroker.controller.cluster.takeover import take_over
from kbroker.controller.cluster.term import ControllerConfig, Term
from kbroker.controller.features import FeatureUpdate
from kbroker.controller.tree.znode import Check, Delete, Denied, MetadataTree, Refused, Session, Unreachable
from kbroker.controller.znodes import CONTROLLER, CONTROLLER_EPOCH, Unreadable
from kbroker.long_work import in_slices
from kbroker.peers.interface import Peers
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.inter_broker import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)

log = logging.getLogger(__name__)

T = TypeVar("T")
_RETRY_SECONDS = 1.0


class ClusterController:
    """A broker's controller, active or not."""

    def __init__(
        self,
        node_id: int,
        tree: MetadataTree,
        peers: Peers,
        clock: Clock,
        config: ControllerConfig,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.node_id = node_id
        self._tree = tree
        self._peers = peers
        self._clock = clock
        self._config = config
        self._sleep = sleep
        self._queue = EventQueue()
        self._steady = SteadyTree(tree, sleep)
        self._term: Term | None = None
        self._worker: asyncio.Task[None] | None = None
        self._rebalancing: asyncio.Task[None] | None = None
        self.unclean_elections = 0
        """The number of leaders that this broker has elected from outside the in-sync replicas."""
        tree.listen(self._session_changed)

    @property
    def is_active(self) -> bool:
        """Whether this broker believes that it is the controller."""
        return self._term is not None

    @property
    def epoch(self) -> int:
        """The controller epoch of this broker's term, 0 while it is not the controller."""
        return 0 if self._term is None else self._term.epoch

    @property
    def is_alone(self) -> bool:
        """Whether this broker is the controller, and all other live brokers are shutting down."""
        return self._term is not None and not self._term.context.live() - {self.node_id}

    @property
    def is_idle(self) -> bool:
        """Whether the queue is empty, and all live brokers have answered their requests."""
        if not self._queue.is_idle:
            return False
        return self._term is None or all(map(self._term.channels.has_sent_all, self._term.context.brokers))

    async def start(self) -> None:
        """Watch the controller election from now on, and take part in it. The broker must already be registered."""
        self._steady = SteadyTree(self._tree, self._sleep)
        self._worker = asyncio.ensure_future(self._work())
        self._put_check()

    async def close(self) -> None:
        """Stop deciding and sending; another broker is elected when the session ends."""
        self.expired()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        self.expired()  # the worker may have won an election before it ended

    def expired(self) -> None:
        """Handle the end of the session: drop the controller's pending work."""
        self._steady.end()
        self._queue.clear()
        self._leave()

    def renewed(self) -> None:
        """Handle the broker's registration in a new session: take part in the election again."""
        self.expired()
        self._steady = SteadyTree(self._tree, self._sleep)
        self._put_check()

    def configure(self, config: ControllerConfig) -> None:
        """Apply changed configs; elect unclean leaders if they are allowed now."""
        before, self._config = self._config, config
        term = self._term
        if term is None:
            return
        term.config = config
        if config.unclean_leader_election and not before.unclean_leader_election:
            term.put("unclean", lambda: _bring_online(term))

    def unclean_election_enabled(self, topic: str) -> None:
        """Elect unclean leaders for a topic, after a config change that allows them."""
        term = self._term
        if term is not None:
            term.put(("unclean", topic), lambda: _bring_online(term, topic))

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Grant or refuse a leader's change of the in-sync replicas. Raises ApiError."""

        async def work(term: Term) -> AlterPartitionResponse:
            response = await alter_partition.alter_partition(term, request)
            if term.context.moving:
                term.put(None, lambda: alter_partition.complete_reassignments(term, response))
            return response

        return await self._ask(work)

    async def controlled_shutdown(self, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
        """Move the leaderships away from a broker that is shutting down. Raises ApiError."""
        return await self._ask(lambda term: shutdown.controlled_shutdown(term, request))

    async def allocate_producer_ids(self, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
        """Allocate a block of producer ids for a broker. Raises ApiError."""
        return await self._ask(lambda term: producer_ids.allocate_producer_ids(term, request))

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> int:
        """Change all of these finalized feature levels, or none. Return /feature's new version. Raises ApiError."""

        async def work(term: Term) -> int:
            version = await features.update(term, updates, validate_only=validate_only)
            if term.context.lacking:
                term.put("lacking brokers", lambda: brokers.check_lacking(term))
            return version

        return await self._ask(work)

    async def elect_leaders(
        self, kind: int, wanted: Collection[Partition]
    ) -> Mapping[Partition, elect_leaders.Elected]:
        """Elect leaders of partitions: preferred leaders (kind 0), or any leaders, including unclean leaders (1).

        Return the results. The result of each partition is its new leader, or an ApiError: NOT_CONTROLLER for all
        partitions if this broker is not the active controller.
        """
        try:
            return await self._ask(lambda term: elect_leaders.elect_leaders(term, kind, wanted))
        except ApiError as error:
            return dict.fromkeys(wanted, error)

    async def alter_reassignments(
        self, asked: Mapping[Partition, Sequence[int] | None], *, may_change_factor: bool = True
    ) -> Mapping[Partition, ApiError | None]:
        """Begin reassignments of partitions. A target of None cancels a partition's reassignment. Raises ApiError."""
        return await self._ask(lambda term: reassignment.alter(term, asked, may_change_factor=may_change_factor))

    async def list_reassignments(self, wanted: Collection[Partition] | None) -> Mapping[Partition, Replicas]:
        """Return the running reassignments of these partitions, or of all partitions if None. Raises ApiError."""
        return await self._ask(lambda term: reassignment.ongoing(term, wanted))

    async def _ask(self, work: Callable[[Term], Coroutine[Any, Any, T]]) -> T:
        if self._term is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER)

        async def begin() -> T:
            if self._term is None:
                raise ApiError(ErrorCode.NOT_CONTROLLER)
            return await work(self._term)

        return await self._queue.ask(begin)

    async def _work(self) -> None:
        while True:
            event = await self._queue.next()
            try:
                event.succeed(await in_slices(event.work()))
            except asyncio.CancelledError:
                event.fail(ApiError(ErrorCode.NOT_CONTROLLER))
                raise
            except ApiError as error:
                event.fail(error)
            except ControllerMoved as moved:
                log.info("Broker %d is the controller no longer: %s", self.node_id, moved)
                self._leave()
                self._put_check()
                event.fail(ApiError(ErrorCode.NOT_CONTROLLER))
            except Unreachable as error:
                self._session_over(event, error)
            except Exception:
                log.exception("The controller could not finish an event, and continues")
                event.fail(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _session_over(self, event: Event, error: Unreachable) -> None:
        """End the term with its session. The session's owner notifies the controller of the next session."""
        log.info("Broker %d could not finish its work as controller: %s", self.node_id, error)
        event.fail(ApiError(ErrorCode.NOT_CONTROLLER))
        if self._term is not None and self._term.tree.is_over:
            self._leave()

    def _session_changed(self, session: Session) -> None:
        if session is Session.UNREACHABLE:
            self._steady.disconnected()
        elif session is Session.EXPIRED:
            self.expired()
        else:
            self._steady.reconnected()

    def _put_check(self) -> None:
        self._queue.put(self._check, "election")

    async def _check(self) -> None:
        """Find the controller and watch it; take part in the election if there is none."""
        while True:
            try:
                if await self._is_settled():
                    return
            except (Unreadable, Denied, Refused) as error:
                log.error("Broker %d cannot be elected, and tries again: %s", self.node_id, error)
                await self._sleep(_RETRY_SECONDS)

    async def _is_settled(self) -> bool:
        """Return whether there is a controller; take part in the election if not."""
        found = await self._steady.get(CONTROLLER, self._put_check)
        is_own = found is not None and found.stat.owner == self._steady.session_id
        if is_own and self._term is not None:
            return True
        self._leave()
        if found is not None:
            if not is_own:
                return True
            await self._take_away()
        tree = await claim(self._steady, self.node_id, self._clock.now_ms())
        if tree is not None:
            await self._begin(tree)
        return False

    async def _take_away(self) -> None:
        """Remove /controller if it is from an ended term of this session, but never the znode of a later term.

        Each election also changes /controller_epoch, and this write checks its version (KIP-237). So a later controller
        keeps its znode, even if this write is a retry and the first attempt succeeded.
        """
        epoch = await self._steady.get(CONTROLLER_EPOCH)
        found = await self._steady.get(CONTROLLER)
        if epoch is None or found is None or found.stat.owner != self._steady.session_id:
            return
        try:
            await self._steady.commit(Check(CONTROLLER_EPOCH, epoch.stat.version), Delete(CONTROLLER))
        except Refused:
            log.info("Another broker is already the controller")

    async def _begin(self, tree: FencedTree) -> None:
        """Begin a term; if that is not possible, resign so that another broker can try."""
        log.info("Broker %d is the controller, of epoch %d", self.node_id, tree.epoch)
        context = Context()
        channels = Channels((self.node_id, tree.epoch), context, self._peers, self._sleep, self._answered)
        put = self._put_for(tree)
        term = self._term = Term(self.node_id, tree, context, channels, self._config, put, self._elected_uncleanly)
        try:
            await take_over(term)
        except (ControllerMoved, Unreachable):
            raise
        except Exception:
            log.exception("Broker %d cannot be the controller, and resigns", self.node_id)
            self._leave()
            await _give_up(tree)
            await self._sleep(_RETRY_SECONDS)
            return
        if self._term is term:
            self._rebalancing = asyncio.ensure_future(self._rebalance(term))

    def _elected_uncleanly(self, count: int) -> None:
        self.unclean_elections += count

    def _put_for(self, tree: FencedTree) -> Callable[[Hashable, Callable[[], Coroutine[Any, Any, None]]], None]:
        """Return the function with which a term's parts queue work.

        After the term's end, the function drops the work.
        """

        def put(key: Hashable, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
            async def if_still() -> None:
                if self._term is not None and self._term.tree is tree:
                    await work()

            if self._term is not None and self._term.tree is tree:
                self._queue.put(if_still, None if key is None else (tree.epoch, key))

        return put

    def _leave(self) -> None:
        """End the term, if there is one."""
        term, self._term = self._term, None
        if self._rebalancing is not None:
            self._rebalancing.cancel()
            self._rebalancing = None
        if term is not None:
            term.channels.close_all()
            log.info("Broker %d has resigned as controller of epoch %d", self.node_id, term.epoch)

    def _answered(self, broker: int, broker_epoch: int, item: Outgoing, response: Any) -> None:
        """Handle a broker's response. Only storage errors, and the results of deletions, have consequences."""
        term = self._term
        if term is None or response.error_code:
            if response.error_code:
                log.warning("Broker %d refused a request of the controller: error %d", broker, response.error_code)
            if term is None or not isinstance(item, Stops):
                return
        registered = broker, broker_epoch
        if isinstance(item, Leaderships):
            _leaderships_answered(term, registered, response)
        elif isinstance(item, Stops):
            _stops_answered(term, registered, item, response)

    async def _rebalance(self, term: Term) -> None:
        await self._sleep(elect_leaders.FIRST_REBALANCE_SECONDS)
        while True:
            if term.config.auto_rebalance:
                term.put("rebalance", lambda: elect_leaders.rebalance(term))
            await self._sleep(term.config.imbalance_check_seconds)


def _leaderships_answered(term: Term, broker: tuple[int, int], response: Any) -> None:
    failed = broker[0] in term.context.failed_dirs
    usable: dict[Partition, bool] = {}
    for topic in response.topics:
        for each in topic.partition_errors:
            is_lost = each.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            if not is_lost and not (failed and each.error_code == 0):
                continue
            name = term.context.names.get(topic.topic_id)
            if name is not None:
                usable[name, each.partition_index] = not is_lost
    if usable:
        term.put(None, lambda: _if_same(term, broker, lambda: log_dirs.answered(term, broker[0], usable)))


def _stops_answered(term: Term, broker: tuple[int, int], item: Stops, response: Any) -> None:
    outcome = {}
    errors = {(each.topic_name, each.partition_index): each.error_code for each in response.partition_errors}
    for partition, part in item.parts.items():
        if part.delete_partition and term.context.is_deleted(partition[0]):
            outcome[partition] = not response.error_code and not errors.get(partition)
    if outcome:
        term.put(None, lambda: _if_same(term, broker, lambda: deletion.answered(term, broker[0], outcome)))


async def _if_same(term: Term, broker: tuple[int, int], work: Callable[[], Awaitable[None]]) -> None:
    """Handle a broker's response.

    If the broker has registered again, ignore the response: new requests follow anyway.
    """
    live = term.context.brokers.get(broker[0])
    if live is not None and live.epoch == broker[1]:
        await work()


async def _bring_online(term: Term, topic: str | None = None) -> None:
    of_topic = None
    if topic is not None:
        known = term.context.topics.get(topic)
        of_topic = [] if known is None else [(topic, index) for index in known.partitions]
    await partitions.bring_online(term, of_topic)


async def _give_up(tree: FencedTree) -> None:
    """Remove /controller if this term still owns it."""
    try:
        await tree.commit(Delete(CONTROLLER))
    except (Refused, ControllerMoved):
        log.info("Another broker is already the controller")
