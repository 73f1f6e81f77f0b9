"""The metrics of a broker, collected in its event loop, in pieces.

Owns the mapping of the broker's numbers to metrics, and the limits on individually listed objects. Never changes
anything, and never blocks: long work yields to the loop, so that a page of thousands of topics delays no request.
Values from different pieces may have different ages.

The idle share of the loop is computed from samples of its processor time, taken when metrics are requested. Kafka
reports the idle share of its two thread pools, averaged over a minute. Here one thread does the work of both pools.
Work of other threads of the process does not count.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from kbroker.broker.base_node import Node
from kbroker.long_work import turn
from kbroker.metrics.coordinators import dead_letters, groups, loads, registry, transactions
from kbroker.metrics.logs import SERVES, logs
from kbroker.metrics.partitions import Sums, cluster, partitions
from kbroker.metrics.schedules import schedules
from kbroker.metrics.values import Values, put, put_all, put_times
from kbroker.network.request_times import FETCH
from kbroker.quota.client_quotas import MutationQuota, RateQuota
from kbroker.topic_metrics import Traffic

MOST_TOPICS: Final = 2_000
MOST_PARTITIONS: Final = 10_000
MOST_OFFSETS: Final = 10_000
MOST_QUOTAS: Final = 1_000
"""The maximum number of objects of a kind that are listed individually. The sums include all objects."""
_TRAFFIC: Final = {
    "messagesin_total": "messages_in",
    "bytesin_total": "bytes_in",
    "bytesout_total": "bytes_out",
    "totalproducerequests_total": "produces",
    "failedproducerequests_total": "failed_produces",
    "totalfetchrequests_total": "fetches",
    "failedfetchrequests_total": "failed_fetches",
}
_REPLICATION: Final = {"replicationbytesin_total": "replicated_in", "replicationbytesout_total": "replicated_out"}


def _version() -> str:
    try:
        return version("kbroker")
    except PackageNotFoundError:  # the broker runs from its sources, without an installation
        return "unknown"


_VERSION: Final = _version()  # read only once, because the version is stored in files


async def collect(node: Node, idle: Idle, lag_s: float) -> Values:
    """Collect all values. `lag_s` is the number of seconds for which this call waited for its turn in the loop."""
    values: Values = {}
    put(values, "kbroker_build_info", 1, {"version": _VERSION})
    await _partitions(node, values)
    await _topics(node, values)  # after the partitions, which supply some of the numbers
    await _requests(node, values)
    await cluster(node, values)
    await logs(node.logs, node.clock.now_ms(), values)
    await quotas(node, values, MOST_QUOTAS)
    loads(node, values)
    await groups(node, values, MOST_OFFSETS)
    await dead_letters(node, values)
    await schedules(node, values, MOST_PARTITIONS)
    await transactions(node, values)
    await registry(node, values)
    await _telemetry(node, values)
    _network(node, values)
    _loop(node, values, idle.share(), lag_s)
    return values


async def _topics(node: Node, values: Values) -> None:
    by_topic, removed = node.replicas.traffic.now()
    for count, (topic, traffic) in enumerate(by_topic):
        if count < MOST_TOPICS:
            _traffic(values, traffic, _TRAFFIC, {"topic": topic})
        removed.add(traffic)
        await turn
    _traffic(values, removed, _TRAFFIC | _REPLICATION, {})
    put(values, "kbroker_left_out", max(len(by_topic) - MOST_TOPICS, 0), {"kind": "topics"})


def _traffic(values: Values, traffic: Traffic, names: Mapping[str, str], labels: dict[str, str]) -> None:
    found = ((name, getattr(traffic, field)) for name, field in names.items())
    put_all(values, "kafka_server_brokertopicmetrics", found, labels)


async def _requests(node: Node, values: Values) -> None:
    times, followers = node.server.times, node.replicas.traffic.follower_fetches
    names = node.server.dispatcher.names
    sums: dict[str, int] = {}
    for (key, number), tally in sorted(times.tallies.items()):
        if key not in names or not tally.requests:
            continue
        counts = {names[key]: tally.requests}
        if key == FETCH:
            counts["FetchFollower"] = followers[number]
            counts["FetchConsumer"] = max(tally.requests - followers[number], 0)
        for name, count in counts.items():
            labels = {"request": name, "version": str(number)}
            put(values, "kafka_network_requestmetrics_requests_total", count, labels)
            sums[name] = sums.get(name, 0) + count
        await turn
    for name, count in sums.items():
        put(values, "kafka_network_requestmetrics_totaltimems_count", count, {"request": name})
    took = {names[key]: list(kept) for key, kept in times.took.items() if key in names}
    took["FetchConsumer"], took["FetchFollower"] = list(times.took_consumers), list(times.took_followers)
    for name, seconds in took.items():
        put_times(values, "kafka_network_requestmetrics_totaltimems", seconds, {"request": name})
        await turn


async def _remote(node: Node, values: Values) -> None:
    tiers = node.tiers
    if tiers is None:
        return
    counts, (lag_bytes, lag_ms) = tiers.shared.counts, await tiers.lag()
    put(values, "kbroker_remote_copied_bytes_total", counts.copied_bytes)
    put(values, "kbroker_remote_copy_lag_bytes", lag_bytes)
    put(values, "kbroker_remote_copy_lag_ms", lag_ms)
    put(values, "kbroker_remote_failures_total", counts.failures)
    put(values, "kbroker_remote_deleted_segments_total", counts.deleted)
    put(values, "kbroker_remote_read_bytes_total", counts.read_bytes)
    put(values, "kbroker_remote_read_errors_total", counts.read_errors)
    put(values, "kbroker_remote_cached_bytes", tiers.reader.chunks.size)
    copied_ms = counts.state_copied_ms
    put(values, "kbroker_remote_state_age_ms", -1 if copied_ms is None else max(node.clock.now_ms() - copied_ms, 0))


async def _partitions(node: Node, values: Values) -> None:
    sums: Sums = await partitions(node, values, MOST_PARTITIONS)
    put(values, "kbroker_damaged_partitions", sums.damaged)
    put(values, "kbroker_view_scanned_records_total", node.views.shared.scanned)
    put(values, "kbroker_view_cached_bytes", node.views.shared.kept.size)
    await _remote(node, values)
    put(values, "kbroker_left_out", max(sums.hosted - MOST_PARTITIONS, 0), {"kind": "partitions"})
    found = {
        "partitioncount": sums.hosted,
        "leadercount": sums.led,
        "offlinereplicacount": node.replicas.offline_count,
        "underreplicatedpartitions": sums.under_replicated,
        "underminisrpartitioncount": sums.under_min_isr,
        "atminisrpartitioncount": sums.at_min_isr,
        "produceridcount": sums.producers,
        "isrshrinks_total": 0,
        "isrexpands_total": 0,
        "failedisrupdates_total": 0,
    }
    if node.services.cluster is not None:
        changes = node.services.cluster.replica_manager.in_sync_changes
        found |= {
            "isrshrinks_total": changes.shrinks,
            "isrexpands_total": changes.expands,
            "failedisrupdates_total": changes.failed,
        }
    put_all(values, "kafka_server_replicamanager", found.items())


async def _telemetry(node: Node, values: Values) -> None:
    telemetry = node.services.telemetry
    if telemetry is None:
        return
    await telemetry.sweep(node.clock.monotonic_ms())
    found = {
        "instance_count": len(telemetry),
        "unknown_subscription_request_count": telemetry.unknown_subscriptions,
        "throttle_count": telemetry.throttled,
        "plugin_export_count": telemetry.exported,
        "plugin_error_count": telemetry.failed,
    }
    put_all(values, "kafka_server_client_metrics", found.items())


def _network(node: Node, values: Values) -> None:
    server, sessions, traffic = node.server, node.services.fetch_sessions, node.replicas.traffic
    for listener, created in server.created.items():
        now = server.by_listener[listener]
        labels = {"listener": listener, "networkProcessor": "0"}
        found = {
            "connection_count": now,
            "connection_creation_total": created,
            "connection_close_total": created - now,
        }
        put_all(values, "kafka_server_socket_server_metrics", found.items(), labels)
    found = {
        "numincrementalfetchsessions": len(sessions),
        "numincrementalfetchpartitionscached": sessions.partition_count,
        "incrementalfetchsessionevictions_total": sessions.evictions,
    }
    put_all(values, "kafka_server_fetchsessioncache", found.items(), {"cacheShard": "0"})
    waiting = {"Fetch": traffic.delayed_fetches, "Produce": traffic.delayed_produces}
    for operation, count in waiting.items():
        put(values, "kafka_server_delayedoperationpurgatory_purgatorysize", count, {"delayedOperation": operation})
    put(values, "kafka_server_kafkaserver_brokerstate", SERVES)
    put(values, "kbroker_connections", server.connection_count)
    put(values, "kbroker_memory_held_bytes", server.memory.used)
    put(values, "kbroker_memory_limit_bytes", server.memory.limit)


def _loop(node: Node, values: Values, idle: float, lag_s: float) -> None:
    watch = node.server.watch
    put(values, "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", idle)
    put(values, "kafka_network_socketserver_networkprocessoravgidle_percent", idle)
    put(values, "kbroker_loop_lag_seconds", lag_s)
    put(values, "kbroker_loop_held_total", watch.held)
    put(values, "kbroker_loop_longest_seconds", watch.longest_ms / 1000)


_LONG_S: Final = 60.0
_SHORT_S: Final = 0.5
_MOST: Final = 128


class Idle:
    """The idle share of one loop, used on the loop's thread.

    After a long time without requests, the share covers all that time.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, worked: Callable[[], float] = time.thread_time
    ) -> None:
        self._now = now
        self._worked = worked
        self._seen: deque[tuple[float, float]] = deque(maxlen=_MOST)

    def share(self) -> float:
        """Return the thread's idle share (0 to 1) in the last minute.

        If only a part of this minute is known, return the share in this part.
        """
        now, worked = self._now(), self._worked()
        while len(self._seen) > 1 and now - self._seen[1][0] >= _LONG_S:
            self._seen.popleft()
        before, before_worked = self._seen[0] if self._seen else (now, worked)
        if not self._seen or now - self._seen[-1][0] >= _SHORT_S:
            self._seen.append((now, worked))
        passed = now - before
        return 1.0 if passed < _SHORT_S else min(max(1 - (worked - before_worked) / passed, 0.0), 1.0)


