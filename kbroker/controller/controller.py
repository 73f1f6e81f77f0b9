"""Keeps the cluster's state: decides (topic_plans.py), stores (a MetadataStore), publishes, and then answers.

Owns the handling of each requested change: whether it is allowed, the stored data, and the resulting state.
PublishedState owns the time at which the state is published. Never touches logs: components that act on a change
subscribe to the state.

It stores, on Apache Kafka 3.9's paths:

    /brokers/topics/<t>                      {"version": 3, "topic_id": "...", "partitions": {"0": [1]}}
    /brokers/topics/<t>/partitions/<p>/state {"version": 1, "leader": 1, "leader_epoch": 0, "isr": [1], ...}
                                             a view has no partitions of its own
    /config/{topics,brokers,groups,users}/<name>
                                             {"version": 1, "config": {...}}; "/" and "%" in a name are %2F and %25
    /feature                                 {"version": 2, "status": 1, "features": {"group.version": 1, ...}}
    /kafka-acl/<type>/<name>, ...            acl_nodes.py; a name is as in a URL
    /delegation_token/tokens/<id>            token_nodes.py
    /kbroker/producer_ids                    {"next": 0}
    /kbroker/deleted_topics/<id>             {"name": "..."}: directories of this topic may be left
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any
from uuid import UUID

from kbroker.cluster_state import BrokerEndpoint, ClusterState, PartitionState, TopicState, derived_views
from kbroker.controller import single_broker
from kbroker.controller.acl_nodes import load_acls, stored_acls
from kbroker.controller.cluster_metadata import Revise, ReviseToken
from kbroker.controller.features import BOOTSTRAP, UNRECORDED, FeatureUpdate, updated
from kbroker.controller.published_state import PublishedState
from kbroker.controller.store_interface import Change, Delete, MetadataStore, Put
from kbroker.controller.token_nodes import load_tokens, stored_token
from kbroker.controller.topic_plans import TopicDefaults, TopicPlans
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.wire import parse_uuid, uuid_text
from kbroker.security.authorizer.acls import Acl, AclFilter, Acls, Entry, Pattern, added, matching, without
from kbroker.security.tokens.token import Token, TokenSettings

log = logging.getLogger(__name__)

TOPICS = "/brokers/topics"
CONFIG = "/config"
FEATURES = "/feature"
PRODUCER_IDS = "/kbroker/producer_ids"
DELETED_TOPICS = "/kbroker/deleted_topics"
DEFAULT_ENTITY = "<default>"
PIECE_TOPICS, PIECE_PARTITIONS, PIECE_ACLS = 50, 100, 200
"""The maximum number of topics, partitions, and patterns of ACLs to store and publish in one step.

