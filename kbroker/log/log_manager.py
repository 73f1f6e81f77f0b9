"""All partitions of one log directory.

Owns the directory: its lock, its identity, its checkpoints, which partitions are in it, and their compaction. Never
answers a request and has no clock and no timer: `tick` is called from outside and does what is due.

    .lock  meta.properties  .kafka_cleanshutdown  *-offset-checkpoint (checkpoints.py)
    <topic>-<partition>/  <topic>-<partition>.<uuid>-delete/  <topic>-<partition>.<uuid>-stray/

A partition's directory that belongs to no topic of the cluster is left as it is, and never opened. Where a new topic
of the same name needs the place, it is moved aside (-stray) and kept, as in Kafka: old data never turns up in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from kbroker.log import checkpoints
from kbroker.log.cleaner.manager import Cleaner
from kbroker.log.cleaner.worker_pool import WorkerPool
from kbroker.log.files import LOG_SUFFIX, read_optional, remove_quietly, sync_directory
from kbroker.log.flushing import Flusher
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog

_DELETE_SUFFIX = "-delete"
_STRAY_SUFFIX = "-stray"
_PURGE_SECONDS = 0.05
_LOGS_PER_TICK = 64

logger = logging.getLogger(__name__)

Key = tuple[str, int]
Belongs = Callable[[str, int, uuid.UUID | None], bool]


class LogDirError(Exception):
    """The log directory cannot be used; the text says why, in one line, and nothing in it has been changed."""


class LogSize(NamedTuple):
    """Bytes of one partition."""

    topic: str
    partition: int
    size: int


class LogManager:
    """The logs of one directory, by (topic, partition); all intervals in ms.

    First `open`, which locks the directory and tells whose it is, then `load`, then everything else.
    """

    def __init__(
        self,
        directory: str,
        *,
        node_id: int,
        cluster_id: str | None = None,
        broker_epoch: int = -1,
        retention_check_interval_ms: int = 300_000,
        flush_check_interval_ms: int = 3_000,
        recovery_point_interval_ms: int = 60_000,
        log_start_interval_ms: int = 60_000,
        high_watermark_interval_ms: int = 5_000,
        producer_id_expiration_ms: int = 86_400_000,
        producer_id_check_interval_ms: int = 600_000,
        cleaner_pool: WorkerPool | None = None,
    ) -> None:
        """Prepare; a `cleaner_pool` that is passed in is the caller's to tick and to close."""
        self.directory = os.path.abspath(directory)
        self.node_id = node_id
        self.broker_epoch = broker_epoch
        self.logs: dict[Key, PartitionLog] = {}
        self.cluster_id = cluster_id or ""
        self.directory_id = ""
        self.was_clean = False
        """Whether the directory had been closed cleanly when it was opened."""
        self._lock_fd = -1
        self._loaded = False
        self._now_ms = 0  # the latest time that anybody has told
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self._jobs = _Jobs(
            (retention_check_interval_ms, self._apply_retention),
            (flush_check_interval_ms, self._flush_due),
            (producer_id_check_interval_ms, self._expire_producers),
        )
        self._writers = [
            (recovery_point_interval_ms, self._write_recovery_points),
            (log_start_interval_ms, self._write_log_starts),
            (high_watermark_interval_ms, self._write_high_watermarks),
        ]
        self._written_ms = [0] * len(self._writers)
        self._flusher = Flusher()
        self._doomed: list[tuple[int, str]] = []
        pool = cleaner_pool or WorkerPool()
        self._own_pool = pool if cleaner_pool is None else None
        self.cleaner = Cleaner(self.directory, self.logs, pool)

    # -- opening and closing ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Lock the directory and check that it is ours; raises LogDirError. Other files in it may be read then."""
        os.makedirs(self.directory, exist_ok=True)
        self._lock_fd = _lock(self.directory)
        try:
            self.cluster_id, self.directory_id = _take_identity(self.directory, self.node_id, self.cluster_id)
            self.was_clean = read_optional(self._path(checkpoints.CLEAN_SHUTDOWN)) is not None
        except BaseException:
            self._unlock()
            raise

    def load(
        self, configs: Callable[[str], LogConfig], now_ms: int, belongs: Belongs = lambda _topic, _partition, _id: True
    ) -> None:
        """Open every partition in the directory, and the directory itself if `open` was not called.

        `configs` returns a topic's settings by its name; `belongs(topic, partition, topic id)` tells whether the
        cluster knows a partition. After an unclean stop this reads all that was not flushed.
        """
        if self._lock_fd < 0:
            self.open()
        if self.was_clean:
            # The mark goes before anything is loaded: a crash while loading must not pass for a clean stop.
            remove_quietly(self._path(checkpoints.CLEAN_SHUTDOWN))
            sync_directory(self.directory)
        self._now_ms = now_ms
        try:
            self._load_logs(configs, now_ms, belongs)
        except BaseException:
            self.close(clean=False)
            raise
        self._written_ms = [now_ms] * len(self._writers)
        self._jobs.start(now_ms)
        self._loaded = True

    def _unlock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _load_logs(self, configs: Callable[[str], LogConfig], now_ms: int, belongs: Belongs) -> None:
        recovery_points = checkpoints.read_offsets(self._path(checkpoints.RECOVERY_POINTS))
        log_starts = checkpoints.read_offsets(self._path(checkpoints.LOG_STARTS))
        high_watermarks = checkpoints.read_offsets(self._path(checkpoints.HIGH_WATERMARKS))
        for name in sorted(os.listdir(self.directory)):
            path = f"{self.directory}/{name}"
            if not os.path.isdir(path):
                continue
            if name.endswith(_DELETE_SUFFIX):
                self._doomed.append((now_ms, path))
                continue
            key = _key_of(name)
            if key is None:
                continue
            if not belongs(*key, checkpoints.read_topic_id(path)):
                logger.warning("%s belongs to no topic of the cluster and is left as it is", path)
                continue
            config = configs(key[0])
            log = self.logs[key] = PartitionLog(
                path,
                *key,
                config,
                now_ms=now_ms,
                clean=self.was_clean,
                recovery_point=recovery_points.get(key, 0),
                log_start_offset=log_starts.get(key, 0),
                high_watermark=high_watermarks.get(key, 0),
            )
            log.expire_producers(now_ms, self.producer_id_expiration_ms)
            log.release_idle(force=True)
        self.cleaner.load()
        if not self.logs.keys() >= {*recovery_points, *log_starts, *high_watermarks}:
            self.checkpoint()  # an entry of a partition that is gone would count for a new one of its name

    def close(self, clean: bool = True, now_ms: int = 0) -> None:
        """Close everything; a clean close leaves the mark that makes the next start a short one.

        What was not loaded to its end is left as it is, so that a start that failed loses nothing. There is no mark
        when a log had failed: what its files hold has to be checked.
        """
        self._now_ms = max(now_ms, self._now_ms)
        self.cleaner.close()
        if self._own_pool is not None:
            self._own_pool.close()
        self._flusher.close(self._now_ms)
        failed = any(log.failed for log in self.logs.values())
        try:
            for log in self.logs.values():
                log.close(clean=clean and self._loaded)
            if clean and self._loaded:
                self.checkpoint()
            if clean and self._loaded and not failed:
                checkpoints.write_clean_shutdown(self.directory, self.broker_epoch)
        finally:
            self.logs.clear()
            self._loaded = False
            self._unlock()

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    # -- partitions -------------------------------------------------------------------------------------------

    def get_or_create(
        self, topic: str, partition: int, topic_id: uuid.UUID | None, config: LogConfig, now_ms: int | None = None
    ) -> PartitionLog:
        """Return a partition's log, created where there is none; raises OSError; `sync` makes it durable.

        Files of another topic that had the name are moved aside. A new log holds no descriptor until it is used.
        """
        log = self.logs.get((topic, partition))
        if log is None:
            path = f"{self.directory}/{topic}-{partition}"
            if topic_id is not None and _holds_other(path, topic_id):
                aside = self._renamed(topic, partition, _STRAY_SUFFIX)
                os.rename(path, aside)
                logger.warning("%s held data of another topic of that name, which is now in %s", path, aside)
            os.makedirs(path, exist_ok=True)
            time_ms = self._now_ms if now_ms is None else now_ms
            log = PartitionLog(path, topic, partition, config, now_ms=time_ms, topic_id=topic_id)
            log.release_idle(force=True)
            self.logs[topic, partition] = log
        elif log.topic_id is None and topic_id is not None:
            checkpoints.write_topic_id(log.directory, topic_id)
            log.topic_id = topic_id
        return log

    def sync(self) -> None:
        """Let partitions created since the last call survive a power loss; raises OSError."""
        sync_directory(self.directory)

    def delete(self, topic: str, partition: int, now_ms: int | None = None) -> None:
        """Take a partition away at once; its files are removed `file.delete.delay.ms` later. Raises OSError."""
        self.delete_all([(topic, partition)], now_ms)

    def delete_all(self, keys: Iterable[Key], now_ms: int | None = None) -> None:
        """Take partitions away at once, as `delete` does; raises OSError when all that can go have gone."""
        time_ms = self._now_ms if now_ms is None else now_ms
        failure: OSError | None = None
        was_cleaned = False
        for topic, partition in keys:
            log = self.logs.pop((topic, partition), None)
            if log is None:
                continue
            was_cleaned |= self.cleaner.forget((topic, partition))
            log.close(clean=False)
            path = self._renamed(topic, partition, _DELETE_SUFFIX)
            try:
                os.rename(log.directory, path)
            except OSError as error:
                failure = error
                continue
            log.move(path)
            self._doomed.append((time_ms + log.config.file_delete_delay_ms, path))
        sync_directory(self.directory)
        self.checkpoint()
        if was_cleaned:
            self.cleaner.save()
        if failure is not None:
            raise failure

    def _renamed(self, topic: str, partition: int, suffix: str) -> str:
        """Return where a partition's directory goes: Kafka's form, cut to what a file system takes."""
        tail = f".{uuid.uuid4().hex}{suffix}"
        return f"{self._path(f'{topic}-{partition}'[: 255 - len(tail)])}{tail}"

    def sizes(self) -> list[LogSize]:
        """Bytes of each partition."""
        return [LogSize(topic, partition, log.size) for (topic, partition), log in self.logs.items()]

    def disk_space(self) -> tuple[int, int]:
        """Return (total bytes, usable bytes) of the file system that holds the directory."""
        stat = os.statvfs(self.directory)
        return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize

    # -- what is due ------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Do what is due, a bounded number of partitions a call; raises OSError if a checkpoint cannot be written."""
        self._now_ms = now_ms
        self._flusher.poll(now_ms)
        self._jobs.run(now_ms, self.logs)
        self._purge_directories(now_ms)
        for index, (interval, write) in enumerate(self._writers):
            if now_ms - self._written_ms[index] >= interval:
                self._written_ms[index] = now_ms
                write()
        self.cleaner.tick(now_ms)
        if self._own_pool is not None:
            self._own_pool.tick(now_ms)

    def _apply_retention(self, log: PartitionLog, now_ms: int) -> None:
        log.purge_deleted(now_ms)
        if not self.cleaner.is_busy(log):  # with `compact,delete`, one after the other, as in Kafka
            log.delete_old_segments(now_ms)
        log.release_idle()

    def _flush_due(self, log: PartitionLog, now_ms: int) -> None:
        log.purge_deleted(now_ms)
        sealed_unflushed = log.recovery_point < log.active.base_offset
        if sealed_unflushed or now_ms - log.last_flush_ms >= log.config.flush_ms:
            self._flusher.submit(log)

    def _expire_producers(self, log: PartitionLog, now_ms: int) -> None:
        log.expire_producers(now_ms, self.producer_id_expiration_ms)

    def _purge_directories(self, now_ms: int) -> None:
        due = [(when, path) for when, path in self._doomed if when <= now_ms]
        until = time.perf_counter() + _PURGE_SECONDS
        for doomed in due:
            self._doomed.remove(doomed)
            shutil.rmtree(doomed[1], ignore_errors=True)
            if time.perf_counter() > until:
                return  # the rest another time: a directory may hold many files

    def checkpoint(self) -> None:
        """Write all checkpoints now; raises OSError."""
        for _, write in self._writers:
            write()

    def _write_recovery_points(self) -> None:
        points = {key: log.recovery_point for key, log in self.logs.items()}
        checkpoints.write_offsets(self._path(checkpoints.RECOVERY_POINTS), points)

    def _write_log_starts(self) -> None:
        # A start that is a segment's base is found again from the files, so only the others are worth a line.
        starts = {key: log.log_start_offset for key, log in self.logs.items() if log.log_start_offset > log.bases[0]}
        checkpoints.write_offsets(self._path(checkpoints.LOG_STARTS), starts)

    def _write_high_watermarks(self) -> None:
        marks = {key: log.high_watermark for key, log in self.logs.items()}
        checkpoints.write_offsets(self._path(checkpoints.HIGH_WATERMARKS), marks)


