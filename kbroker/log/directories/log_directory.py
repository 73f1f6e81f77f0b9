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
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial

from kbroker.failpoints import passed
from kbroker.log import checkpoints
from kbroker.log.checkpoints import CheckpointFile, Offsets
from kbroker.log.cleaner.manager import Cleaner
from kbroker.log.cleaner.worker_pool import WorkerPool
from kbroker.log.directories.chores import Chores
from kbroker.log.directories.dir_lock import lock_directory
from kbroker.log.directories.flusher import Flusher
from kbroker.log.directories.meta_properties import take_identity
from kbroker.log.directories.partition_dirs import (
    DELETE_SUFFIX,
    FUTURE_SUFFIX,
    STRAY_SUFFIX,
    Key,
    entries_of,
    holds_other,
    new_name,
)
from kbroker.log.directories.recovery_progress import WORTH_THREADS, RecoveryProgress, bytes_to_recover, run_all
from kbroker.log.disk_errors import passes
from kbroker.log.files import read_optional, remove_quietly, sync_directory
from kbroker.log.invariants import log_class
from kbroker.log.log_config import LogConfig
from kbroker.log.open_files import OpenFiles
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.errors import ApiError

_PURGE_SECONDS = 0.05

logger = logging.getLogger(__name__)

Belongs = Callable[[str, int, uuid.UUID | None], bool]


