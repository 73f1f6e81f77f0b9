"""The cluster's state as a member knows it, and the changes that it requests for its clients.

Owns this broker's view of the cluster: the controller's updates (metadata_cache.py), with the configs in ZooKeeper
(entity_configs.py). A member writes a client's change to ZooKeeper (topic_changes.py). The controller carries the
change out and updates all brokers, and the client gets its answer when this broker knows the result. Never decides.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, unquote

from kbroker.cluster_state import ClusterState, PartitionState, TopicState
from kbroker.controller import assignments
from kbroker.controller.cluster_metadata import Listener, Revise, ReviseToken
from kbroker.controller.features import GROUP_VERSION, TRANSACTION_VERSION, FeatureUpdate
from kbroker.controller.member.entity_configs import FOLLOWED, GROUPS, EntityConfigs
from kbroker.controller.member.finalized_features import NO_EPOCH
from kbroker.controller.member.metadata_cache import updated
from kbroker.controller.member.topic_changes import (
    Holds,
    check_absent,
    create_topic,
    delete_topic,
    grow_topic,
    is_removed,
    led,
)
from kbroker.controller.member.zookeeper_acls import ZooKeeperAcls
from kbroker.controller.member.zookeeper_tokens import ZooKeeperTokens
from kbroker.controller.published_state import Listeners
from kbroker.controller.topic_plans import TopicDefaults, TopicPlans
from kbroker.controller.tree.znode import Denied, MetadataTree, Refused, Unreachable
from kbroker.controller.znodes import CONTROLLER, Unreadable, topic_path
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.inter_broker import UpdateMetadataRequest
from kbroker.security.authorizer.acls import Acl, AclFilter, Acls, Entry, Pattern, matching
from kbroker.security.tokens.known import NO_TOKENS, Tokens
from kbroker.security.tokens.token import Token
from kbroker.topic_names import topic_name_fault

log = logging.getLogger(__name__)

PATIENCE_MS = 30_000
"""The timeout in ms of requests that name no timeout."""
AT_ONCE = 20
"""The number of topics of one request that are written concurrently."""
_BEGUN_AT_ONCE = 100
"""The number of changes that are started in one turn of the event loop."""
_NO_FEATURES = {TRANSACTION_VERSION: 0, GROUP_VERSION: 0}
_T = TypeVar("_T")
_K = TypeVar("_K", str, bytes, Pattern)


class OwnController(Protocol):
    """This broker's controller, active or not."""

    @property
    def is_active(self) -> bool:
        """Whether this broker believes that it is the controller."""

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> int:
        """Change feature levels; return the resulting version of /feature. Raises ApiError."""