class _Jobs:
    """Chores that visit every log once per interval, a few logs at a time."""

    __slots__ = ("_chores", "_due", "_rounds")

    def __init__(self, *chores: tuple[int, Callable[[PartitionLog, int], None]]) -> None:
        self._chores = chores
        self._due = [0] * len(chores)
        self._rounds: list[Iterator[Key] | None] = [None] * len(chores)

    def start(self, now_ms: int) -> None:
        self._due = [now_ms + interval for interval, _ in self._chores]

    def run(self, now_ms: int, logs: dict[Key, PartitionLog]) -> None:
        for index, (interval, chore) in enumerate(self._chores):
            round_ = self._rounds[index]
            if round_ is None:
                if now_ms < self._due[index]:
                    continue
                self._due[index] = now_ms + interval
                round_ = self._rounds[index] = iter(list(logs))
            keys = list(islice(round_, _LOGS_PER_TICK))
            if len(keys) < _LOGS_PER_TICK:
                self._rounds[index] = None
            for key in keys:
                log = logs.get(key)
                if log is not None:
                    self._visit(chore, log, now_ms)

    def _visit(self, chore: Callable[[PartitionLog, int], None], log: PartitionLog, now_ms: int) -> None:
        try:
            chore(log, now_ms)
        except OSError as error:
            # One partition's trouble must not keep the others from their turn.
            log.refuse_appends(str(error))
            logger.error("%s-%d: %s", log.topic, log.partition, error)


