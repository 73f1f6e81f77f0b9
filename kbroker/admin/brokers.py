"""What the brokers of a cluster have, and where it would go without one of them.

Owns how a broker is described, and the plan of a drain, which moves nothing. Never prints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kafka.protocol.api_key import ApiKey

from kbroker.admin.errors import AdminError
from kbroker.admin.own_request import ask_broker
from kbroker.admin.placement import Key
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse


def listed_brokers(admin: Any, partitions: Mapping[Key, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the brokers that live, with how much each of them leads and has of `partitions`."""
    cluster = admin.describe_cluster()
    leads = Counter(each["leader_id"] for each in partitions.values())
    has = Counter(broker for each in partitions.values() for broker in each["replica_nodes"])
    late = Counter(
        broker for each in partitions.values() for broker in each["replica_nodes"] if broker not in each["isr_nodes"]
    )
    found = []
    for each in cluster["brokers"]:
        number = int(each["broker_id"] if "broker_id" in each else each["node_id"])  # Metadata's name for it
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


def one_broker(admin: Any, partitions: Mapping[Key, Mapping[str, Any]], broker_id: int) -> dict[str, Any]:
    """Return one of `listed_brokers`; raises AdminError where it does not live."""
    for each in listed_brokers(admin, partitions):
        if each["id"] == broker_id:
            return each
    raise AdminError(f"no broker with id {broker_id} lives")


def described_log_dirs(admin: Any, broker_id: int) -> list[dict[str, Any]]:
    """Return the log directories of a broker: what lies there, and how much room there is (-1 where not told)."""
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
    """Return key, name, lowest and highest version of the APIs that a broker serves."""
    request = ApiVersionsRequest(client_software_name="kbroker-cli", client_software_version="1")
    answer = ask_broker(admin, broker_id, request, ApiVersionsResponse)
    served = sorted(answer.api_keys, key=lambda each: each.api_key)
    return [(each.api_key, _api_name(each.api_key), each.min_version, each.max_version) for each in served]


def _api_name(key: int) -> str | None:
    """Return Kafka's name of an API; None for one that the client here does not know."""
    try:
        return str(ApiKey(key).name)
    except ValueError:
        return None


def drain_plan(
    broker_id: int, replicas: Mapping[Key, Sequence[int]], racks: Mapping[int, str | None]
) -> tuple[dict[Key, list[int]], list[Key]]:
    """Return the replicas that partitions have without a broker, and the partitions that have no other to go to."""
    load = Counter(broker for each in replicas.values() for broker in each)
    targets: dict[Key, list[int]] = {}
    stuck: list[Key] = []
    for key, known in sorted(replicas.items()):
        if broker_id not in known:
            continue
        others = [each for each in known if each != broker_id]
        used = {racks.get(each) for each in others} - {None}
        free = [each for each in sorted(racks) if each != broker_id and each not in others]
        if not free:
            stuck.append(key)
            continue
        chosen = min(free, key=lambda each: (racks[each] in used, load[each]))
        load[chosen] += 1
        targets[key] = [chosen if each == broker_id else each for each in known]
    return targets, stuck
