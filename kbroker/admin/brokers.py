"""The brokers of a cluster: their replicas, log directories and APIs.

Owns the description of a broker. Never prints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kafka.protocol.api_key import ApiKey

from kbroker.admin.errors import AdminError, check_code
from kbroker.admin.own_request import ask_any, ask_broker, ask_controller, id_of
from kbroker.admin.placement import Key
from kbroker.protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from kbroker.protocol.messages.connections import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.messages.inter_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

_WITH_FENCED: Final = 2
"""The first DescribeCluster version that returns fenced brokers: these are registered but serve no clients."""


def listed_brokers(admin: Any, partitions: Mapping[Key, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the live brokers, each with the numbers of `partitions` that it leads and hosts."""
    cluster = admin.describe_cluster()
    leads = Counter(each["leader_id"] for each in partitions.values())
    has = Counter(broker for each in partitions.values() for broker in each["replica_nodes"])
    late = Counter(
        broker for each in partitions.values() for broker in each["replica_nodes"] if broker not in each["isr_nodes"]
    )
    found = []
    for each in cluster["brokers"]:
        number = id_of(each)
        found.append(
            {
                "id": number,
                "address": f"{each['host']}:{each['port']}",
                "rack": each.get("rack"),
                "controller": cluster["controller_id"] == number,
                "leads": leads[number],
                "replicas": has[number],
                "late": late[number],
            }
        )
    return sorted(found, key=lambda each: int(each["id"]))


def described_cluster(admin: Any, *, fenced: bool = False) -> dict[str, Any]:
    """Return the cluster's id, its controller and its brokers' endpoints.

    Raises AdminError. With `fenced`, the endpoints of fenced brokers are included.
    """
    request = DescribeClusterRequest(include_fenced_brokers=fenced)
    answer = ask_any(admin, request, DescribeClusterResponse, _WITH_FENCED if fenced else 0)
    if answer is None:
        what = "fenced brokers (Apache Kafka does since 4.0)" if fenced else "its id (Apache Kafka does since 2.8)"
        raise AdminError(f"this broker does not report {what}")
    check_code(answer.error_code, "cannot describe the cluster", answer.error_message)
    return {
        "cluster_id": answer.cluster_id,
        "controller": answer.controller_id if answer.controller_id >= 0 else None,
        "brokers": [
            {"id": each.broker_id, "address": f"{each.host}:{each.port}", "rack": each.rack, "fenced": each.is_fenced}
            for each in sorted(answer.brokers, key=lambda each: each.broker_id)
        ],
    }


def unregister_broker(admin: Any, broker_id: int) -> None:
    """Unregister a dead broker from a cluster on KRaft. Raises AdminError."""
    answer = ask_controller(admin, UnregisterBrokerRequest(broker_id), UnregisterBrokerResponse)
    check_code(answer.error_code, f"cannot unregister broker {broker_id}", answer.error_message)


def one_broker(admin: Any, partitions: Mapping[Key, Mapping[str, Any]], broker_id: int) -> dict[str, Any]:
    """Return one broker of `listed_brokers`. Raises AdminError if the broker is not alive."""
    for each in listed_brokers(admin, partitions):
        if each["id"] == broker_id:
            return each
    raise AdminError(f"no live broker has id {broker_id}; `kbroker broker list` shows the live brokers")


def listed_replicas(admin: Any, broker_ids: Sequence[int], topics: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the replicas of some or all topics in brokers' log directories: size, lag, and whether a replica moves."""
    return [
        {
            "broker": int(broker["broker"]),
            "path": directory["log_dir"],
            "topic": topic["name"],
            "partition": each["partition_index"],
            "bytes": each["partition_size"],
            "offset_lag": each["offset_lag"],
            "is_future": each["is_future_key"],
        }
        for broker in admin.describe_log_dirs(brokers=list(broker_ids))
        for directory in broker["log_dirs"]
        for topic in sorted(directory["topics"], key=lambda topic: str(topic["name"]))
        for each in sorted(topic["partitions"], key=lambda each: int(each["partition_index"]))
        if not topics or topic["name"] in topics
    ]


def described_log_dirs(admin: Any, broker_id: int) -> list[dict[str, Any]]:
    """Return the log directories of a broker: their content, and the free space (-1 if unknown)."""
    return [
        {
            "path": each["log_dir"],
            "replicas": sum(len(topic["partitions"]) for topic in each["topics"]),
            "bytes": sum(p["partition_size"] for topic in each["topics"] for p in topic["partitions"]),
            "usable_bytes": each.get("usable_bytes", -1),
        }
        for answer in admin.describe_log_dirs(brokers=[broker_id])
        for each in answer["log_dirs"]
    ]


def served_apis(admin: Any, broker_id: int) -> list[tuple[int, str | None, int, int]]:
    """Return the key, the name, and the lowest and highest version of each API that a broker serves."""
    request = ApiVersionsRequest(client_software_name="kbroker-cli", client_software_version="1")
    answer = ask_broker(admin, broker_id, request, ApiVersionsResponse)
    served = sorted(answer.api_keys, key=lambda each: each.api_key)
    return [(each.api_key, _api_name(each.api_key), each.min_version, each.max_version) for each in served]


def _api_name(key: int) -> str | None:
    """Return Kafka's name of an API; None if kafka-python does not know the API."""
    try:
        return str(ApiKey(key).name)
    except ValueError:
        return None
