"""Long requests of every API, made from the declarations of the messages: each list of each request, made long.

Owns which lists a request has and how their elements are filled. A row is one list of one API, whose elements are all
different (`absent`), all the same (`same`), or name existing things (`known`). A list is sent in the highest served
version that has it. A new API gets rows automatically.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kbroker import handlers
from kbroker.handlers.registry import Api, served
from kbroker.protocol.schema import FieldSpec, Scalar

handlers.load_all(in_cluster=True)

TOPIC, GROUP, TRANSACTION = "fair-topic", "fair-group", "fair-transaction"
"""What these requests need: a topic of one partition; a group and a transactional id may exist."""
NO_LISTS = frozenset(
    {
        "AddOffsetsToTxn",
        "AllocateProducerIds",
        "ApiVersions",
        "ControlledShutdown",
        "DescribeAcls",
        "DescribeCluster",
        "EndTxn",
        "ExpireDelegationToken",
        "GetTelemetrySubscriptions",
        "Heartbeat",
        "InitProducerId",
        "PushTelemetry",
        "RenewDelegationToken",
        "SaslAuthenticate",
        "SaslHandshake",
    }
)
"""APIs whose requests have no list: their work does not grow with the size of the request."""
FILLS = ("absent", "same", "known")

_TOPIC_NAMES = frozenset({"name", "topic", "topic_name", "topic_names", "resource_name", "subscribed_topic_names"})
_GROUPS = frozenset({"group_id", "groups", "group_ids", "groups_names", "coordinator_keys", "key"})
_TRANSACTIONS = frozenset({"transactional_id", "transactional_ids", "v3_and_below_transactional_id"})
_VALUES: dict[str, Any] = {
    "acks": 1,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "member_id": "",
    "broker_epoch": -1,
    "broker_id": 1,
    "client_software_name": "fair",
    "controller_epoch": 1_000,
    "controller_id": 1,
    "client_software_version": "1",
    "current_leader_epoch": -1,
    "entity_type": "user",
    "feature": "group.version",
    "last_fetched_epoch": -1,
    "leader": 1,
    "leader_epoch": 1_000,
    "max_bytes": 64 << 20,
    "max_version_level": 1,
    "max_wait_ms": 0,
    "member_epoch": 0,
    "min_bytes": 1,
    "num_partitions": 1,
    "partition_max_bytes": 1 << 20,
    "partition_epoch": 0,
    "path": "/nowhere",
    "producer_epoch": 0,
    "producer_id": 1,
    "protocol_type": "consumer",
    "rebalance_timeout_ms": 30_000,
    "replica_id": -1,
    "replica_state": None,
    "replication_factor": 1,
    "resource_type": 2,
    "response_partition_limit": 2_000,
    "retention_time_ms": -1,
    "session_id": 0,
    "session_epoch": -1,
    "session_timeout_ms": 30_000,
    "timeout_ms": 1_000,
    "timestamp": -1,
    "validate_only": True,
    "count": 2,
    "duration_filter": -1,
    "transactional_id_pattern": None,
    "subscribed_topic_regex": None,
    "server_assignor": None,
    "instance_id": None,
    "group_instance_id": None,
    "rack_id": None,
    "cursor": None,
}
_FLAGS = frozenset(
    {"include_synonyms", "include_documentation", "include_topic_authorized_operations", "require_stable"}
)


@dataclass(frozen=True, slots=True)
class LongList:
    """A list of a request: its API, the fields that lead to it, and the version it is sent in."""

    api: Api
    path: tuple[str, ...]
    version: int

    def __str__(self) -> str:
        return f"{self.api.name} v{self.version} {'.'.join(self.path)}"

    def filled(self, count: int, fill: str = "absent", topic_id: bytes = b"") -> Any:
        """Return a request with `count` elements in this list, and one in each list that leads to it."""
        return _Filler(self.version, fill, topic_id).message(self.api.request, self.path, count)


def lists_of(api: Api) -> Iterator[LongList]:
    """Yield every list that a request of an API has in a served version."""
    seen: dict[tuple[str, ...], int] = {}
    for version in range(api.versions.low, api.versions.high + 1):
        for path in _paths(api.request, version, ()):
            seen[path] = version
    for path, version in seen.items():
        yield LongList(api, path, version)


def measured(*, of_clusters: bool = False) -> list[Api]:
    """Return the APIs that a single node serves, or else those that only a node of a cluster serves."""
    every = sorted(served(in_cluster=True).items())
    return [api for _, api in every if api.cluster == of_clusters]


def every_list(*, of_clusters: bool = False) -> list[LongList]:
    """Return every list of every API that is measured together."""
    return [each for api in measured(of_clusters=of_clusters) for each in lists_of(api)]


def _paths(struct: type[Any], version: int, prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for spec in struct.SPECS:
        if version not in spec.versions:
            continue
        path = (*prefix, spec.name)
        if spec.array:
            yield path
        if not isinstance(spec.kind, Scalar):
            yield from _paths(spec.kind, version, path)


class _Filler:
    def __init__(self, version: int, fill: str, topic_id: bytes) -> None:
        self._version = version
        self._fill = fill
        self._topic_id = topic_id

    def message(self, struct: type[Any], path: tuple[str, ...], count: int, number: int = 0) -> Any:
        fields = {}
        for spec in struct.SPECS:
            if self._version in spec.versions:
                here = bool(path) and spec.name == path[0]
                fields[spec.name] = self._field(spec, path[1:] if here else (), count if here else 0, number)
        return struct(**fields)

    def _field(self, spec: FieldSpec, rest: tuple[str, ...], count: int, number: int) -> Any:
        scalar = isinstance(spec.kind, Scalar)
        if spec.array:
            length = count if count and not rest else 1 if rest else 0
            return [self._element(spec, rest, count, i) for i in range(length)]
        if scalar:
            return self._scalar(spec, number)
        return self.message(spec.kind, rest, count, number) if rest else spec.default_value()

    def _element(self, spec: FieldSpec, rest: tuple[str, ...], count: int, number: int) -> Any:
        if isinstance(spec.kind, Scalar):
            return self._scalar(spec, number)
        return self.message(spec.kind, rest, count, number)

    def _scalar(self, spec: FieldSpec, number: int) -> Any:
        name, kind = spec.name, spec.kind.name
        if name in _VALUES and (_VALUES[name] is not None or self._version in spec.nullable):
            return _VALUES[name]
        if self._fill != "absent":
            number = 0
        if kind == "string":
            if self._fill == "known":
                for names, value in ((_TOPIC_NAMES, TOPIC), (_GROUPS, GROUP), (_TRANSACTIONS, TRANSACTION)):
                    if name in names:
                        return value
            return f"absent.{number}"
        if kind == "uuid":
            return self._topic_id if self._fill == "known" and self._topic_id else uuid.UUID(int=number + 1).bytes
        if kind in ("bytes", "records"):
            return b""
        if kind == "bool":
            return name in _FLAGS
        if kind == "float64":
            return 0.0
        return number % 100 if kind == "int8" else number % 30_000 if kind in ("int16", "uint16") else number