A step takes a few milliseconds.
"""
LOGGED_BY_NAME = 8
_RESERVED = {DEFAULT_ENTITY: "%3Cdefault%3E", ".": "%2E", "..": "%2E%2E"}


class Controller(PublishedState, TopicPlans):
    """The controller of a cluster, and every broker's view of it."""

    is_controller = True

    def __init__(
        self, store: MetadataStore, cluster_id: str, defaults: TopicDefaults, tokens: TokenSettings | None = None
    ) -> None:
        PublishedState.__init__(self, store, replace(_load(store, cluster_id), tokens=load_tokens(store, tokens)))
        TopicPlans.__init__(self, defaults, self.state.topics)
        self._store = store
        self._deleted = {parse_uuid(topic_id): None for topic_id in store.children(DELETED_TOPICS)}

    def begin_cluster(self, min_insync_replicas: int) -> None:
        """Initialize an empty cluster with the settings of Apache Kafka's `kafka-storage format`."""
        if self.begin_features():
            self.set_configs("brokers", "", {"min.insync.replicas": str(min_insync_replicas)})

    def begin_features(self) -> bool:
        """If no feature levels are recorded, record those of a new cluster. Return whether this call recorded them."""
        is_new = not self._store.children("")
        if is_new:
            self.decide([_features(BOOTSTRAP)], lambda state: replace(state, features_epoch=state.features_epoch + 1))
        return is_new

    def register_broker(self, endpoint: BrokerEndpoint) -> None:
        """Add a live broker to the state."""

        def step(state: ClusterState) -> ClusterState:
            brokers = {**state.brokers, endpoint.node_id: endpoint}
            return replace(state, version=state.version + 1, brokers=brokers, controller_id=endpoint.node_id)

        self.decide([], step)

    def is_whole(self, name: str) -> bool:  # noqa: ARG002 - all are
        return True

    # --- topics

    def auto_create(self, name: str) -> None:
        """Create a topic that a client uses."""
        self.put_topics([self.plan_auto(name)])

    def auto_created(self, name: str) -> Awaitable[None] | None:  # noqa: ARG002 - decisions are published in order
        """Return a future that is done once a topic is published."""
        return self.published()

    def put_topics(self, topics: Sequence[TopicState]) -> None:
        """Store new or grown topics, then publish them."""
        if not topics:
            return
        topics = tuple(topics)
        old = self.decided.topics
        changes: list[Change] = []
        for topic in topics:
            known = old.get(topic.name)
            changes += _topic_changes(topic, len(known.partitions) if known else 0)
        self.decide(changes, lambda state: state.with_topics(topics))
        self.names_changed([topic.name for topic in topics], ())
        _log_put(old, topics)

    async def put_in_pieces(self, plans: Sequence[TopicState], timeout_ms: int = 0) -> dict[str, ApiError]:  # noqa: ARG002 - it is done at once
        """Store and publish new topics that were planned earlier, in pieces. Return the errors of refused topics.

        Each plan is checked again, because another topic of the same name may exist by now.
        """
        refused: dict[str, ApiError] = {}
        await self._put_some_at_a_time(self._still_new(plans, refused))
        return refused

    async def validate_in_pieces(self, plans: Sequence[TopicState]) -> dict[str, ApiError]:
        """Return no errors: the plan was already checked against this node's complete state."""
        del plans
        return {}

    def _still_new(self, plans: Sequence[TopicState], refused: dict[str, ApiError]) -> Iterator[tuple[TopicState, int]]:
        own = {plan.name for plan in plans}
        for plan in plans:
            try:
                self.check_new_name(plan.name, own)
            except ApiError as error:
                refused[plan.name] = error
            else:
                yield plan, len(plan.partitions)

    async def grow_in_pieces(self, plans: Sequence[TopicState], timeout_ms: int = 0) -> dict[str, ApiError]:  # noqa: ARG002 - it is done at once
        """Store and publish planned new partitions, in pieces; return the errors of refused topics.

        Each topic grows from its current state: since the plan, its partitions may have changed, or another topic may
        have replaced it.
        """
        refused: dict[str, ApiError] = {}
        await self._put_some_at_a_time(self._still_growing(plans, refused))
        return refused

    def _still_growing(
        self, plans: Sequence[TopicState], refused: dict[str, ApiError]
    ) -> Iterator[tuple[TopicState, int]]:
        for plan in plans:
            known = self.decided.topics.get(plan.name)
            if known is None or known.topic_id != plan.topic_id:
                refused[plan.name] = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            count = len(known.partitions)
            if count >= len(plan.partitions):
                text = f"Topic already has {count} partition(s)."
                refused[plan.name] = ApiError(ErrorCode.INVALID_PARTITIONS, text)
                continue
            new = plan.partitions[count:]
            yield replace(known, partitions=known.partitions + new), len(new)

    async def _put_some_at_a_time(self, topics: Iterator[tuple[TopicState, int]]) -> None:
        """Store and publish topics in pieces; each item is a topic and the number of its new partitions.

        The iterator checks each topic when it yields the topic. No other task runs between this check and the write.
        """
        piece: list[TopicState] = []
        partitions = 0
        for topic, new in topics:
            piece.append(topic)
            partitions += new
            if len(piece) >= PIECE_TOPICS or partitions >= PIECE_PARTITIONS:
                self.put_topics(piece)
                piece, partitions = [], 0
                await turn
        self.put_topics(piece)

    async def delete_in_pieces(self, topic_ids: Iterable[bytes], timeout_ms: int = 0) -> dict[bytes, ApiError]:  # noqa: ARG002 - it is done at once
        """Delete topics in pieces. Topics that another request has deleted meanwhile are skipped."""
        left = iter(topic_ids)
        while piece := list(islice(left, PIECE_TOPICS)):
            known = self.decided.topic_names
            self.delete_topics([known[topic_id] for topic_id in piece if topic_id in known])
            await turn
        return {}

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete existing topics, with their configs. The ids of the topics are kept until `forget_deleted`."""
        deleted = list(dict.fromkeys(names))
        if not deleted:
            return
        changes: list[Change] = []
        for name in deleted:
            changes += [Delete(f"{TOPICS}/{name}"), Delete(f"{CONFIG}/topics/{name}")]
        ids = [self.decided.topics[name].topic_id for name in deleted]
        changes += [Put(_deleted_path(each), {"name": name}) for each, name in zip(ids, deleted, strict=True)]
        self.decide(changes, lambda state: state.without_topics(deleted))
        self._deleted.update(dict.fromkeys(ids))
        self.names_changed((), deleted)
        log.info("%s deleted", _named(deleted))

    @property
    def deleted_topics(self) -> Collection[bytes]:
        """The ids of deleted topics whose partitions may still have directories."""
        return self._deleted.keys()

    def forget_deleted(self, topic_ids: Sequence[bytes]) -> None:
        """Forget the ids of deleted topics whose directories are all removed."""
        self._store.write([Delete(_deleted_path(topic_id)) for topic_id in topic_ids])
        for topic_id in topic_ids:
            self._deleted.pop(topic_id, None)

    def has_partition(self, name: str, index: int, topic_id: UUID | None) -> bool:
        """Whether a topic has a partition and, if `topic_id` is given, this id."""
        topic = self.decided.topics.get(name)
        if topic is None or topic.source is not None or index >= len(topic.partitions):
            return False
        return topic_id is None or topic_id.bytes == topic.topic_id

    def bump_leader_epochs(self) -> None:
        """Begin a new leader epoch of every partition: after a crash, the logs may have lost unsynced records."""
        topics = self.decided.topics
        own = (name for name, topic in topics.items() if topic.source is None)
        keys = ((name, i) for name in own for i in range(len(topics[name].partitions)))
        self._change_partitions(keys, lambda p: replace(p, leader_epoch=p.leader_epoch + 1))

    def raise_leader_epochs(self, least: Mapping[tuple[str, int], int]) -> None:
        """Set the leader epochs of existing partitions to at least these epochs."""
        epochs = iter(least.values())
        self._change_partitions(least, lambda p: replace(p, leader_epoch=max(p.leader_epoch, next(epochs))))

    def lose_replicas(self, node_id: int, keys: Iterable[tuple[str, int]]) -> None:
        """Remove leadership from a broker's replicas in lost log directories; the in-sync replicas stay unchanged."""
        self._change_partitions(keys, lambda partition: single_broker.without_replica(partition, node_id))

    def regain_replicas(self, node_id: int, keys: Iterable[tuple[str, int]]) -> None:
        """Make a broker the leader of partitions whose replicas are back. These partitions had no leader meanwhile."""
        self._change_partitions(keys, lambda partition: single_broker.with_replica(partition, node_id))

    def _change_partitions(
        self, keys: Iterable[tuple[str, int]], change: Callable[[PartitionState], PartitionState]
    ) -> None:
        topics = self.decided.topics
        changes: list[Change] = []
        by_topic: dict[str, list[PartitionState]] = {}  # this copies each topic's partitions only once
        for name, index in keys:
            topic = topics.get(name)
            if topic is None or index >= len(topic.partitions):
                continue
            partitions = by_topic.get(name)
            if partitions is None:
                partitions = by_topic[name] = list(topic.partitions)
            partitions[index] = change(partitions[index])
            changes.append(_partition_change(name, index, partitions[index]))
        if changes:
            changed = [replace(topics[name], partitions=tuple(partitions)) for name, partitions in by_topic.items()]
            self.decide(changes, lambda state: state.with_topics(changed))

    # --- configs

    async def change_configs(self, kind: str, name: str, revise: Revise) -> None:
        """Replace the dynamic configs of an entity, in one step."""
        old = self.decided.configs(kind, name)
        configs = revise(old)
        if configs != old:
            self.set_configs(kind, name, configs)

    def set_configs(self, kind: str, name: str, configs: Mapping[str, str]) -> None:
        """Replace the dynamic configs of an entity; the entity's kind and name are as in ClusterState."""
        path = f"{CONFIG}/{kind}/{_segment(name) if name else DEFAULT_ENTITY}"
        changes: list[Change] = [Put(path, {"version": 1, "config": dict(configs)}) if configs else Delete(path)]
        plain = f"{CONFIG}/{kind}/{name}"
        if plain != path and _name(name) == name and self._store.get(plain) is not None:
            changes.insert(0, Delete(plain))  # the configs were stored before names were encoded
        self.decide(changes, lambda state: state.with_configs(kind, name, configs))
        # Log no values: configs of brokers and users may contain secrets.
        log.info("configs set on %s %s: %s", kind, name or DEFAULT_ENTITY, ", ".join(sorted(configs)) or "none")

    # --- features

    async def update_features(
        self,
        updates: Sequence[FeatureUpdate],
        *,
        validate_only: bool,
        timeout_ms: int = 0,  # noqa: ARG002 - it is done at once
    ) -> None:
        """Change finalized feature levels, in one step."""
        levels = updated(self.decided.features, updates, self.decided.controller_id)
        if not validate_only:
            self.replace_features(levels)

    def replace_features(self, levels: Mapping[str, int]) -> None:
        """Replace all feature levels with these levels."""
        if levels == self.decided.features:
            return

        def step(state: ClusterState) -> ClusterState:
            return replace(state, version=state.version + 1, features=levels, features_epoch=state.features_epoch + 1)

        self.decide([_features(levels)], step)
        log.info("feature levels are set: %s", ", ".join(f"{name}={level}" for name, level in sorted(levels.items())))

    # --- access control lists

    async def create_acls(self, acls: Mapping[Pattern, frozenset[Entry]]) -> dict[Pattern, ApiError]:
        """Add ACLs, a few patterns at a time."""
        left = iter(acls.items())
        while piece := dict(islice(left, PIECE_ACLS)):
            self._change_acls({each: new for each, new in piece.items() if new - self._entries(each)}, added)
            await turn
        return {}

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[list[Acl] | ApiError]:
        """Find the ACLs that match the filters, and remove them, a few patterns at a time."""
        answers, deleted = await matching(self.decided.acls, filters)
        left = iter(deleted.items())
        while piece := dict(islice(left, PIECE_ACLS)):
            self._change_acls({each: some for each, some in piece.items() if some & self._entries(each)}, without)
            await turn
        return answers

    def replace_acls(self, wanted: Acls) -> None:
        """Replace all ACLs with these ACLs."""
        held, none = self.decided.acls, frozenset[Entry]()
        other = [each for each in held if held[each] != wanted.get(each)]
        self._change_acls({each: held[each] - wanted.get(each, none) for each in other}, without)
        held = self.decided.acls
        self._change_acls({each: wanted[each] for each in wanted if wanted[each] != held.get(each)}, added)

    def _entries(self, pattern: Pattern) -> frozenset[Entry]:
        return self.decided.acls.get(pattern, frozenset())

    def _change_acls(
        self,
        some: Mapping[Pattern, frozenset[Entry]],
        change: Callable[[Acls, Mapping[Pattern, frozenset[Entry]]], Acls],
    ) -> None:
        if some:

            def step(state: ClusterState) -> ClusterState:
                return replace(state, version=state.version + 1, acls=change(state.acls, some))

            self.decide(stored_acls(change(self.decided.acls, some), some), step)

    # --- delegation tokens

    async def change_token(self, token_id: str, revise: ReviseToken) -> Token | None:
        """Replace or remove a delegation token, in one step."""
        old = self.decided.tokens.get(token_id)
        new = revise(old)
        if new != old:

            def step(state: ClusterState) -> ClusterState:
                tokens = state.tokens.without(token_id) if new is None else state.tokens.with_token(new)
                return replace(state, version=state.version + 1, tokens=tokens)

            self.decide([stored_token(token_id, None if new is None else new.info)], step)
        return new

    # --- producer ids

    def allocate_producer_ids(self, count: int) -> int:
        """Allocate `count` producer ids, which are never allocated again; return the first."""
        node = self._store.get(PRODUCER_IDS)
        first = int(node.value["next"]) if node else 0
        self._store.write([Put(PRODUCER_IDS, {"next": first + count}, node.version if node else 0)])
        return first

    def skip_producer_ids(self, least: int) -> None:
        """Skip the producer ids below `least`. Store the change only if some of these ids are unallocated."""
        node = self._store.get(PRODUCER_IDS)
        if least > (int(node.value["next"]) if node else 0):
            self._store.write([Put(PRODUCER_IDS, {"next": least}, node.version if node else 0)])


