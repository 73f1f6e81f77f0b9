"""The page shows the requests to a schema registry, and its contents."""

from __future__ import annotations

from kbroker import Broker, Cluster
from kbroker.long_work import whole
from kbroker.metrics.collection import Idle, collect
from kbroker.schema_registry.tally import ELSEWHERE
from tests.metrics.conftest import Seen, watched
from tests.registry_api.conftest import Http

ROLE = "kafka_schema_registry_master_slave_role_master_slave_role"
SUCCEEDED = "kafka_schema_registry_api_success_count_api_success_count"
FAILED = "kafka_schema_registry_api_failure_count_api_failure_count"
REQUESTS = "kbroker_registry_requests_total"


def test_requests_and_schemas() -> None:
    with watched(Broker(registry=True)) as seen:
        registry = Http(seen.broker.registry_url)
        registry.register("a/b", "string")
        registry.register("a/b", ["string", "null"])
        registry.ok("DELETE", "/subjects/a%2Fb/versions/1")
        assert registry.refused("GET", "/subjects/missing/versions")[0] == 40401
        registry.raw("GET", "/nothing")
        registry.ok("GET", "/schemas/ids/1")
        found = seen.values()
        seconds = seen.value("kbroker_registry_request_seconds_total", endpoint="POST /subjects/{subject}/versions")
        assert seconds is not None
        assert 0 < seconds < 60
        assert seen.value("kbroker_coordinator_partitions", topic="_schemas", state="active") == 1
    assert requests(found) == {
        ("POST /subjects/{subject}/versions", "200"): 2,
        ("DELETE /subjects/{subject}/versions/{version}", "200"): 1,
        ("GET /subjects/{subject}/versions", "404"): 1,
        ("GET /schemas/ids/{id}", "200"): 1,
        (ELSEWHERE, "404"): 1,
    }
    plain = {name: value for (name, labels), value in found.items() if not labels}
    assert (plain[ROLE], plain[SUCCEEDED], plain[FAILED]) == (1, 4, 2)
    assert (plain["kbroker_registry_subjects"], plain["kbroker_registry_versions"]) == (1, 1)


def requests(found: dict[tuple[str, frozenset[tuple[str, str]]], float]) -> dict[tuple[str, str], float]:
    labels = {key: value for (name, key), value in found.items() if name == REQUESTS}
    return {(dict(key)["endpoint"], dict(key)["status"]): value for key, value in labels.items()}


def test_a_broker_without_a_registry_tells_nothing_of_one(seen: Seen) -> None:
    assert not [name for name, _ in seen.values() if "registry" in name]


def test_each_broker_of_a_cluster_tells_what_it_was_asked() -> None:
    with Cluster(brokers=2, registry=True) as cluster:
        for broker in cluster.brokers.values():
            Http(broker.registry_url).register(f"of-{broker.node_id}", "string")

        async def all_of() -> list[dict[str, list[tuple[dict[str, str], float]]]]:
            return [whole(collect(each.node, Idle(), 0.0)) for each in cluster.brokers.values()]

        found = cluster.run(all_of())
    assert sorted(each[ROLE][0][1] for each in found) == [0, 1]
    leader, other = sorted(found, key=lambda each: -each[ROLE][0][1])
    assert leader["kbroker_registry_subjects"][0][1] == 2
    assert "kbroker_registry_subjects" not in other
    # During the leader's election, a request may have been refused and forwarded again.
    registered = [
        {labels["endpoint"]: count for labels, count in each[REQUESTS] if labels["status"] == "200"}
        for each in (leader, other)
    ]
    assert registered == [{"POST /subjects/{subject}/versions": 2}, {ELSEWHERE: 1}]
