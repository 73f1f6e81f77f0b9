"""Apache Kafka 3.9's znodes: their paths and encodings.

Owns the encoding and decoding of paths and JSON, but not their meaning. A writer omits the fields that Kafka omits, and
writes strings where Kafka writes strings (timestamps, the ends of a block of producer ids). A reader accepts any field
order and ignores unknown fields. An unreadable znode raises Unreadable, which names the znode.

    /cluster/id                                 ClusterId
    /controller, /controller_epoch              ControllerNode, a decimal number
    /brokers/ids/N                              Registration
    /brokers/topics/T                           Assignment
    /brokers/topics/T/partitions/P/state        LeaderAndIsr
    /config/{topics,brokers,clients,users,ips}/ENTITY  configs
    /config/groups/ENTITY                       configs, which only kbroker writes
    /config/changes/config_change_N             ConfigChange
    /admin/delete_topics/T                      no data
    /admin/reassign_partitions                  Reassignments
    /admin/preferred_replica_election           partitions
    /isr_change_notification/isr_change_N       partitions
    /log_dir_event_notification/log_dir_event_N LogDirEvent
    /latest_producer_id_block                   ProducerIdBlock
    /feature                                    Features
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kbroker.protocol.wire import parse_uuid, uuid_text

BROKER_IDS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
CLUSTER_ID: Final = "/cluster/id"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
CONFIG: Final = "/config"
CONFIG_CHANGES: Final = "/config/changes"
CONFIG_CHANGE: Final = f"{CONFIG_CHANGES}/config_change_"
DELETE_TOPICS: Final = "/admin/delete_topics"
REASSIGNMENTS: Final = "/admin/reassign_partitions"
PREFERRED_ELECTION: Final = "/admin/preferred_replica_election"
ISR_CHANGES: Final = "/isr_change_notification"
LOG_DIR_EVENTS: Final = "/log_dir_event_notification"
LOG_DIR_EVENT: Final = f"{LOG_DIR_EVENTS}/log_dir_event_"
PRODUCER_IDS: Final = "/latest_producer_id_block"
FEATURE: Final = "/feature"
PERSISTENT: Final = (
    "/consumers",
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    "/brokers/seqid",
    ISR_CHANGES,
    PRODUCER_IDS,
    LOG_DIR_EVENTS,
    *(f"{CONFIG}/{kind}" for kind in ("topics", "clients", "users", "brokers", "ips", "groups")),
)
"""Znodes without data. Every broker creates these znodes and their parents at its start if they are missing."""
DEFAULT_ENTITY: Final = "<default>"
RECOVERING: Final = 1

A = TypeVar("A")


class Unreadable(Exception):  # noqa: N818 - describes the znode
    """A znode has invalid content; the message names the znode."""


def topic_path(topic: str) -> str:
    """Return the path of a topic's assignment."""
    return f"{TOPICS}/{topic}"


def partition_path(topic: str, index: int) -> str:
    """Return the path of a partition."""
    return f"{TOPICS}/{topic}/partitions/{index}"


def state_path(topic: str, index: int) -> str:
    """Return the path of a partition's leader and in-sync replicas."""
    return f"{TOPICS}/{topic}/partitions/{index}/state"