def _log_put(old: Mapping[str, TopicState], topics: Sequence[TopicState]) -> None:
    """Log the names of new and grown topics, or only the number of topics if there are many."""
    if len(topics) > LOGGED_BY_NAME:
        fresh = [topic.name for topic in topics if topic.name not in old]
        if fresh:
            log.info("%s created", _named(fresh))
        grown = [topic.name for topic in topics if topic.name in old]
        if grown:
            log.info("%s given more partitions", _named(grown))
        return
    for topic in topics:
        known, count = old.get(topic.name), len(topic.partitions)
        if known is None:
            log.info("topic %s is created with %d partition(s), id %s", topic.name, count, uuid_text(topic.topic_id))
        elif len(known.partitions) != count:
            log.info("topic %s has %d partitions now, had %d", topic.name, count, len(known.partitions))


def _named(names: Sequence[str]) -> str:
    """Return the names of topics for a log line. The number of names is bounded."""
    if len(names) == 1:
        return f"topic {names[0]} is"
    left = len(names) - LOGGED_BY_NAME
    text = ", ".join(names[:LOGGED_BY_NAME])
    return f"topics {text} and {left} more are" if left > 0 else f"topics {text} are"


def _deleted_path(topic_id: bytes) -> str:
    return f"{DELETED_TOPICS}/{uuid_text(topic_id)}"


