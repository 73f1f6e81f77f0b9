"""The node itself and its network: identity, listeners, sockets, connections and threads.

Owns these declarations: names, types, defaults and limits are Kafka's, sentences are ours. Never parses or checks.
"""

from __future__ import annotations

from typing import Final

from kbroker.config.model import ConfigKey, ConfigType, Mode, accepted, key
from kbroker.config.validators import NOT_NULL, at_least, list_of, one_of

BOOLEAN: Final = ConfigType.BOOLEAN
INT: Final = ConfigType.INT
LIST: Final = ConfigType.LIST
LONG: Final = ConfigType.LONG
STRING: Final = ConfigType.STRING
CLUSTER_WIDE: Final = Mode.CLUSTER_WIDE
PER_BROKER: Final = Mode.PER_BROKER
READ_ONLY: Final = Mode.READ_ONLY
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

# Two lines a key read as a table.
# fmt: off
KEYS: Final[tuple[ConfigKey, ...]] = (
    key("node.id", INT, 1, at_least(0), READ_ONLY,
      "Number of this broker in the cluster."),
    key("broker.id", INT, -1, None, READ_ONLY,
      "Older name of node.id; when both are set they must be equal."),
    key("broker.rack", STRING, None, None, READ_ONLY,
      "Rack of this broker, told to clients and used to spread replicas."),
    accepted("process.roles", LIST, None, list_of("broker", "controller", empty=False), READ_ONLY,
      "Roles of a KRaft process; accepted so that existing files work."),
    key("listeners", LIST, ("PLAINTEXT://:9092",), list_of(empty=False), PER_BROKER,
      "Where the broker listens, as NAME://host:port; port 0 takes a free port, an empty host listens everywhere."),
    key("advertised.listeners", LIST, None, list_of(empty=False, null=True), READ_ONLY,
      "Addresses that clients are told to connect to; by default those of listeners."),
    key("listener.security.protocol.map", STRING,
      "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", None, PER_BROKER,
      "Security protocol of each listener name."),
    accepted("security.inter.broker.protocol", STRING,
      "PLAINTEXT", one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), READ_ONLY,
      "Security protocol between brokers where inter.broker.listener.name is not set."),
    accepted("inter.broker.listener.name", STRING, None, None, READ_ONLY,
      "Name of the listener over which brokers talk to each other."),
    accepted("early.start.listeners", LIST, None, list_of(null=True), READ_ONLY,
      "Listeners that open before the broker has finished its authorization setup."),
    key("socket.send.buffer.bytes", INT, 102_400, None, READ_ONLY,
      "Send buffer of each connection in bytes; -1 leaves it to the system."),
    key("socket.receive.buffer.bytes", INT, 102_400, None, READ_ONLY,
      "Receive buffer of each connection in bytes; -1 leaves it to the system."),
    key("socket.request.max.bytes", INT, 104_857_600, at_least(1), READ_ONLY,
      "Largest request in bytes; a larger one closes its connection."),
    key("socket.listen.backlog.size", INT, 50, at_least(1), READ_ONLY,
      "Connections that may wait to be accepted."),
    key("max.connections", INT, INT_MAX, at_least(0), CLUSTER_WIDE,
      "Most connections to this broker at a time."),
    key("max.connections.per.ip", INT, INT_MAX, at_least(0), CLUSTER_WIDE,
      "Most connections from one address at a time."),
    key("max.connections.per.ip.overrides", STRING, "", None, CLUSTER_WIDE,
      "Exceptions from max.connections.per.ip, as host:limit pairs separated by commas."),
    accepted("max.connection.creation.rate", INT, INT_MAX, at_least(0), CLUSTER_WIDE,
      "Most new connections per second."),
    key("connections.max.idle.ms", LONG, 600_000, None, READ_ONLY,
      "Time in ms without a request after which a connection is closed."),
    accepted("connection.failed.authentication.delay.ms", INT, 100, at_least(0), READ_ONLY,
      "Time in ms that the answer to a failed authentication is held back."),
    accepted("queued.max.requests", INT, 500, at_least(1), READ_ONLY,
      "Requests that may wait for a request thread; kbroker has one event loop and no such queue."),
    accepted("queued.max.request.bytes", LONG, -1, None, READ_ONLY,
      "Bytes of requests that may wait for a request thread; kbroker has no such queue."),
    accepted("num.network.threads", INT, 3, at_least(1), CLUSTER_WIDE,
      "Network threads; kbroker has one event loop."),
    accepted("num.io.threads", INT, 8, at_least(1), CLUSTER_WIDE,
      "Request threads; kbroker has one event loop."),
    accepted("background.threads", INT, 10, at_least(1), CLUSTER_WIDE,
      "Threads for background work; kbroker starts what it needs."),
    accepted("request.timeout.ms", INT, 30000, None, READ_ONLY,
      "Time in ms that a client of the broker's own waits for an answer."),
    accepted("socket.connection.setup.timeout.ms", LONG, 10000, None, READ_ONLY,
      "Time in ms that a connection between brokers may take to open, at first."),
    accepted("socket.connection.setup.timeout.max.ms", LONG, 30000, None, READ_ONLY,
      "Time in ms that a connection between brokers may take to open, at most."),
    key("fetch.max.bytes", INT, 57_671_680, at_least(1024), READ_ONLY,
      "Most bytes of records in one answer to Fetch; the first batch is always sent whole."),
    key("max.incremental.fetch.session.cache.slots", INT, 1000, at_least(0), READ_ONLY,
      "Most incremental fetch sessions remembered at a time."),
    key("max.request.partition.size.limit", INT, 2000, at_least(1), READ_ONLY,
      "Most partitions in one answer of APIs that page their answers."),
    accepted("fetch.purgatory.purge.interval.requests", INT, 1000, None, READ_ONLY,
      "Purge interval of waiting fetches, in requests; kbroker forgets a waiting request at once."),
    accepted("producer.purgatory.purge.interval.requests", INT, 1000, None, READ_ONLY,
      "Purge interval of waiting produces, in requests; kbroker forgets a waiting request at once."),
    accepted("delete.records.purgatory.purge.interval.requests", INT, 1, None, READ_ONLY,
      "Purge interval of waiting record deletions, in requests; kbroker forgets a waiting request at once."),
    accepted("controlled.shutdown.enable", BOOLEAN, True, None, READ_ONLY,
      "Whether a stopping broker first hands its leaderships to others."),
    accepted("server.max.startup.time.ms", LONG, LONG_MAX, at_least(0), READ_ONLY,
      "Longest time in ms that a start may take.", internal=True),
    accepted("config.providers", LIST, (), list_of(), CLUSTER_WIDE,
      "Names of config providers that resolve variables in values."),
    accepted("authorizer.class.name", STRING, "", NOT_NULL, READ_ONLY,
      "Class of the authorizer; empty allows everything."),
    accepted("unstable.api.versions.enable", BOOLEAN, False, None, READ_ONLY,
      "Whether API versions under development are offered.", internal=True),
    accepted("unstable.feature.versions.enable", BOOLEAN, False, None, READ_ONLY,
      "Whether feature versions under development are offered.", internal=True),
)
# fmt: on
