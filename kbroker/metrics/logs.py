"""The metrics of log directories: flushes, failures, compaction, and the progress of reading logs at a start.

Owns the mapping of these numbers to metrics. Never changes a log.
"""

from __future__ import annotations

from typing import Final

from kbroker.log.directories.log_manager import LogManager
from kbroker.long_work import turn
from kbroker.metrics.values import Values, put, put_all, put_times

SERVES: Final = 3
_STARTS, _RECOVERS = 1, 2
"""Kafka's BrokerState: STARTING and RECOVERY."""


async def starting(logs: LogManager | None, _lag_s: float) -> Values:
    """Collect the metrics of a broker that is still starting."""
    values: Values = {}
    put(values, "kafka_server_kafkaserver_brokerstate", _STARTS if logs is None else _RECOVERS)
    for each in () if logs is None else logs.managers:
        _recovery(values, each.directory, each.recovery.total, each.recovery.done, each.recovery.logs)
        await turn
    return values


async def logs(found: LogManager, now_ms: int, values: Values) -> None:
    """Add the metrics of the directories of a running broker."""
    took: list[float] = []
    flushes = read = left = 0
    for each in found.managers:
        took += each.flusher.took
        flushes += each.flusher.flushes
        labels = {"logDirectory": each.directory}
        done = each.cleaner.done
        cleaner = {
            "uncleanable_partitions_count": len(each.cleaner.uncleanable),
            "max_dirty_percent": int(100 * done.dirtiest),
        }
        put_all(values, "kafka_log_logcleanermanager", cleaner.items(), labels)
        read += done.read_bytes
        left += done.left_bytes
        _recovery(values, each.directory, each.recovery.total, each.recovery.done, each.recovery.logs)
        await turn
    put_times(values, "kafka_log_logflushstats_logflushrateandtimems", took)
    put(values, "kafka_log_logflushstats_logflushrateandtimems_count", flushes)
    put(values, "kafka_log_logmanager_offlinelogdirectorycount", len(found.managers) - len(found.online))
    put(values, "kbroker_full_log_directories", len(found.full))
    cleaners = [each.cleaner.done for each in found.managers]
    checked_ms = max((each.checked_ms for each in cleaners if each.checked_ms is not None), default=now_ms)
    put(values, "kafka_log_logcleanermanager_time_since_last_run_ms", max(now_ms - checked_ms, 0))
    put(
        values,
        "kafka_log_logcleaner_cleaner_recopy_percent",
        max((int(100 * each.recopy) for each in cleaners), default=0),
    )
    put(values, "kafka_log_logcleaner_max_clean_time_secs", max((int(each.seconds) for each in cleaners), default=0))
    put(values, "kbroker_compacted_bytes_total", read)
    put(values, "kbroker_compaction_left_bytes_total", left)


def _recovery(values: Values, directory: str, total: int, done: int, left: int) -> None:
    put(values, "kafka_log_logmanager_remaininglogstorecover", left, {"dir": directory})
    put(values, "kbroker_recovery_bytes", total, {"dir": directory})
    put(values, "kbroker_recovery_read_bytes", min(done, total), {"dir": directory})