def _partition_change(topic: str, index: int, partition: PartitionState) -> Put:
    return Put(f"{TOPICS}/{topic}/partitions/{index}/state", _partition_value(partition))


def _partition_value(partition: PartitionState) -> dict[str, Any]:
    return {
        "version": 1,
        "controller_epoch": 1,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "isr": list(partition.isr),
    }


def _topic_changes(topic: TopicState, known: int) -> list[Change]:
    partitions = topic.partitions if topic.source is None else ()
    replicas = {str(i): list(p.replicas) for i, p in enumerate(partitions)}
    changes: list[Change] = [
        Put(
            f"{TOPICS}/{topic.name}",
            {"version": 3, "topic_id": uuid_text(topic.stored_id), "partitions": replicas},
        )
    ]
    prefix = f"{TOPICS}/{topic.name}/partitions"
    values = {id(p): _partition_value(p) for p in {id(p): p for p in partitions[known:]}.values()}
    changes += [Put(f"{prefix}/{i}/state", values[id(p)]) for i, p in enumerate(partitions[known:], known)]
    if topic.configs and not known:
        changes.append(Put(f"{CONFIG}/topics/{topic.name}", {"version": 1, "config": dict(topic.configs)}))
    return changes


def _segment(name: str) -> str:
    """Return the path segment that encodes a name. A group id may be any string that is not empty."""
    return _RESERVED.get(name) or name.replace("%", "%25").replace("/", "%2F")


