"""The cluster as a value: brokers, topics, partitions, configs, access control lists, delegation tokens.

Owns `ClusterState` and what it is made of. Never decides (controller/topic_plans.py) and never stores (a MetadataStore
does); handlers read one immutable state for the length of a request. A topic id is 16 bytes; a leader of -1 means none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from kbroker.quota.all_quotas import Quotas, changed
from kbroker.security.authorizer.acls import Acls
from kbroker.security.tokens.known import NO_TOKENS, Tokens

NO_LEADER = -1
OFFSETS_TOPIC, TRANSACTIONS_TOPIC = "__consumer_offsets", "__transaction_state"
"""The coordinators' topics."""
_FIELDS = {
    "brokers": "broker_configs",
    "groups": "group_configs",
    "users": "user_configs",
    "clients": "client_configs",
    "ips": "ip_configs",
    "client-metrics": "client_metrics_configs",
}
"""Where the configs of each kind stand."""
CONFIG_KINDS = tuple(_FIELDS)
"""What has dynamic configs, beside topics."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who has a partition: replicas in order of preference, the in-sync ones, the leader and its epoch."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int = 0
    offline: tuple[int, ...] = ()
    """Replicas whose log directory has failed; known while the broker runs, never stored."""


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic: its id, its partitions by index, and the configs set on it (not the defaults)."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """Where clients reach a broker, by listener name; where no listener is named, at `host` and `port`."""

    node_id: int
    host: str
    port: int
    rack: str | None = None
    listeners: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    cordoned: bool = False
    """Whether all its log directories take no new partitions (KIP-1066)."""

    def by(self, listener: str) -> BrokerEndpoint | None:
        """Return the address to tell a client that came by `listener`; None where this broker has no such listener."""
        if not self.listeners:
            return self
        if listener not in self.listeners:
            return None
        host, port = self.listeners[listener]
        return replace(self, host=host, port=port)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Everything the cluster agrees on. `version` grows by one with every change.

    `broker_configs` holds dynamic broker configs by node id, "" being the cluster-wide default; `group_configs` those
    of groups by group id.
    """

    cluster_id: str
    version: int = 0
    controller_id: int = NO_LEADER
    """The broker that decides, as far as this one knows."""
    brokers: Mapping[int, BrokerEndpoint] = field(default_factory=dict)
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    topic_names: Mapping[bytes, str] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    user_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """What is set of users, by their names as paths have them: credentials, never to be shown, and quotas.

    Also of users with a client id, USER/clients/CLIENT; "" are all users that have nothing of their own.
    """
    client_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What is set of client ids, by their names as paths have them."""
    ip_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What is set of addresses."""
    client_metrics_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The subscriptions to clients' metrics, by name (KIP-714)."""
    quotas: Quotas = field(default_factory=Quotas)
    """The quotas among what is set of users, client ids and addresses."""
    features: Mapping[str, int] = field(default_factory=dict)
    """Finalized feature levels."""
    features_epoch: int = 0
    """How often they have been changed."""
    acls: Acls = field(default_factory=dict)
    """Who may do what, where an authorizer asks."""
    tokens: Tokens = NO_TOKENS
    """Delegation tokens, where this broker has the secret that they are made with."""

    def partition(self, topic: str, index: int) -> PartitionState | None:
        """Return a partition's state, or None when the topic or the index does not exist."""
        state = self.topics.get(topic)
        return state.partitions[index] if state is not None and 0 <= index < len(state.partitions) else None

    def configs(self, kind: str, name: str) -> Mapping[str, str]:
        """Return the configs of something, of topics one that exists; `kind` is as in `with_configs`."""
        return self.topics[name].configs if kind == "topics" else self.all_configs(kind).get(name, {})

    def all_configs(self, kind: str) -> Mapping[str, Mapping[str, str]]:
        """Return the configs of one of CONFIG_KINDS, by name."""
        held: Mapping[str, Mapping[str, str]] = getattr(self, _FIELDS[kind])
        return held

    def reached_by(self, listener: str) -> list[BrokerEndpoint]:
        """Return the brokers that have a listener, each at the address to tell a client that came by it."""
        return [reached for broker in self.brokers.values() if (reached := broker.by(listener)) is not None]

    def with_topic(self, topic: TopicState) -> ClusterState:
        """Return the state with `topic` added or replaced."""
        return self.with_topics((topic,))

    def with_topics(self, topics: Iterable[TopicState]) -> ClusterState:
        """Return the state with topics added or replaced, of several of one name the last one."""
        by_name, names = dict(self.topics), dict(self.topic_names)
        for topic in topics:
            by_name[topic.name] = topic
            names[topic.topic_id] = topic.name
        return replace(self, version=self.version + 1, topics=by_name, topic_names=names)

    def with_configs(self, kind: str, name: str, configs: Mapping[str, str]) -> ClusterState:
        """Return the state with other configs of something, of topics one that exists; empty: it has none.

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

    def without_topic(self, name: str) -> ClusterState:
        """Return the state without the topic `name`, which must exist."""
        return self.without_topics((name,))

    def without_topics(self, gone: Iterable[str]) -> ClusterState:
        """Return the state without the topics `gone`, which must exist."""
        topics, names = dict(self.topics), dict(self.topic_names)
        for name in gone:
            del names[topics.pop(name).topic_id]
        return replace(self, version=self.version + 1, topics=topics, topic_names=names)