def _bytes(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def read(path: str, data: bytes, reader: Callable[[Mapping[str, Any]], A]) -> A:
    """Return the result of `reader` for a znode's JSON object. Whatever the bytes are, this raises only Unreadable."""
    try:
        value = json.loads(data)
        if not isinstance(value, dict):
            raise TypeError("not an object")
        return reader(value)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        problem = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise Unreadable(f"{path} cannot be read: {problem}") from None


def read_number(path: str, data: bytes) -> int:
    """Return the number in /controller_epoch. Raises Unreadable."""
    try:
        return int(data)
    except ValueError:
        raise Unreadable(f"{path} cannot be read: not a number") from None


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a number")
    return value


def _numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is not a list")
    return tuple(_number(each) for each in values)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


@dataclass(frozen=True, slots=True)
class ClusterId:
    """/cluster/id: the id of the cluster."""

    id: str

    def encode(self) -> bytes:
        return _bytes({"version": "1", "id": self.id})

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> ClusterId:
        return cls(_text(value["id"]))


@dataclass(frozen=True, slots=True)
class ControllerNode:
    """/controller: the controller, and the start of its term in ms. On ZooKeeper the KRaft controller's epoch is -1."""

    broker_id: int
    timestamp_ms: int
    kraft_controller_epoch: int = -1

    def encode(self) -> bytes:
        return _bytes(
            {
                "version": 2,
                "brokerid": self.broker_id,
                "timestamp": str(self.timestamp_ms),
                "kraftControllerEpoch": self.kraft_controller_epoch,
            }
        )

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> ControllerNode:
        timestamp = int(value.get("timestamp", "-1"))
        return cls(_number(value["brokerid"]), timestamp, _number(value.get("kraftControllerEpoch", -1)))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One listener of a broker."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Registration:
    """/brokers/ids/N: a live broker."""

    endpoints: tuple[Endpoint, ...]
    protocols: Mapping[str, str]
    """Listener name -> security protocol."""
    rack: str | None = None
    timestamp_ms: int = -1
    features: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def encode(self) -> bytes:
        plain = next((each for each in self.endpoints if self.protocols.get(each.listener) == "PLAINTEXT"), None)
        value: dict[str, Any] = {
            "features": {name: dict(levels) for name, levels in self.features.items()},
            "listener_security_protocol_map": dict(self.protocols),
            "endpoints": [f"{each.listener}://{_bracketed(each.host)}:{each.port}" for each in self.endpoints],
            "jmx_port": -1,
            "port": plain.port if plain else -1,
            "host": plain.host if plain else None,
            "version": 5,
            "timestamp": str(self.timestamp_ms),
        }
        if self.rack is not None:
            value["rack"] = self.rack
        return _bytes(value)

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> Registration:
        if _number(value["version"]) < 4:  # older versions have other fields, and no broker of 3.x writes them
            raise ValueError(f"version {value['version']} is too old")
        protocols = {_text(name): _text(kind) for name, kind in value["listener_security_protocol_map"].items()}
        rack = value.get("rack")
        return cls(
            endpoints=tuple(_endpoint(_text(each)) for each in value["endpoints"]),
            protocols=protocols,
            rack=None if rack is None else _text(rack),
            timestamp_ms=int(value.get("timestamp", "-1")),
            features={
                _text(name): {_text(end): _number(level) for end, level in levels.items()}
                for name, levels in (value.get("features") or {}).items()
            },
        )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _endpoint(text: str) -> Endpoint:
    listener, scheme, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not scheme or not colon:
        raise ValueError(f"{text!r} is no endpoint")
    return Endpoint(listener, host.removeprefix("[").removesuffix("]"), int(port))


@dataclass(frozen=True, slots=True)
class Assignment:
    """/brokers/topics/T: the replicas of each partition, in order of preference, and the changes of a reassignment."""

    replicas: Mapping[int, tuple[int, ...]]
    topic_id: bytes | None
    """None if a broker older than 2.8 wrote the znode last."""
    adding: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    removing: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def encode(self) -> bytes:
        value: dict[str, Any] = {"partitions": _by_index(self.replicas)}
        if self.topic_id is not None:
            value["topic_id"] = uuid_text(self.topic_id)
        value["adding_replicas"] = _by_index(self.adding)
        value["removing_replicas"] = _by_index(self.removing)
        value["version"] = 3
        return _bytes(value)

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> Assignment:
        topic_id = value.get("topic_id")
        return cls(
            replicas=_from_index(value["partitions"]),
            topic_id=None if topic_id is None else parse_uuid(_text(topic_id)),
            adding=_from_index(value.get("adding_replicas") or {}),
            removing=_from_index(value.get("removing_replicas") or {}),
        )


def _by_index(replicas: Mapping[int, tuple[int, ...]]) -> dict[str, list[int]]:
    return {str(index): list(each) for index, each in replicas.items()}


def _from_index(value: Mapping[str, Any]) -> dict[int, tuple[int, ...]]:
    return {int(index): _numbers(each) for index, each in value.items()}


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """/brokers/topics/T/partitions/P/state: a leader of -1 means none; the znode's version is the partition epoch."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    """The epoch of the controller that wrote the state."""
    recovering: bool = False
    """Whether the leader was elected from outside the in-sync replicas, and has not reported its recovery yet."""

    def encode(self) -> bytes:
        value = {
            "controller_epoch": self.controller_epoch,
            "leader": self.leader,
            "version": 1,
            "leader_epoch": self.leader_epoch,
            "isr": list(self.isr),
        }
        if self.recovering:
            value["leader_recovery_state"] = RECOVERING
        return _bytes(value)

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> LeaderAndIsr:
        return cls(
            leader=_number(value["leader"]),
            leader_epoch=_number(value["leader_epoch"]),
            isr=_numbers(value["isr"]),
            controller_epoch=_number(value["controller_epoch"]),
            recovering=_number(value.get("leader_recovery_state", 0)) == RECOVERING,
        )


def encode_configs(configs: Mapping[str, str]) -> bytes:
    """Return the bytes of an entity's configs."""
    return _bytes({"version": 1, "config": dict(configs)})


def decode_configs(value: Mapping[str, Any]) -> dict[str, str]:
    """Return an entity's configs."""
    return {_text(key): _text(each) for key, each in value.get("config", {}).items()}


def encode_config_change(entity_path: str) -> bytes:
    """Return the bytes of a notification that an entity's configs have changed, as "topics/T"."""
    return _bytes({"version": 2, "entity_path": entity_path})


def decode_config_change(value: Mapping[str, Any]) -> str:
    """Return the entity's path. Version 1 stores kind and name in two fields."""
    if _number(value["version"]) == 1:
        return f"{_text(value['entity_type'])}/{_text(value['entity_name'])}"
    return _text(value["entity_path"])


def encode_partitions(partitions: Iterable[tuple[str, int]]) -> bytes:
    """Return the bytes of a list of partitions, to elect preferred leaders or to report changed in-sync replicas."""
    return _bytes({"version": 1, "partitions": [{"topic": topic, "partition": index} for topic, index in partitions]})


def decode_partitions(value: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return a list of partitions."""
    return [(_text(each["topic"]), _number(each["partition"])) for each in value["partitions"]]


def encode_reassignments(replicas: Mapping[tuple[str, int], tuple[int, ...]]) -> bytes:
    """Return the bytes of a tool's request: partition -> replicas."""
    rows = [{"topic": topic, "partition": index, "replicas": list(each)} for (topic, index), each in replicas.items()]
    return _bytes({"version": 1, "partitions": rows})


def decode_reassignments(value: Mapping[str, Any]) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return a tool's request: partition -> replicas."""
    return {
        (_text(each["topic"]), _number(each["partition"])): _numbers(each["replicas"]) for each in value["partitions"]
    }


def encode_log_dir_event(broker_id: int) -> bytes:
    """Return the bytes of a notification that a log directory of a broker has failed."""
    return _bytes({"version": 1, "broker": broker_id, "event": 1})


def decode_log_dir_event(value: Mapping[str, Any]) -> int:
    """Return the broker's id."""
    return _number(value["broker"])


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """/latest_producer_id_block: the last allocated block, from its first to its last id, both included."""

    broker_id: int
    first: int
    last: int

    def encode(self) -> bytes:
        return _bytes(
            {"version": 1, "broker": self.broker_id, "block_start": str(self.first), "block_end": str(self.last)}
        )

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> ProducerIdBlock:
        block = cls(_number(value["broker"]), int(value["block_start"]), int(value["block_end"]))
        if not 0 <= block.first <= block.last:
            raise ValueError(f"{block.first} to {block.last} is not a block of producer ids")
        return block


@dataclass(frozen=True, slots=True)
class Features:
    """/feature: finalized features. The first controller that supports features sets `enabled`."""

    levels: Mapping[str, int]
    enabled: bool = True

    def encode(self) -> bytes:
        levels = {name: {"max_version_level": level} for name, level in self.levels.items()}
        return _bytes({"features": levels, "version": 2, "status": int(self.enabled)})

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> Features:
        levels = {_text(name): _number(each["max_version_level"]) for name, each in value["features"].items()}
        return cls(levels, _number(value["status"]) == 1)