class LogDirectory:
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
        files: OpenFiles | None = None,
    ) -> None:
        """Prepare; a `cleaner_pool` that is passed in is the caller's to tick and to close.

        `files` bounds the open files of this directory and of all others that got the same.
        """
        self.directory = os.path.abspath(directory)
        self.node_id = node_id
        self.broker_epoch = broker_epoch
        self.logs: dict[Key, PartitionLog] = {}
        self.cluster_id = cluster_id or ""
        self.directory_id = ""
        self.was_clean = False
        """Whether the directory had been closed cleanly when it was opened."""
        self.failure = ""
        """Why the directory is offline; empty while it is in use."""
        self.on_failure: Callable[[LogDirectory], None] = lambda _manager: None
        self.futures: list[tuple[Key, str]] = []
        """Partitions whose move into this directory had not ended when it was loaded, with their directories."""
        self.recovery = RecoveryProgress(self.directory)
        """How far the loading has come, and what is left of it."""
        self.recovery_threads = 1
        """How many partitions are opened at a time after an unclean stop."""
        self._lock_fd = -1
        self._loaded = False
        self._now_ms = 0  # the latest time that anybody has told
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self._jobs = Chores(
            (retention_check_interval_ms, self._apply_retention),
            (flush_check_interval_ms, self._flush_due),
            (producer_id_check_interval_ms, self._expire_producers),
        )
        self._writers = [
            (recovery_point_interval_ms, self._checkpoint_file(checkpoints.RECOVERY_POINTS), self._recovery_points),
            (log_start_interval_ms, self._checkpoint_file(checkpoints.LOG_STARTS), self._log_starts),
            (high_watermark_interval_ms, self._checkpoint_file(checkpoints.HIGH_WATERMARKS), self._high_watermarks),
        ]
        self._written_ms = [0] * len(self._writers)
        self.files = OpenFiles() if files is None else files
        self._flusher = Flusher()
        self._doomed: list[tuple[int, str]] = []
        pool = cleaner_pool or WorkerPool()
        self._own_pool = pool if cleaner_pool is None else None
        self.cleaner = Cleaner(self.directory, self.logs, pool)

    # -- opening and closing ----------------------------------------------------------------------------------

    def open(self, cluster_id: str = "") -> None:
        """Lock the directory and check that it is ours; raises LogDirError. Other files in it may be read then.

        `cluster_id` counts where none is known yet.
        """
        self.cluster_id = self.cluster_id or cluster_id
        os.makedirs(self.directory, exist_ok=True)
        self._lock_fd = lock_directory(self.directory)
        try:
            self.cluster_id, self.directory_id = take_identity(self.directory, self.node_id, self.cluster_id)
            self.was_clean = read_optional(self._path(checkpoints.CLEAN_SHUTDOWN)) is not None
        except BaseException:
            self._unlock()
            raise

    def load(
        self, configs: Callable[[str], LogConfig], now_ms: int, belongs: Belongs = lambda _topic, _partition, _id: True
    ) -> None:
        """Open every partition in the directory, and the directory itself if `open` was not called.

        `configs` returns a topic's settings by its name; `belongs(topic, partition, topic id)` tells whether the
        cluster knows a partition. After an unclean stop this reads all that was not flushed; raises RecoveryStopped if
        `recovery` is stopped meanwhile.
        """
        if self._lock_fd < 0:
            self.open()
        if self.was_clean:
            # The mark goes before anything is loaded: a crash while loading must not pass for a clean stop.
            remove_quietly(self._path(checkpoints.CLEAN_SHUTDOWN))
            sync_directory(self.directory)
            passed("load.unmarked")
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
        cleaned = checkpoints.read_offsets(self._path(checkpoints.CLEANER_OFFSETS))
        any_may_be = not checkpoints.is_whole(self._path(checkpoints.CLEANER_OFFSETS), cleaned)
        found = entries_of(self.directory)
        self._doomed += [(now_ms, path) for path in found.deleted]
        self.futures += found.futures
        unread = 0
        if not self.was_clean:
            unread = bytes_to_recover((path, recovery_points.get(key, 0)) for key, path in found.partitions)
        known = [(key, path) for key, path in found.partitions if self._is_known(belongs, key, path)]
        progress = self.recovery
        progress.begin(unread, len(known))

        def open_log(key: Key, path: str, config: LogConfig) -> PartitionLog:
            log = log_class()(
                path,
                *key,
                config,
                now_ms=now_ms,
                clean=self.was_clean,
                recovery_point=recovery_points.get(key, 0),
                log_start_offset=log_starts.get(key, 0),
                high_watermark=high_watermarks.get(key, 0),
                compacted=any_may_be or key in cleaned,
                progress=progress.add,
                on_disk_error=self.report,
                files=self.files,
            )
            log.expire_producers(now_ms, self.producer_id_expiration_ms)
            return log

        tasks = ((key, partial(open_log, key, path, configs(key[0]))) for key, path in known)
        for key, log in run_all(tasks, self.recovery_threads if unread >= WORTH_THREADS else 1):
            progress.logs -= 1
            self.logs[key] = log
        progress.end()
        self.cleaner.load()
        if not self.logs.keys() >= {*recovery_points, *log_starts, *high_watermarks}:
            self.checkpoint()  # an entry of a partition that is gone would count for a new one of its name

    def _is_known(self, belongs: Belongs, key: Key, path: str) -> bool:
        known = belongs(*key, checkpoints.read_topic_id(path))
        if not known:
            logger.warning("%s belongs to no topic of the cluster and is left as it is", path)
        return known

    # -- failure ----------------------------------------------------------------------------------------------

    def report(self, error: OSError) -> None:
        """Hear of a failed read, write or flush; what does not pass of itself ends the use of the directory."""
        if passes(error) or self.failure:
            return
        self.fail(error)
        self.on_failure(self)

    def fail(self, error: OSError) -> None:
        """Be offline; whoever calls knows."""
        self.failure = str(error) or type(error).__name__

    def abandon(self) -> list[Key]:
        """Use the directory no more and return the partitions that it held; nothing is written, the lock stays."""
        lost = list(self.logs)
        self.cleaner.close()
        for log in self.logs.values():
            log.refuse_appends(f"log directory {self.directory} is offline: {self.failure}")
            log.close(clean=False)
        self.logs.clear()
        self._loaded = False
        return lost

    # -- closing ----------------------------------------------------------------------------------------------

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
        clean = clean and self._loaded
        failed = [log for log in self.logs.values() if not self._close_log(log, clean)]
        try:
            if clean:
                self.checkpoint()
                passed("close.flushed")
            if clean and not failed:
                checkpoints.write_clean_shutdown(self.directory, self.broker_epoch)
        except OSError as error:
            logger.error("%s gets no mark of a clean stop: %s", self.directory, error)
        finally:
            self.logs.clear()
            self._loaded = False
            self._unlock()

    def _close_log(self, log: PartitionLog, clean: bool) -> bool:
        """Close one log; whether all of it is on disk, as far as that was asked for."""
        whole = not log.failed
        try:
            log.close(clean=clean)
        except (OSError, ApiError) as error:
            # A full disk, say: the next start reads what the snapshots and indexes would have told.
            logger.error("%s-%d could not be closed cleanly: %s", log.topic, log.partition, error)
            whole = False
        return whole

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def _new_path(self, topic: str, partition: int, suffix: str) -> str:
        return self._path(new_name(topic, partition, suffix))

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
            if topic_id is not None and holds_other(path, topic_id):
                aside = self._new_path(topic, partition, STRAY_SUFFIX)
                os.rename(path, aside)
                logger.warning("%s held data of another topic of that name, which is now in %s", path, aside)
            os.makedirs(path, exist_ok=True)
            time_ms = self._now_ms if now_ms is None else now_ms
            log = log_class()(
                path,
                topic,
                partition,
                config,
                now_ms=time_ms,
                topic_id=topic_id,
                on_disk_error=self.report,
                files=self.files,
            )
            self.logs[topic, partition] = log
        elif log.topic_id is None and topic_id is not None:
            log.set_topic_id(topic_id)
        return log

    def sync(self) -> None:
        """Let partitions created since the last call survive a power loss; raises OSError."""
        sync_directory(self.directory)

    def delete_all(self, keys: Iterable[Key], now_ms: int | None = None) -> None:
        """Take partitions away at once; their files are removed `file.delete.delay.ms` later.

        Raises OSError when all that can go have gone.
        """
        time_ms = self._now_ms if now_ms is None else now_ms
        failure: OSError | None = None
        was_cleaned = False
        for topic, partition in keys:
            log = self.logs.pop((topic, partition), None)
            if log is None:
                continue
            was_cleaned |= self.cleaner.forget((topic, partition))
            log.close(clean=False)
            path = self._new_path(topic, partition, DELETE_SUFFIX)
            try:
                os.rename(log.directory, path)
            except OSError as error:
                failure = error
                continue
            passed("partition.renamed")
            log.move(path)
            self._doomed.append((time_ms + log.config.file_delete_delay_ms, path))
        sync_directory(self.directory)
        self.checkpoint()
        if was_cleaned:
            self.cleaner.save()
        if failure is not None:
            raise failure

    def future_path(self, topic: str, partition: int) -> str:
        """Return a new name for the directory of a partition that is being moved here."""
        return self._new_path(topic, partition, FUTURE_SUFFIX)

    def take_over(self, log: PartitionLog) -> None:
        """Let a log that was built in a future directory of this directory become the partition's.

        Raises OSError, and then nothing has changed but this: files of another topic that had the name are moved aside.
        """
        path = f"{self.directory}/{log.topic}-{log.partition}"
        log.release_idle(force=True)  # open indexes know their files by name
        self.logs[log.topic, log.partition] = log
        try:
            self.save_log_starts()  # first, or a crash would show deleted records again
            passed("move.copied")
            if os.path.exists(path):
                os.rename(path, self._new_path(log.topic, log.partition, STRAY_SUFFIX))
            os.rename(log.directory, path)
            passed("move.renamed")
            self._sync_or_rename_back(path, log.directory)
        except OSError:
            del self.logs[log.topic, log.partition]
            raise
        log.move(path)

    def _sync_or_rename_back(self, path: str, old: str) -> None:
        try:
            sync_directory(self.directory)
        except OSError:
            with contextlib.suppress(OSError):
                os.rename(path, old)
            raise

    def set_aside(self, topic: str, partition: int) -> None:
        """Take a partition out of use and keep its files under another name; raises OSError."""
        log = self.logs.pop((topic, partition))
        log.close(clean=False)
        os.rename(log.directory, self._new_path(topic, partition, STRAY_SUFFIX))
        sync_directory(self.directory)
        if self.cleaner.forget((topic, partition)):
            self.cleaner.save()

    def discard(self, path: str, now_ms: int) -> None:
        """Have a directory removed, a future one that is not wanted any more, by `tick`."""
        self._doomed.append((now_ms, path))

    def disk_space(self) -> tuple[int, int]:
        """Return (total bytes, usable bytes) of the file system that holds the directory."""
        stat = os.statvfs(self.directory)
        return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize

    # -- what is due ------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Do what is due, a bounded number of partitions a call."""
        self._now_ms = now_ms
        self._flusher.poll(now_ms)
        if self.failure:
            return
        self._jobs.run(now_ms, self.logs)
        self._purge_directories(now_ms)
        self.cleaner.tick(now_ms)
        if self._own_pool is not None:
            self._own_pool.tick(now_ms)
        self._write_due(now_ms)

    def _write_due(self, now_ms: int) -> None:
        for index, (interval, file, offsets) in enumerate(self._writers):
            if self.failure:
                return  # a moment ago: there are no logs any more, and nothing must be written of none
            if now_ms - self._written_ms[index] >= interval:
                self._written_ms[index] = now_ms
                self._write_checkpoint(file, offsets())

    def _write_checkpoint(self, file: CheckpointFile, offsets: Offsets) -> None:
        try:
            file.write_by(self._flusher.pool, offsets)
        except OSError as error:
            logger.error("%s: %s", file.path, error)
            self.report(error)

    def _apply_retention(self, log: PartitionLog, now_ms: int) -> None:
        log.purge_deleted(now_ms)
        if not self.cleaner.is_busy(log):  # with `compact,delete`, one after the other, as in Kafka
            log.delete_old_segments(now_ms)
        log.release_idle()

    def _flush_due(self, log: PartitionLog, now_ms: int) -> None:
        log.purge_deleted(now_ms)
        sealed_unflushed = log.recovery_point < log.segments.active.base_offset
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
        for _, file, offsets in self._writers:
            file.write(offsets())

    def save_log_starts(self) -> None:
        """Let what clients were told of deleted records survive a crash; raises OSError."""
        self._writers[1][1].write(self._log_starts(), sync=False)

    def _checkpoint_file(self, name: str) -> CheckpointFile:
        return CheckpointFile(self._path(name))

    def _recovery_points(self) -> Offsets:
        return {key: log.recovery_point for key, log in self.logs.items()}

    def _log_starts(self) -> Offsets:
        # A start that is a segment's base is found again from the files, so only the others are worth a line.
        return {
            key: log.log_start_offset for key, log in self.logs.items() if log.log_start_offset > log.segments.bases[0]
        }

    def _high_watermarks(self) -> Offsets:
        return {key: log.high_watermark for key, log in self.logs.items()}
