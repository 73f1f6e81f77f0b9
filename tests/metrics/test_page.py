"""The page's form: two formats, names that the JMX exporter's rules would give, bounds."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from kbroker.metrics import collection
from kbroker.metrics.collection import Idle, collect
from kbroker.metrics.exposition import BY_NAME, Name, markdown
from kbroker.metrics.values import Values
from tests.metrics.conftest import OPENMETRICS, Seen
from tests.metrics.test_counts import produce

QUOTAS = {f"kafka_server_quota_{each}" for each in ("byte_rate", "request_time", "tokens", "throttle_time")}
"""Told while there are quotas."""
DASHBOARD = [
    "kafka_cluster_partition_atminisr",
    "kafka_cluster_partition_underminisr",
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "kafka_controller_kafkacontroller_activecontrollercount",
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "kafka_log_log_size",
    "kafka_log_logmanager_offlinelogdirectorycount",
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    "kafka_server_brokertopicmetrics_bytesin_total",
    "kafka_server_brokertopicmetrics_bytesout_total",
    "kafka_server_brokertopicmetrics_failedfetchrequests_total",
    "kafka_server_brokertopicmetrics_failedproducerequests_total",
    "kafka_server_brokertopicmetrics_messagesin_total",
    "kafka_server_brokertopicmetrics_totalfetchrequests_total",
    "kafka_server_brokertopicmetrics_totalproducerequests_total",
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    "kafka_server_kafkaserver_linux_disk_read_bytes",
    "kafka_server_kafkaserver_linux_disk_write_bytes",
    "kafka_server_replicamanager_leadercount",
    "kafka_server_replicamanager_partitioncount",
    "kafka_server_replicamanager_underminisrpartitioncount",
    "kafka_server_replicamanager_underreplicatedpartitions",
    "kafka_server_socket_server_metrics_connection_count",
]
"""What Strimzi's dashboard for Kafka and its alerts ask for, but for what docs/metrics.md says there is not."""


def by_the_rules(mbean: str) -> str:
    """Return the name of an MBean's value according to the rules of jmx_exporter's kafka-2_0_0.yml and of Strimzi."""
    domain, _, keys = mbean.partition(":")
    parts = dict(part.split("=", 1) for part in keys.split(",") if "=" in part)
    rest = [part for part in keys.split(",") if "=" not in part]
    name = parts.get("name", "")
    if name.endswith("PerSec"):
        name = name.removesuffix("PerSec") + "_total"
    if name.endswith("Percent"):
        name = name.removesuffix("Percent") + "_percent"
    if "client-id" in parts:  # of a quota
        return f"kafka_server_quota_{rest[0]}".replace("-", "_")
    joined = "_".join(each for each in ["kafka", domain, parts["type"], name, *rest] if each)
    return re.sub(r"\W", "_", joined).lower()


@pytest.mark.parametrize("name", [each for each in BY_NAME.values() if each.mbean], ids=lambda name: name.name)
def test_names_are_those_that_the_rules_make(name: Name) -> None:
    assert name.name == by_the_rules(name.mbean)


def test_others_have_their_own_prefix() -> None:
    assert all(each.name.startswith("kbroker_") for each in BY_NAME.values() if not each.mbean)


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_both_formats_are_parsed_and_say_the_same(seen: Seen, accept: str) -> None:
    seen.broker.topics.create("odd.name_-9", partitions=2)
    produce(seen, "orders", 10)
    families = seen.families(accept)
    found = {sample.name for family in families for sample in family.samples}
    own = {name for name in found if name.startswith(("kafka_", "kbroker_"))}
    assert own <= set(BY_NAME)
    missing = set(BY_NAME) - own - {"kafka_log_logflushstats_logflushrateandtimems"}  # there may have been a flush
    nothing_of = {"kbroker_group_lag", "kbroker_group_offset", "kbroker_telemetry_client_info", "kbroker_transactions"}
    nothing_of |= {"kbroker_coordinator_unreadable_records", "kbroker_partition_delayed_records"}
    nothing_of |= {"kbroker_group_stuck_offset"}
    nothing_of |= {name for name in BY_NAME if name.startswith(("kbroker_schedule_", "kbroker_remote_"))}
    nothing_of |= {name for name in BY_NAME if "deadletterqueue" in name or "registry" in name}
    assert missing == nothing_of | QUOTAS
    assert {"process_open_fds", "process_resident_memory_bytes", "process_cpu_seconds_total"} <= found


def test_the_format_is_the_one_that_is_asked_for(seen: Seen) -> None:
    _, headers, body = seen.get("/metrics", Accept=OPENMETRICS)
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    _, headers, body = seen.get("/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    _, headers, packed = seen.get("/metrics", **{"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed).startswith(b"# HELP")


def test_labels_are_those_of_the_table(seen: Seen) -> None:
    produce(seen, "orders", 10)
    for family in seen.families():
        for sample in family.samples:
            known = BY_NAME.get(sample.name)
            if known is None:
                assert sample.name.startswith("process_")
                continue
            allowed = known.labels.removesuffix(", or none for the sum")
            assert set(sample.labels) in (set(allowed.split(", ")) - {""}, set()), sample


def test_what_a_public_dashboard_asks_for_is_answered(seen: Seen) -> None:
    produce(seen, "orders", 10)
    found = {sample.name for family in seen.families() for sample in family.samples}
    assert [name for name in DASHBOARD if name not in found] == []


def collected(seen: Seen) -> tuple[Values, int]:
    """Collect in the broker's loop in one step; return the values, and the number of pieces that a scrape would use."""

    def run() -> tuple[Values, int]:
        work, pieces = collect(seen.broker.node, Idle(), 0.0), 0
        while True:
            try:
                work.send(None)
            except StopIteration as end:
                return end.value, pieces
            pieces += 1

    return seen.in_loop(run)


def test_thousands_of_topics_are_bounded_and_come_in_pieces(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(60):
        seen.broker.topics.create(f"t{number}", partitions=2)
    monkeypatch.setattr(collection, "MOST_TOPICS", 25)
    monkeypatch.setattr(collection, "MOST_PARTITIONS", 30)
    values, pieces = collected(seen)
    assert pieces >= 60 + 2 * 120
    assert len(values["kafka_log_log_size"]) == 30
    assert len(values["kafka_server_brokertopicmetrics_messagesin_total"]) == 25 + 1
    assert values["kafka_server_replicamanager_partitioncount"] == [({}, 120)]
    left_out = {labels["kind"]: value for labels, value in values["kbroker_left_out"]}
    assert left_out == {"topics": 35, "partitions": 90, "offsets": 0, "quotas": 0}


def test_the_docs_have_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert f"\n{markdown()}\n" in page, "python -m kbroker.metrics.exposition prints the table"