def _lock(directory: str) -> int:
    fd = os.open(f"{directory}/.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise LogDirError(f"log directory {directory} is in use by another process") from error
    return fd


def _holds_other(path: str, topic_id: uuid.UUID) -> bool:
    """Whether a directory holds data that is not this topic's: another id is on it, or none although it has data."""
    if not os.path.isdir(path):
        return False
    found = checkpoints.read_topic_id(path)
    if found is not None:
        return found != topic_id
    return any(entry.name.endswith(LOG_SUFFIX) and entry.stat().st_size > 0 for entry in os.scandir(path))


def _take_identity(directory: str, node_id: int, cluster_id: str) -> tuple[str, str]:
    """Check whose directory it is, and sign it where that has not been done; returns (cluster id, directory id)."""
    path = f"{directory}/{checkpoints.META_PROPERTIES}"
    found = checkpoints.read_properties(path)
    known = found or {}
    version = known.get("version", "1")
    if version not in ("0", "1"):
        raise LogDirError(f"{path} has version {version}, which is not known")
    node = known.get("node.id", known.get("broker.id", str(node_id)))
    if node != str(node_id):
        raise LogDirError(f"{path} belongs to node {node}, not to node {node_id}")
    cluster = known.get("cluster.id") or cluster_id or checkpoints.encode_uuid(uuid.uuid4())
    if cluster_id not in ("", cluster):
        raise LogDirError(f"{path} belongs to cluster {cluster}, not to cluster {cluster_id}")
    directory_id = known.get("directory.id") or checkpoints.encode_uuid(uuid.uuid4())
    properties = {"version": "1", "cluster.id": cluster, "node.id": node, "directory.id": directory_id}
    if properties != found:
        checkpoints.write_properties(path, properties)
    return cluster, directory_id


def _key_of(name: str) -> Key | None:
    topic, dash, number = name.rpartition("-")
    if not dash or not topic or not number.isascii() or not number.isdigit():
        return None
    with contextlib.suppress(ValueError):
        return topic, int(number)
    return None