_NAMES: Final = {
    "Produce": "byte_rate",
    "Fetch": "byte_rate",
    "Request": "request_time",
    "ControllerMutation": "tokens",
}
"""Kafka's names of the four quotas and of their units."""


async def quotas(node: Node, values: Values, most: int) -> None:
    """Add how much of each quota is used, by the quota's user and client id. List at most `most` quotas."""
    clients = node.quotas.clients
    now_ms = clients.now_ms()
    reported = 0
    by_resource: dict[str, RateQuota | MutationQuota] = {
        "Produce": clients.produced,
        "Fetch": clients.fetched,
        "Request": clients.worked,
        "ControllerMutation": clients.mutated,
    }
    for resource, quota in by_resource.items():
        for used in quota.used(now_ms, most - reported):
            labels = {"resource": resource}
            if used.user is not None:
                labels["user"] = used.user
            if used.client_id is not None:
                labels["clientId"] = used.client_id
            put(values, f"kafka_server_quota_{_NAMES[resource]}", used.amount, labels)
            put(values, "kafka_server_quota_throttle_time", used.pause_ms, labels)
            reported += 1
            await turn
    known = len(clients.produced) + len(clients.fetched) + len(clients.worked) + len(clients.mutated)
    put(values, "kbroker_left_out", max(known - reported, 0), {"kind": "quotas"})
