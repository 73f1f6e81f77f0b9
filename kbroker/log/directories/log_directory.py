"""All partitions of one log directory.

Owns the directory: its lock, its identity, the mark of a clean stop, its partitions, and their periodic work. Never
answers a request, and has no clock and no timer: the owner calls `tick`, which does the due work.

    .lock  meta.properties  .kafka_cleanshutdown  *-offset-checkpoint (checkpointer.py)
    <topic>-<partition>/  <topic>-<partition>.<uuid>-delete/  <topic>-<partition>.<uuid>-stray/

A partition's directory that belongs to no topic of the cluster is left unchanged, and never opened. If a new topic of
the same name needs this path, the directory is renamed (-stray) and kept, as in Kafka: old data never appears in the
new topic. The remaining files of a topic that is known to be deleted are removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections import deque
from collections.abc import Callable, Container, Iterable
from concurrent.futures import Future
from functools import partial

from kbroker.failpoints import passed
from kbroker.log import checkpoints
from kbroker.log.cleaner.manager import Cleaner
from kbroker.log.cleaner.worker_pool import WorkerPool
from kbroker.log.directories.checkpointer import Checkpointer
from kbroker.log.directories.chores import Chores
from kbroker.log.directories.deleted_partitions import AT_ONCE, Departures, Remover
from kbroker.log.directories.dir_lock import lock_directory
from kbroker.log.directories.flusher import Flusher
from kbroker.log.directories.meta_properties import take_identity
from kbroker.log.directories.partition_dir_names import (
    FUTURE_SUFFIX,
    STRAY_SUFFIX,
    Key,
    MadeAhead,
    entries_of,
    holds_other,
    new_name,
    partition_path,
)
from kbroker.log.directories.recovery_progress import WORTH_THREADS, RecoveryProgress, bytes_to_recover, run_all
from kbroker.log.directories.room import Room
from kbroker.log.disk_errors import ends_directory
from kbroker.log.files import read_optional, remove_quietly, sync_directory
from kbroker.log.invariants import log_class
from kbroker.log.log_config import LogConfig
from kbroker.log.log_state import LogHost, Work
from kbroker.log.open_files import OpenFiles
from kbroker.log.partition_log import PartitionLog
from kbroker.log.recovery import LastStop
from kbroker.long_work import whole
from kbroker.protocol.errors import ApiError

_REMOVED_AT_ONCE = 4096

logger = logging.getLogger(__name__)

Belongs = Callable[[str, int, uuid.UUID | None], bool]


class LogDirectory:
    """The logs of one directory, by (topic, partition); all intervals in ms.

    First call `open`, which locks the directory and reads its identity. Then call `load`, and only then other methods.
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
        initial_delay_ms: int = 30_000,
        cleaner_pool: WorkerPool | None = None,
        files: OpenFiles | None = None,
        in_cluster: bool = False,
    ) -> None:
        """Initialize. A caller that passes a `cleaner_pool` must also tick and close the pool.

        `files` limits the open files of all directories that share it. If `in_cluster`, a full disk is a failure like
        any other (disk_errors.py).
        """
        self.directory = os.path.abspath(directory)
        self.node_id = node_id
        self.broker_epoch = broker_epoch
        self.logs: dict[Key, PartitionLog] = {}
        self.cluster_id = cluster_id or ""
        self.directory_id = ""
        self.was_clean = False
        """Whether the directory was closed cleanly before this process opened it."""
        self.failure = ""
        """The reason for which the directory is offline; empty while the directory is in use."""
        self.on_failure: Callable[[LogDirectory], None] = lambda _manager: None
        self.futures: list[tuple[Key, str]] = []
        """The partitions whose move to this directory was unfinished when logs were loaded, and their directories."""
        self.recovery = RecoveryProgress(self.directory)
        """The progress of loading and the remaining work."""
        self.recovery_threads = 1
        """The number of partitions that are opened in parallel after an unclean stop."""
        self._in_cluster = in_cluster
        self._initial_delay_ms = initial_delay_ms
        self._lock_fd = -1
        self._loaded = False
        self._now_ms = 0  # the latest time passed by a caller
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self._jobs = Chores(
            (retention_check_interval_ms, self._apply_retention),
            (flush_check_interval_ms, self._flush_due),
            (producer_id_check_interval_ms, self._expire_producers),
        )
        self._later: deque[Work] = deque()
        self._remover = Remover()
        self._departures = Departures(self.directory, self._remover, self.report)
        self.files = OpenFiles() if files is None else files
        self._flusher = Flusher()
        self._syncing: deque[Future[None]] = deque()
        self.room = Room(self.directory)
        pool = cleaner_pool or WorkerPool()
        self._own_pool = pool if cleaner_pool is None else None
        self.cleaner = Cleaner(self.directory, self.logs, pool, lambda: self._flusher.pool)
        self._checkpointer = Checkpointer(
            self.directory,
            self.logs,
            self._flusher,
            self.cleaner,
            self.report,
            in_use=lambda: not self.failure,
            recovery_point_interval_ms=recovery_point_interval_ms,
            log_start_interval_ms=log_start_interval_ms,
            high_watermark_interval_ms=high_watermark_interval_ms,
        )

    # -- opening and closing ----------------------------------------------------------------------------------

    def open(self, cluster_id: str = "") -> None:
        """Lock the directory and check that it belongs to this broker. Raises LogDirError.

        Other files are read only later. `cluster_id` is written if the directory has no cluster id yet.
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
        self,
        configs: Callable[[str], LogConfig],
        now_ms: int,
        belongs: Belongs = lambda _topic, _partition, _id: True,
        deleted: Container[bytes] = frozenset(),
    ) -> None:
        """Open every partition in the directory, and the directory itself if `open` was not called.

        `configs` returns a topic's settings by its name; `belongs(topic, partition, topic id)` returns whether the
        partition exists in the cluster; `deleted` contains the ids of deleted topics. After an unclean stop this reads
        all unflushed data. Raises RecoveryStopped if `recovery` is stopped meanwhile.
        """
        if self._lock_fd < 0:
            self.open()
        if self.was_clean:
            # The mark is removed before loading, because a crash during loading must not look like a clean stop.
            remove_quietly(self._path(checkpoints.CLEAN_SHUTDOWN))
        sync_directory(self.directory)  # after a kill, this also makes new file names durable
        if self.was_clean:
            passed("load.unmarked")
        self._now_ms = now_ms
        try:
            self._load_logs(configs, now_ms, belongs, deleted)
        except BaseException:
            self.close(clean=False)
            raise
        self._checkpointer.start(now_ms, self._initial_delay_ms)
        self._jobs.start(now_ms, self._initial_delay_ms)
        self._loaded = True

    def _unlock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _load_logs(
        self, configs: Callable[[str], LogConfig], now_ms: int, belongs: Belongs, deleted: Container[bytes]
    ) -> None:
        stored = self._checkpointer.read()
        cleaned = checkpoints.read_offsets(self._path(checkpoints.CLEANER_OFFSETS))
        any_may_be = not checkpoints.is_whole(self._path(checkpoints.CLEANER_OFFSETS), cleaned)
        found = entries_of(self.directory)
        for path in found.deleted:
            self._departures.discard(path, now_ms)
        self.futures += found.futures
        known = [(key, path) for key, path in found.partitions if self._is_known(belongs, deleted, key, path)]
        unread = 0
        if not self.was_clean:
            unread = bytes_to_recover((path, stored.recovery_points.get(key, 0)) for key, path in known)
        progress = self.recovery
        progress.begin(unread, len(known))

        def open_log(key: Key, path: str, config: LogConfig) -> PartitionLog:
            log = log_class()(
                path,
                *key,
                config,
                now_ms=now_ms,
                stop=LastStop(
                    clean=self.was_clean,
                    recovery_point=stored.recovery_points.get(key, 0),
                    log_start_offset=stored.log_starts.get(key, 0),
                    high_watermark=stored.high_watermarks.get(key, 0),
                    compacted=any_may_be or key in cleaned,
                    uncompacted_from=None if any_may_be else cleaned.get(key, 0),
                ),
                host=self.host(key, progress.add),
            )
            log.expire_producers(now_ms, self.producer_id_expiration_ms)
            return log

        tasks = ((key, partial(open_log, key, path, configs(key[0]))) for key, path in known)
        for key, log in run_all(tasks, self.recovery_threads if unread >= WORTH_THREADS else 1):
            progress.logs -= 1
            self.logs[key] = log
        progress.end()
        self.cleaner.load()
        if not self.logs.keys() >= stored.keys:
            self.checkpoint()  # an old entry would apply to a new partition of that name

    def _is_known(self, belongs: Belongs, deleted: Container[bytes], key: Key, path: str) -> bool:
        topic_id = checkpoints.read_topic_id(path)
        if belongs(*key, topic_id):
            return True
        if topic_id is not None and topic_id.bytes in deleted:
            self._departures.take(key, path, self._now_ms)
        else:
            logger.warning("%s belongs to no topic of the cluster and is left as it is", path)
        return False

    # -- failure ----------------------------------------------------------------------------------------------

    def report(self, error: OSError) -> None:
        """Handle a failed read, write or flush: if the error is not temporary, the directory goes offline."""
        self.room.on_error(error)
        if self.failure or not ends_directory(error, in_cluster=self._in_cluster):
            return
        self.fail(error)
        self.on_failure(self)

    def fail(self, error: OSError) -> None:
        """Mark the directory as offline, but do not notify `on_failure`."""
        self.failure = str(error) or type(error).__name__

    def abandon(self) -> list[Key]:
        """Stop using the directory and return its partitions; write no data, and keep the lock."""
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
        """Close all logs; a clean close writes the mark that makes the next start fast.

        A directory that was not completely loaded is left unchanged, so that a failed start loses no data. If a log has
        failed, no mark is written: the next start has to check its files.
        """
        self._now_ms = max(now_ms, self._now_ms)
        self.cleaner.close()
        if self._own_pool is not None:
            self._own_pool.close()
        self._later.clear()  # the close replaces this work: each log takes a snapshot, then checkpoints are written
        if self._loaded and not self.failure:
            whole(self._departures.finish_all())
        self._flusher.close(self._now_ms)
        self._remover.close()
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
        """Close one log; return whether the close was done as requested, without an error."""
        whole = not log.failed
        try:
            log.close(clean=clean)
        except (OSError, ApiError) as error:
            # The disk is full, for example: the next start then reads the log instead of the snapshots and indexes.
            logger.error("%s-%d could not be closed cleanly: %s", log.topic, log.partition, error)
            whole = False
        return whole

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def _new_path(self, topic: str, partition: int, suffix: str) -> str:
        return self._path(new_name(topic, partition, suffix))

    # -- partitions -------------------------------------------------------------------------------------------

    def takes(self, made: MadeAhead) -> bool:
        """Give a directory that was made ahead its partition's name. Return whether this was possible.

        The directory must be in this log directory, and the name must be free.
        """
        key = made.new.key
        if made.directory != self.directory or key in self.logs:
            return False
        try:
            self._departures.finish(key)
            os.rename(made.path, partition_path(self.directory, *key))
        except OSError:
            return False
        return True

    def host(self, key: Key, progress: Callable[[int], None] | None = None) -> LogHost:
        """Return the services and callbacks of this directory for a log."""
        on_holes = partial(self.cleaner.note_holes, key)
        return LogHost(self.report, self.files, self.do_later, on_holes, progress)

    def get_or_create(
        self, topic: str, partition: int, topic_id: uuid.UUID | None, config: LogConfig, now_ms: int | None = None
    ) -> PartitionLog:
        """Return a partition's log, created if missing; `sync` makes the creation durable. Raises OSError.

        If the directory belongs to another topic of that name, it is renamed. A new log has no open file before its
        first use.
        """
        log = self.logs.get((topic, partition))
        if log is None:
            path = partition_path(self.directory, topic, partition)
            self._departures.finish((topic, partition))
            self._checkpointer.forget((topic, partition))
            if topic_id is not None and holds_other(path, topic_id):
                aside = self._new_path(topic, partition, STRAY_SUFFIX)
                os.rename(path, aside)
                logger.warning("%s held data of another topic of that name, which is now in %s", path, aside)
            os.makedirs(path, exist_ok=True)
            time_ms = self._now_ms if now_ms is None else now_ms
            log = log_class()(
                path, topic, partition, config, now_ms=time_ms, topic_id=topic_id, host=self.host((topic, partition))
            )
            log.name_unsynced = True
            self.logs[topic, partition] = log
        elif log.topic_id is None and topic_id is not None:
            log.set_topic_id(topic_id)
        return log

    def sync(self) -> None:
        """Sync the directory, so that the partitions created since the last call survive a power loss.

        The flusher's thread does the work, because a busy disk takes tens of milliseconds; `tick` handles the result.
        If a log is flushed earlier, its flush also makes the directory's name durable.
        """
        self._syncing.append(self.sync_by_thread())

    def _poll_syncs(self) -> None:
        while self._syncing and self._syncing[0].done():
            error = self._syncing.popleft().exception()
            if isinstance(error, OSError):
                logger.error("%s: the directory could not be synced: %s", self.directory, error)
                self.report(error)

    def sync_by_thread(self) -> Future[None]:
        """Sync the directory on the flusher's thread."""
        return self._flusher.pool.submit(sync_directory, self.directory)

    @property
    def flusher(self) -> Flusher:
        """The thread that flushes the logs."""
        return self._flusher

    @property
    def departing(self) -> bool:
        """Whether the directory of a deleted partition still has the partition's name."""
        return self._departures.pending

    def delete_all(self, keys: Iterable[Key], now_ms: int | None = None) -> None:
        """Stop using partitions immediately; their files are removed `file.delete.delay.ms` later.

        If there are very many partitions, only the first few have been renamed when this method returns. If one of
        these renames fails, the others are still tried, and then an OSError is raised.
        """
        time_ms = self._now_ms if now_ms is None else now_ms
        for key in keys:
            log = self.logs.pop(key, None)
            if log is not None:
                was_cleaned = self.cleaner.forget(key)
                self._departures.add(key, log, time_ms)
                self._checkpointer.deleted(key, was_cleaned=was_cleaned)
        failure = self._departures.finish_some(AT_ONCE)
        self._later.append(self._depart)
        if failure is not None:
            raise failure

    async def _depart(self) -> None:
        """Rename the remaining deleted partitions, and then remove their checkpoint entries."""
        await self._departures.finish_all()
        await self._checkpointer.forget_deleted()

    def future_path(self, topic: str, partition: int) -> str:
        """Return a new name for the directory of a partition that is being moved here."""
        return self._new_path(topic, partition, FUTURE_SUFFIX)

    def take_over(self, log: PartitionLog) -> None:
        """Start using a log from a future directory as the partition's log.

        Raises OSError on failure. After a failure, only one change is possible: the directory of another topic of that
        name may have been renamed.
        """
        path = partition_path(self.directory, log.topic, log.partition)
        self._departures.finish((log.topic, log.partition))  # a later rename would rename the new directory
        log.segments.release_idle(force=True)  # open indexes refer to their files by name
        self.logs[log.topic, log.partition] = log
        try:
            self.save_log_starts()  # this is done first, because deleted records would otherwise reappear after a crash
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
        """Stop using a partition and keep its files under another name. Raises OSError on failure."""
        log = self.logs.pop((topic, partition))
        log.close(clean=False)
        os.rename(log.directory, self._new_path(topic, partition, STRAY_SUFFIX))
        sync_directory(self.directory)
        if self.cleaner.forget((topic, partition)):
            self.cleaner.save()

    def discard(self, path: str, now_ms: int) -> None:
        """Let `tick` remove an unwanted future directory."""
        self._departures.discard(path, now_ms)

    def disk_space(self) -> tuple[int, int]:
        """Return (total bytes, usable bytes) of the file system that contains the directory."""
        stat = os.statvfs(self.directory)
        return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize

    # -- due work ---------------------------------------------------------------------------------------------

    def do_later(self, work: Work) -> None:
        """Queue work that `due` does in pieces; no data is lost if the work is never done."""
        self._later.append(work)

    def tick(self, now_ms: int) -> None:
        """Do all due work, and wait until it is done."""
        whole(self.due(now_ms))
        self._remover.wait()

    async def due(self, now_ms: int) -> None:
        """Do the due work in pieces. Work that waits for the disk runs on threads, and may end later than this call."""
        self._now_ms = now_ms
        self._flusher.poll(now_ms)
        self.room.check(now_ms, self._flusher.pool)
        self._poll_syncs()
        await self._do_later()
        if self.failure:
            return
        await self._jobs.run(now_ms, self.logs)
        self._departures.remove_due(now_ms)
        await self.cleaner.due(now_ms)
        if self._own_pool is not None:
            self._own_pool.tick(now_ms)
        await self._checkpointer.write_due(now_ms)

    async def _do_later(self) -> None:
        """Do the queued work.

        Work that is queued meanwhile waits for the next call: otherwise a log that rolls often would delay the work of
        all logs.
        """
        try:
            self._checkpointer.settle_forgotten()
            left = len(self._later)
            while left and self._later and not self.failure:
                left -= 1
                await self._later.popleft()()
        except OSError as error:
            logger.error("%s: %s", self.directory, error)
            self.report(error)

    def _remove_deleted(self, log: PartitionLog, now_ms: int) -> None:
        paths = log.take_deleted(now_ms, _REMOVED_AT_ONCE)
        if paths:
            self._remover.remove(paths)

    async def _apply_retention(self, log: PartitionLog, now_ms: int) -> None:
        if not self.cleaner.is_busy(log):  # as in Kafka, `compact,delete` never does both at the same time
            await log.delete_old_segments(now_ms)
        log.segments.release_idle(force=False)

    async def _flush_due(self, log: PartitionLog, now_ms: int) -> None:
        self._remove_deleted(log, now_ms)
        await log.delete_below_start(now_ms)
        if log.wants_flush or now_ms - log.last_flush_ms >= log.config.flush_ms:
            self._flusher.submit(log)

    async def _expire_producers(self, log: PartitionLog, now_ms: int) -> None:
        await log.producers.expire(now_ms, self.producer_id_expiration_ms)

    def checkpoint(self) -> None:
        """Write all checkpoints now. Raises OSError on failure."""
        self._checkpointer.write_all()

    def save_log_starts(self) -> None:
        """Write the log starts that clients know, so that they survive a crash. Raises OSError on failure."""
        self._checkpointer.write_log_starts()
