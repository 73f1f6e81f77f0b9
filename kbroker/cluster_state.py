"""The cluster as a value: brokers, topics, partitions, configs, access control lists, delegation tokens.

Owns `ClusterState` and its parts. Never decides about placement (controller/topic_plans.py does) and never stores (a
MetadataStore does). A handler reads one immutable state for the complete request. A topic id has 16 bytes; a leader of
-1 means no leader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from kbroker.quota.configured import KINDS, Quotas, changed, quotas_in
from kbroker.security.authorizer.acls import Acls
from kbroker.security.tokens.known import NO_TOKENS, Tokens

NO_LEADER = -1
OFFSETS_TOPIC, TRANSACTIONS_TOPIC = "__consumer_offsets", "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
REMOTE_LOG_METADATA_TOPIC = "__remote_log_metadata"
"""The coordinators' topics."""
VIEW_SOURCE, VIEW_FILTER = "view.source", "view.filter"
"""The configs of a view: the topic that it shows, and the expression that selects its records."""
_FIELDS = {
    "brokers": "broker_configs",
    "groups": "group_configs",
    "users": "user_configs",
    "clients": "client_configs",
    "ips": "ip_configs",
    "client-metrics": "client_metrics_configs",
}
"""The name of the field that contains the configs of each kind."""
CONFIG_KINDS = tuple(_FIELDS)
"""The kinds of entities with dynamic configs, other than topics."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The placement of a partition: replicas in order of preference, in-sync replicas, leader, and leader epoch."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int = 0
    offline: tuple[int, ...] = ()
    """Replicas whose log directory has failed.

    They are known while the broker runs, and never stored.
    """


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic: its id, its partitions by index, and the configs set on it (not the defaults)."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    own_id: bytes = b""
    """The stored id of a view; empty for other topics.

    The `topic_id` of a view follows from its stored id and its source.
    """

    @property
    def source(self) -> str | None:
        """The source of a view; None for other topics."""
        return self.configs.get(VIEW_SOURCE) or None

    @property
    def stored_id(self) -> bytes:
        """The id in the form in which it is stored."""
        return self.own_id or self.topic_id


def view_of(view: TopicState, source: TopicState | None) -> TopicState:
    """Return a view with the partitions of its source; without partitions if the source is missing or is a view.

    If the source is created again, its view is a new topic for clients, because offsets and leader epochs begin anew.
    So the id of a view is computed from its stored id and the id of its source.
    """
    if source is not None and source.source is not None:
        source = None
    own = view.stored_id
    of_source = b"" if source is None else source.topic_id
    partitions = () if source is None else source.partitions
    return replace(view, topic_id=hashlib.sha256(own + of_source).digest()[:16], partitions=partitions, own_id=own)


Views = Mapping[str, frozenset[str]]
"""The names of the views, by the name of their source."""


def derived_views(
    views: Views, before: Mapping[str, TopicState], topics: dict[str, TopicState], names: dict[bytes, str],
    changed: Iterable[str],
) -> Views:  # fmt: skip
    """Derive the views among changed topics, and the views of changed sources; return all views by their sources.

    `topics` and `names` (by id) already contain the changed topics. This function also updates `topics` and `names` in
    place.
    """
    affected: dict[str, None] = {}
    for name in changed:
        old, new = before.get(name), topics.get(name)
        old_source = None if old is None else old.source
        source = None if new is None else new.source
        if old_source != source:
            held = dict(views)
            if old_source is not None and old_source in held:
                held[old_source] -= {name}
                if not held[old_source]:
                    del held[old_source]
            if source is not None:
                held[source] = held.get(source, frozenset()) | {name}
            views = held
        if source is not None:
            affected[name] = None
        if views and name in views:
            affected.update(dict.fromkeys(sorted(views[name])))
    for name in affected:
        known = topics.get(name)
        if known is not None and known.source is not None:
            names.pop(known.topic_id, None)
            found = topics[name] = view_of(known, topics.get(known.source))
            names[found.topic_id] = name
    return views


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """A broker's addresses by listener name. Without named listeners, its address is `host` and `port`."""

    node_id: int
    host: str
    port: int
    rack: str | None = None
    listeners: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    cordoned: bool = False
    """Whether all of the broker's log directories refuse new partitions (KIP-1066)."""

    def by(self, listener: str) -> BrokerEndpoint | None:
        """Return the address for clients of a listener; None if this broker does not have the listener."""
        if not self.listeners:
            return self
        if listener not in self.listeners:
            return None
        host, port = self.listeners[listener]
        return replace(self, host=host, port=port)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The state that the complete cluster shares. `version` grows by one with every change.

    `broker_configs` contains dynamic broker configs by node id ("" for the cluster-wide default); `group_configs`
    contains configs of groups by group id.
    """

    cluster_id: str
    version: int = 0
    controller_id: int = NO_LEADER
    """The id of the active controller, according to this broker."""
    brokers: Mapping[int, BrokerEndpoint] = field(default_factory=dict)
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    topic_names: Mapping[bytes, str] = field(default_factory=dict)
    views: Views = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    user_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """The quotas and credentials of users, by the users' names in ZooKeeper paths. Never show the credentials.

    A user with a client id is USER/clients/CLIENT; "" stands for all users without configs of their own.
    """
    client_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The configs of client ids, by the names in ZooKeeper paths."""
    ip_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The configs of IP addresses."""
    client_metrics_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The subscriptions to clients' metrics, by name (KIP-714)."""
    quotas: Quotas = field(default_factory=Quotas)
    """The quotas from the configs of users, client ids and addresses."""
    features: Mapping[str, int] = field(default_factory=dict)
    """Finalized feature levels."""
    features_epoch: int = 0
    """The number of changes to the feature levels."""
    acls: Acls = field(default_factory=dict)
    """The access control lists, for an authorizer."""
    tokens: Tokens = NO_TOKENS
    """Delegation tokens. This broker has them only if it has the secret key that signs them."""

    def partition(self, topic: str, index: int) -> PartitionState | None:
        """Return a partition's state, or None if the topic or the index does not exist."""
        state = self.topics.get(topic)
        return state.partitions[index] if state is not None and 0 <= index < len(state.partitions) else None

    def configs(self, kind: str, name: str) -> Mapping[str, str]:
        """Return the configs of an entity; a topic must exist. `kind` is as in `with_configs`."""
        return self.topics[name].configs if kind == "topics" else self.all_configs(kind).get(name, {})

    def all_configs(self, kind: str) -> Mapping[str, Mapping[str, str]]:
        """Return the configs of one of CONFIG_KINDS, by name."""
        held: Mapping[str, Mapping[str, str]] = getattr(self, _FIELDS[kind])
        return held

    def reached_by(self, listener: str) -> list[BrokerEndpoint]:
        """Return the brokers that have a listener, each with the address for clients of this listener."""
        return [reached for broker in self.brokers.values() if (reached := broker.by(listener)) is not None]

    def with_topic(self, topic: TopicState) -> ClusterState:
        """Return the state with `topic` added or replaced."""
        return self.with_topics((topic,))

    def with_topics(self, topics: Iterable[TopicState]) -> ClusterState:
        """Return the state with topics added or replaced.

        If several topics have the same name, the last topic counts.
        """
        by_name, names = dict(self.topics), dict(self.topic_names)
        changed = []
        for topic in topics:
            known = by_name.get(topic.name)
            if known is not None and known.topic_id != topic.topic_id:
                names.pop(known.topic_id, None)
            by_name[topic.name] = topic
            names[topic.topic_id] = topic.name
            changed.append(topic.name)
        views = derived_views(self.views, self.topics, by_name, names, changed)
        return replace(self, version=self.version + 1, topics=by_name, topic_names=names, views=views)

    def with_all_configs(self, known: Callable[[str], Mapping[str, Mapping[str, str]]]) -> ClusterState:
        """Return the state with new configs of all kinds except topics; `known` returns a kind's configs, by name."""
        configs = {kind: known(kind) for kind in CONFIG_KINDS}
        quotas = quotas_in({kind: configs[kind] for kind in KINDS})
        new: dict[str, Any] = {_FIELDS[kind]: held for kind, held in configs.items()}
        return replace(self, quotas=quotas, **new)

    def with_configs(self, kind: str, name: str, configs: Mapping[str, str]) -> ClusterState:
        """Return the state with new configs of an entity; a topic must exist.

        Empty configs remove the entity's configs.

        `kind` is "topics", "brokers", "groups", "users", "clients", "ips" or "client-metrics".
        """
        if kind == "topics":
            return self.with_topic(replace(self.topics[name], configs=dict(configs)))
        held = dict(self.all_configs(kind))
        held.pop(name, None)
        if configs:
            held[name] = dict(configs)
        quotas = changed(self.quotas, kind, name, configs)
        new: dict[str, Any] = {_FIELDS[kind]: held}
        return replace(self, version=self.version + 1, quotas=quotas, **new)

    def without_topics(self, deleted: Iterable[str]) -> ClusterState:
        """Return the state without the topics `deleted`, which must exist."""
        topics, names = dict(self.topics), dict(self.topic_names)
        gone = list(deleted)
        for name in gone:
            del names[topics.pop(name).topic_id]
        views = derived_views(self.views, self.topics, topics, names, gone)
        return replace(self, version=self.version + 1, topics=topics, topic_names=names, views=views)