class MemberMetadata(TopicPlans):
    """A member's ClusterMetadata. It also has the member's own `controller`."""

    def __init__(
        self,
        tree: MetadataTree,
        configs: EntityConfigs,
        cluster_id: str,
        defaults: TopicDefaults,
        controller: OwnController,
        acls: ZooKeeperAcls | None = None,
        tokens: ZooKeeperTokens | None = None,
    ) -> None:
        super().__init__(defaults, ())
        self._tree = tree
        self._configs = configs
        self._controller = controller
        self._acls = acls
        self._tokens = tokens
        state = ClusterState(
            cluster_id,
            features=_NO_FEATURES,
            features_epoch=NO_EPOCH,
            acls={} if acls is None else acls.known,
            tokens=NO_TOKENS if tokens is None else tokens.known,
        )
        self.state = self.decided = state.with_all_configs(self._known_configs)
        self._listeners = Listeners()
        self._asked: dict[asyncio.Task[Any], None] = {}  # a dict, because simulations need a fixed order of tasks
        self._creating: dict[str, asyncio.Task[None]] = {}
        self._expected: dict[str, int] = {}
        """Topics, with their numbers of partitions, that the controller must send before clients get metadata."""
        self._unsent: dict[str, int] = {}
        """The expected topics that the controller has not sent completely yet."""
        self._checked: set[str] = set()
        self._lookups: dict[asyncio.Task[None], None] = {}
        self._not_created: dict[str, str] = {}  # internal topics, and the reasons why they could not be created
        self._waiters: dict[str, list[tuple[Holds, asyncio.Future[None]]]] = {}
        self._features_turn = asyncio.Lock()
        """The lock for one change at a time.

        The requests of clients that gave up must not accumulate at a busy controller.
        """
        self._places = random.Random()

    # --- the known state

    def _known_configs(self, kind: str) -> dict[str, Mapping[str, str]]:
        if kind not in FOLLOWED:
            return {}
        configs = self._configs.all(kind)
        return {unquote(name): each for name, each in configs.items()} if kind == GROUPS else dict(configs)

    def expect(self, partitions: Mapping[str, int]) -> None:
        """Expect the controller to send these topics, with these numbers of partitions.

        The controller sends a new broker its topics in several requests. Before the last of these requests, a topic
        would seem to be missing, or to have fewer partitions. Clients would then drop their unsent records for the
        topic.
        """
        self._expected = dict(partitions)
        self._unsent = dict(partitions)

    def may_be_unsent(self, name: str) -> bool:
        """Whether a topic may have partitions that the controller has not sent yet.

        If so, clients have to retry. Meanwhile this broker looks up whether the topic was deleted before the
        controller sent it.
        """
        if name not in self._unsent:
            return False
        if name not in self._checked:
            self._checked.add(name)
            task = asyncio.get_running_loop().create_task(self._check_exists(name))
            self._lookups[task] = None
            task.add_done_callback(self._lookups.pop)
        return True

    async def _check_exists(self, name: str) -> None:
        try:
            if await self._tree.get(topic_path(name)) is None:
                self._unsent.pop(name, None)
        except (Unreachable, Denied):
            pass  # the next request starts another lookup
        finally:
            self._checked.discard(name)

    def is_whole(self, name: str) -> bool:
        return name not in self._unsent

    def first_update(self, timeout_ms: float) -> Awaitable[bool] | None:
        """Return a future: true when the controller has sent the cluster's state, or false after the timeout.

        Return None if the controller has already sent it.
        """
        return (
            None if self.state.brokers and not self._expected else asyncio.ensure_future(self._first_update(timeout_ms))
        )

    async def _first_update(self, timeout_ms: float) -> bool:
        if not await self.until(lambda state: bool(state.brokers and not self._expected), timeout_ms / 1000):
            # The missing topics were deleted meanwhile, or there is no controller. Do not wait for them again.
            self._expected.clear()
            return False
        return True

    def subscribe(self, listener: Listener) -> None:
        self._listeners.add(listener)

    async def until(self, holds: Callable[[ClusterState], bool], seconds: float) -> bool:
        """Wait until this broker knows a state for which `holds` is true; return False after `seconds`."""
        reached = asyncio.Event()

        def check(_old: ClusterState, new: ClusterState) -> None:
            if holds(new):
                reached.set()

        check(self.state, self.state)
        self.subscribe(check)
        try:
            async with asyncio.timeout(seconds):
                await reached.wait()
        except TimeoutError:
            return False
        finally:
            self._listeners.remove(check)
        return True

    def read_configs(self, names: Iterable[str]) -> Awaitable[None] | None:
        """Return a future that is done when the configs of unknown topics have been read; None if all are known."""
        new = [name for name in names if name not in self.state.topics and topic_name_fault(name) is None]
        return self._configs.read_topics(new) if new else None

    async def learn(self, request: UpdateMetadataRequest, is_newest: Callable[[], bool] = lambda: True) -> bool:
        """Apply the controller's update when the configs of new topics are known.

        If `is_newest` reports that the update of a newer controller has been applied, apply nothing and return False.
        """
        unread = self.read_configs(each.topic_name for each in request.topic_states)
        if unread is not None:
            await unread
        while True:
            base = self.state
            state = await updated(base, request, lambda name: self._configs.of("topics", name))
            if self.state is base:
                break  # if the state has changed meanwhile, compute it again
        if is_newest():
            self._publish(state)
            return True
        return False

    def configs_changed(self, kind: str, name: str, configs: Mapping[str, str]) -> None:
        """Apply an entity's changed configs."""
        if kind != "topics" or name in self.state.topics:
            known_as = unquote(name) if kind == GROUPS else name
            self._publish(self.state.with_configs(kind, known_as, configs))

    def features_changed(self, levels: Mapping[str, int], epoch: int) -> None:
        """Apply changed feature levels."""
        state = self.state
        features = {**_NO_FEATURES, **levels}
        self._publish(replace(state, version=state.version + 1, features=features, features_epoch=epoch))

    def acls_changed(self, acls: Acls) -> None:
        """Apply changed ACLs."""
        self._publish(replace(self.state, version=self.state.version + 1, acls=acls))

    def tokens_changed(self, tokens: Tokens) -> None:
        """Apply changed delegation tokens."""
        self._publish(replace(self.state, version=self.state.version + 1, tokens=tokens))

    def _publish(self, state: ClusterState) -> None:
        old, self.state, self.decided = self.state, state, state
        if old.topics is not state.topics:
            self.names_changed(state.topics.keys() - old.topics.keys(), old.topics.keys() - state.topics.keys())
            for name in [name for name, count in self._unsent.items() if _is_sent(state.topics.get(name), count)]:
                del self._unsent[name]
                self._expected.pop(name, None)
        self._listeners.notify(old, state)
        for name in [name for name in self._waiters if old.topics.get(name) is not state.topics.get(name)]:
            self._notify(name)

    def _notify(self, name: str) -> None:
        topic = self.state.topics.get(name)
        left = []
        for holds, future in self._waiters.pop(name):
            if future.done():
                continue
            if holds(topic):
                future.set_result(None)
            else:
                left.append((holds, future))
        if left:
            self._waiters[name] = left

    async def _until(self, name: str, holds: Holds, deadline: float) -> ApiError | None:
        """Wait until a topic is in a given state, or return an error after the timeout.

        `deadline` is a time of the event loop's clock.
        """
        if holds(self.state.topics.get(name)):
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(name, []).append((holds, future))
        try:
            async with asyncio.timeout_at(deadline):
                await future
        except TimeoutError:
            return ApiError(ErrorCode.REQUEST_TIMED_OUT)
        finally:
            future.cancel()
            if name in self._waiters:
                self._notify(name)
        return None

    # --- requested changes

    @property
    def is_controller(self) -> bool:
        return self._controller.is_active

    def place(self, first: int, count: int, factor: int, grown: TopicState | None) -> tuple[PartitionState, ...]:
        return assignments.spread(self.state, first, count, factor, grown, self._places)

    def published(self) -> Awaitable[None] | None:
        """Return None: a member decides nothing, so the caller of a change has no later event to wait for."""
        return None

    def _ask(self, change: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start a change, which continues whether or not it is awaited."""
        task = asyncio.get_running_loop().create_task(change)
        self._asked[task] = None
        task.add_done_callback(self._asked.pop)
        return task

    async def _asking(self, change: Coroutine[Any, Any, _T]) -> _T:
        """Start a change, and wait for it. The change continues even if the caller is cancelled."""
        return await asyncio.shield(self._ask(change))

    def auto_create(self, name: str) -> None:
        """Create a topic that a client uses. Errors are logged: the client retries."""
        if name in self._creating:
            return
        try:
            plan = self.plan_auto(name)
        except ApiError as error:
            self._log_not_created(name, error)
            return
        self._creating[name] = self._ask(self._auto_create(plan))

    async def _auto_create(self, plan: TopicState) -> None:
        try:
            error = await _outcome(self._create(plan, _in(PATIENCE_MS), asyncio.Semaphore()))
            if error is not None and error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                self._log_not_created(plan.name, error)
        finally:
            self._creating.pop(plan.name, None)

    def auto_created(self, name: str) -> Awaitable[None] | None:
        task = self._creating.get(name)
        return None if task is None else asyncio.shield(task)

    def _log_not_created(self, name: str, error: ApiError) -> None:
        """Log the reason for which a topic could not be created yet.

        Log each reason once: clients retry every second.
        """
        if self._not_created.get(name) != str(error):
            self._not_created[name] = str(error)
            log.warning("topic %s is not created yet: %s", name, error)

    async def put_in_pieces(self, plans: Sequence[TopicState], timeout_ms: int = PATIENCE_MS) -> dict[str, ApiError]:
        turns, deadline = asyncio.Semaphore(AT_ONCE), _in(timeout_ms)
        return await self._asking(_all((plan.name, self._create(plan, deadline, turns)) for plan in plans))

    async def validate_in_pieces(self, plans: Sequence[TopicState]) -> dict[str, ApiError]:
        turns = asyncio.Semaphore(AT_ONCE)
        return await self._asking(_all((plan.name, self._check_absent(plan, turns)) for plan in plans))

    async def _check_absent(self, plan: TopicState, turns: asyncio.Semaphore) -> None:
        async with turns:
            await check_absent(self._tree, plan.name)

    async def _create(self, plan: TopicState, deadline: float, turns: asyncio.Semaphore) -> ApiError | None:
        async with turns:
            await create_topic(self._tree, plan)
        return await self._until(plan.name, led(len(plan.partitions)), deadline)

    async def grow_in_pieces(self, plans: Sequence[TopicState], timeout_ms: int = PATIENCE_MS) -> dict[str, ApiError]:
        turns, deadline = asyncio.Semaphore(AT_ONCE), _in(timeout_ms)
        return await self._asking(_all((plan.name, self._grow(plan, deadline, turns)) for plan in plans))

    async def _grow(self, plan: TopicState, deadline: float, turns: asyncio.Semaphore) -> ApiError | None:
        async with turns:
            await grow_topic(self._tree, plan)
        return await self._until(plan.name, led(len(plan.partitions)), deadline)

    async def delete_in_pieces(
        self, topic_ids: Iterable[bytes], timeout_ms: int = PATIENCE_MS
    ) -> dict[bytes, ApiError]:
        turns, deadline = asyncio.Semaphore(AT_ONCE), _in(timeout_ms)
        return await self._asking(_all((each, self._delete(each, deadline, turns)) for each in topic_ids))

    async def _delete(self, topic_id: bytes, deadline: float, turns: asyncio.Semaphore) -> ApiError | None:
        async with turns:
            name = self.state.topic_names.get(topic_id)
            if name is None:
                return None  # another request has deleted the topic meanwhile
            await delete_topic(self._tree, name)
        return await self._until(name, is_removed(topic_id), deadline)

    async def change_configs(self, kind: str, name: str, revise: Revise) -> None:
        if kind not in FOLLOWED:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"This cluster keeps no configs of {kind}.")
        if kind == GROUPS:  # a group id may be any text
            name = quote(name, safe="").replace(".", "%2E")
        error = await self._asking(_outcome(self._set_configs(kind, name, revise)))
        if error is not None:
            raise error

    async def _set_configs(self, kind: str, name: str, revise: Revise) -> None:
        controller = await self._tree.get(CONTROLLER)
        if controller is None:
            text = f"Cannot set entity configs for {kind} {name} when there is no controller."
            raise ApiError(ErrorCode.STALE_CONTROLLER_EPOCH, text)
        await self._configs.change(kind, name, revise, controller.stat.version)

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool, timeout_ms: int = PATIENCE_MS
    ) -> None:
        self.check_is_controller()
        error = await self._asking(_outcome(self._update_features(updates, validate_only, _in(timeout_ms))))
        if error is not None:
            raise error

    async def _update_features(
        self, updates: Sequence[FeatureUpdate], validate_only: bool, deadline: float
    ) -> ApiError | None:
        """Request the controller to change levels, and wait until this broker knows the new levels."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._features_turn.acquire()
                changing = self._ask(self._controller.update_features(updates, validate_only=validate_only))
                changing.add_done_callback(lambda _done: self._features_turn.release())
                epoch = await asyncio.shield(changing)
        except TimeoutError:
            return ApiError(ErrorCode.REQUEST_TIMED_OUT)
        if validate_only:
            return None
        left = deadline - asyncio.get_running_loop().time()
        is_known = await self.until(lambda state: state.features_epoch >= epoch, left)
        return None if is_known else ApiError(ErrorCode.FEATURE_UPDATE_FAILED)

    async def create_acls(self, acls: Mapping[Pattern, frozenset[Entry]]) -> dict[Pattern, ApiError]:
        known = self._zookeeper_acls()
        return await self._asking(_all((pattern, known.add(pattern, more)) for pattern, more in acls.items()))

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[list[Acl] | ApiError]:
        known = self._zookeeper_acls()
        answers, removed = await matching(known.known, filters)
        refused = await self._asking(_all((pattern, known.remove(pattern, some)) for pattern, some in removed.items()))
        if refused:
            for place, found in enumerate(answers):
                matching_here = () if isinstance(found, ApiError) else found
                fault = next((refused[each.pattern] for each in matching_here if each.pattern in refused), None)
                if fault is not None:
                    answers[place] = fault
                await turn
        return answers

    def _zookeeper_acls(self) -> ZooKeeperAcls:
        if self._acls is None:
            raise ApiError(ErrorCode.SECURITY_DISABLED)
        return self._acls

    async def change_token(self, token_id: str, revise: ReviseToken) -> Token | None:
        known = self._tokens
        if known is None:
            raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        changed: list[Token | None] = []

        async def change() -> ApiError | None:
            changed.append(await known.change(token_id, revise))
            return None

        error = await self._asking(_outcome(change()))
        if error is not None:
            raise error
        return changed[0]

    def close(self) -> None:
        """Stop all requests, and remove the listeners."""
        self._listeners.clear()
        for task in (*self._asked, *self._lookups):
            task.cancel()


def _in(timeout_ms: float) -> float:
    """Return the time of the event loop's clock at which a timeout ends."""
    return asyncio.get_running_loop().time() + timeout_ms / 1000


def _is_sent(topic: TopicState | None, count: int) -> bool:
    return topic is not None and sum(bool(each.replicas) for each in topic.partitions) >= count


async def _all(changes: Iterable[tuple[_K, Coroutine[Any, Any, ApiError | None]]]) -> dict[_K, ApiError]:
    """Run changes concurrently; return the clients' errors of the failed changes."""
    tasks: dict[_K, asyncio.Task[ApiError | None]] = {}
    try:
        for number, (key, change) in enumerate(changes, 1):
            tasks[key] = asyncio.get_running_loop().create_task(_outcome(change))
            if not number % _BEGUN_AT_ONCE:
                await asyncio.sleep(0)
        return {key: error for key, task in tasks.items() if (error := await task) is not None}
    finally:
        for task in tasks.values():
            task.cancel()


async def _outcome(change: Coroutine[Any, Any, ApiError | None]) -> ApiError | None:
    """Return the error of a change for the client that requested it; None on success."""
    try:
        return await change
    except ApiError as error:
        return error
    except Unreachable as error:
        return ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error))
    except (Refused, Denied, Unreadable) as error:
        log.error("a change of the cluster was not made: %s", error)
        return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