def _name(segment: str) -> str:
    """Return the name that a path segment encodes. Older versions stored the name itself."""
    plain = {encoded: name for name, encoded in _RESERVED.items()}.get(segment)
    name = plain or segment.replace("%2F", "/").replace("%25", "%")
    return name if _segment(name) == segment else segment


_MAY_BE_CALLED_SO = ("groups", "client-metrics")
"""The kinds that have no default entity.

One of their entities may have the name `<default>`.
"""


def _configs(store: MetadataStore, kind: str) -> dict[str, dict[str, str]]:
    found = {}
    for segment in store.children(f"{CONFIG}/{kind}"):
        node = store.get(f"{CONFIG}/{kind}/{segment}")
        if node is not None:
            is_default = segment == DEFAULT_ENTITY and kind not in _MAY_BE_CALLED_SO
            found["" if is_default else _name(segment)] = dict(node.value["config"])
    return found


def _features(levels: Mapping[str, int]) -> Put:
    return Put(FEATURES, {"version": 2, "status": 1, "features": dict(levels)})


def _load(store: MetadataStore, cluster_id: str) -> ClusterState:
    configs = _configs(store, "topics")
    topics: dict[str, TopicState] = {}
    for name in store.children(TOPICS):
        node = store.get(f"{TOPICS}/{name}")
        if node is None:
            continue
        partitions = []
        for index in range(len(node.value["partitions"])):
            state = store.get(f"{TOPICS}/{name}/partitions/{index}/state")
            value: Mapping[str, Any] = state.value if state else {"leader": -1, "leader_epoch": 0, "isr": []}
            partitions.append(
                PartitionState(
                    replicas=tuple(node.value["partitions"][str(index)]),
                    isr=tuple(value["isr"]),
                    leader=value["leader"],
                    leader_epoch=value["leader_epoch"],
                )
            )
        topics[name] = TopicState(name, parse_uuid(node.value["topic_id"]), tuple(partitions), configs.get(name, {}))
    names = {topic.topic_id: topic.name for topic in topics.values()}
    views = derived_views({}, {}, topics, names, list(topics))
    features = store.get(FEATURES)
    unrecorded = UNRECORDED if store.children("") else BOOTSTRAP
    loaded = ClusterState(
        cluster_id=cluster_id,
        topics=topics,
        topic_names=names,
        views=views,
        features={**UNRECORDED, **features.value["features"]} if features else dict(unrecorded),
        features_epoch=features.version if features else 0,
        acls=load_acls(store),
    )
    return loaded.with_all_configs(lambda kind: _configs(store, kind))
