"""The metrics of the partitions with a replica on this broker and, on the controller, of all partitions.

Owns the iteration over the partitions, in pieces. Never changes a partition.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.broker.base_node import Node
from kbroker.long_work import turn
from kbroker.metrics.values import Values, put, put_all
from kbroker.partition import Partition


@dataclass(slots=True)
class Sums:
    """The sums over all partitions on this broker, including those that are not listed individually."""

    hosted: int = 0
    led: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    producers: int = 0
    damaged: int = 0


def is_under_min_isr(partition: Partition) -> bool:
    """Whether a partition that this broker leads has too few in-sync replicas for acks=all."""
    return partition.leading and len(partition.isr) < partition.min_isr


def readable_end(partition: Partition, now_ms: int) -> int:
    """Return the end of the records that consumers can read."""
    log = partition.log
    try:
        return min(log.high_watermark, log.mature_end(now_ms))
    except OSError as error:
        log.report_failure(error)
        return log.high_watermark


async def partitions(node: Node, values: Values, most: int) -> Sums:
    """Add the partitions, at most `most` of them individually. Return the sums over all partitions."""
    sums = Sums()
    for partition in list(node.replicas):
        partition.count()
        replicas, in_sync = len(partition.replicas), len(partition.isr)
        leads = int(partition.leading)
        lacks, too_few = leads and in_sync < replicas, int(is_under_min_isr(partition))
        at_min = int(leads and in_sync == partition.min_isr)
        if sums.hosted < most:
            _put_lags(partition, values, leads * in_sync, leads * replicas, too_few, int(lacks), at_min)
            if partition.log.maturity is not None:
                waiting = partition.log.high_watermark - readable_end(partition, node.clock.now_ms())
                labels = {"topic": partition.topic, "partition": str(partition.index)}
                put(values, "kbroker_partition_delayed_records", waiting, labels)
        sums.hosted += 1
        sums.led += leads
        sums.under_replicated += lacks
        sums.under_min_isr += too_few
        sums.at_min_isr += at_min
        sums.damaged += partition.log.damaged_at is not None
        sums.producers += len(partition.log.producers.entries)
        await turn
    return sums


def _put_lags(
    partition: Partition,
    values: Values,
    in_sync: int,
    replicas: int,
    under_min_isr: int,
    under_replicated: int,
    at_min_isr: int,
) -> None:
    log = partition.log
    labels = {"topic": partition.topic, "partition": str(partition.index)}
    found = {
        "size": log.size,
        "logstartoffset": log.earliest_offset,
        "logendoffset": log.log_end_offset,
        "numlogsegments": len(log.segments),
    }
    put_all(values, "kafka_log_log", found.items(), labels)
    found = {
        "insyncreplicascount": in_sync,
        "replicascount": replicas,
        "underminisr": under_min_isr,
        "atminisr": at_min_isr,
        "underreplicated": under_replicated,
        "laststableoffsetlag": max(log.high_watermark - log.last_stable_offset, 0),
    }
    put_all(values, "kafka_cluster_partition", found.items(), labels)


async def cluster(node: Node, values: Values) -> None:
    """Add the metrics of the complete cluster, if this broker is the cluster's controller."""
    state = node.metadata.state
    of_cluster = node.services.cluster
    active = of_cluster is None or of_cluster.controller.is_active
    count = offline = imbalanced = 0
    for topic in list(state.topics.values()) if active else ():
        for each in topic.partitions:
            count += 1
            offline += each.leader < 0
            imbalanced += each.leader != each.replicas[0]
            await turn
    found = {
        "activecontrollercount": int(active),
        "activebrokercount": len(state.brokers) * active,
        "globaltopiccount": len(state.topics) * active,
        "globalpartitioncount": count,
        "offlinepartitionscount": offline,
        "preferredreplicaimbalancecount": imbalanced,
    }
    put_all(values, "kafka_controller_kafkacontroller", found.items())
    unclean = 0 if of_cluster is None else of_cluster.controller.unclean_elections
    put(values, "kafka_controller_controllerstats_uncleanleaderelections_total", unclean)
