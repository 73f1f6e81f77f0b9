"""All log directories of a broker, and the directory of each partition.

Owns placement (fewest partitions first), the handling of a failed directory, and moves between directories. Never opens
a segment: each directory's `LogDirectory` opens its own segments.

A directory that cannot be opened, or that fails later, goes offline with its partitions, and the other directories
continue to serve (KIP-112). Two failures are fatal: the failure of all directories, and, on a single node, the failure
of the directory with the metadata.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import uuid
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from kbroker.config.model import ALL_DIRS
from kbroker.log.directories.dir_lock import LogDirError
from kbroker.log.directories.log_directory import Belongs, LogDirectory
from kbroker.log.directories.moves import Move, SourceError
from kbroker.log.directories.partition_dir_names import Key, MadeAhead, NewPartition, make_ahead
from kbroker.log.directories.recovery_progress import run_all
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.log.record_walk import announce_scan
from kbroker.protocol.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

_MAX_NAME = 255
_MAKERS = 4
"""The number of threads that create files.

Each thread may wait for the file system's journal, so more threads do not help.
"""
_MAX_AHEAD = 5_000
"""The maximum number of partitions in one call whose files are created in advance."""
_MAX_PREFERRED = 10_000
"""The maximum number of missing partitions whose directory is remembered.

A client may name any number of partitions.
"""


def unusable(directory: str, error: OSError) -> LogDirError:
    """Return a readable error with the directory and the system's message."""
    # If a file has the directory's name, mkdir reports "File exists". This text would not explain the problem.
    reason = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror or error
    return LogDirError(f"log directory {directory} cannot be used: {reason}")


class LogEvents:
    """Callbacks to the owner of the logs; in this class they do nothing."""

    def logs_failed(self, text: str) -> None:
        """Handle a failure after which the broker cannot continue."""

    def partitions_lost(self, keys: list[Key]) -> None:
        """Handle the loss of the partitions in a directory that has failed."""

    def log_moved(self, key: Key, log: PartitionLog) -> None:
        """Use a partition's new log, which contains the same data in another directory."""

    def move_ready(self) -> None:
        """Schedule a call of `advance_moves`. Other threads call this method."""


class LogManager:
    """All logs of a broker, by (topic, partition). First call `open`, then `load`, and only then other methods.

    `events` are callbacks to the owner of the logs.
    """

    def __init__(
        self, managers: Sequence[LogDirectory], metadata_directory: str, *, keeps_metadata: bool = True
    ) -> None:
        """`keeps_metadata` means that the broker cannot continue without the content of `metadata_directory`."""
        self._keeps_metadata = keeps_metadata
        self.managers = list(managers)
        self.metadata = next(m for m in managers if m.directory == os.path.abspath(metadata_directory))
        self.cordoned: frozenset[str] = frozenset()
        self.move_bytes_per_second = float("inf")
        self.moves: dict[Key, Move] = {}
        self.events = LogEvents()
        self._preferred: dict[Key, str] = {}
        self._movers = ThreadPoolExecutor(1, thread_name_prefix="kbroker-move")
        self._makers = ThreadPoolExecutor(_MAKERS, thread_name_prefix="kbroker-make")
        self._stopped = threading.Event()
        self._made: dict[Key, MadeAhead] = {}

    # -- opening and closing ----------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The directory with the broker's metadata."""
        return self.metadata.directory

    @property
    def cluster_id(self) -> str:
        return self.metadata.cluster_id

    @property
    def was_clean(self) -> bool:
        """Whether every directory in use had been closed cleanly."""
        return all(manager.was_clean for manager in self.online)

    @property
    def full(self) -> list[LogDirectory]:
        """The directories in use whose disk is full."""
        return [manager for manager in self.online if manager.room.lacking]

    def has_room(self, partitions: int) -> bool:
        """Whether one of the directories possibly has room for this many more partitions."""
        return any(manager.room.has_for(partitions) for manager in self._open_to_new())

    @property
    def online(self) -> list[LogDirectory]:
        return [manager for manager in self.managers if not manager.failure]

    @property
    def some_offline(self) -> bool:
        return any(manager.failure for manager in self.managers)

    def open(self) -> None:
        """Lock every directory.

        Raises LogDirError if a directory belongs to another broker, if no directory is usable, or if the metadata
        directory is unusable.
        """
        opened: list[LogDirectory] = []
        try:
            for manager in sorted(self.managers, key=lambda manager: manager is not self.metadata):
                self._open_one(manager)
                opened.append(manager)
            self._check_any_left()
            ids = [manager.directory_id for manager in self.online]
            if len(set(ids)) < len(ids):
                raise LogDirError("two log directories have the same directory.id: one is a copy of the other")
        except BaseException:
            for manager in opened:
                manager.close(clean=False)
            raise
        announce_scan()

    def _open_one(self, manager: LogDirectory) -> None:
        try:
            manager.open(self.metadata.cluster_id)
        except OSError as error:
            if self._is_needed(manager):
                raise unusable(manager.directory, error) from error
            manager.fail(error)
            logger.error("log directory %s is offline: %s", manager.directory, error)

    def load(
        self,
        configs: Callable[[str], LogConfig],
        now_ms: int,
        belongs: Belongs,
        deleted: Container[bytes] = frozenset(),
    ) -> None:
        """Open every partition, and restart interrupted moves. After an unclean stop, load the directories in parallel.

        Raise LogDirError if no directory is left.
        """

        def load_one(manager: LogDirectory) -> None:
            try:
                manager.load(configs, now_ms, belongs, deleted)
            except OSError as error:
                if self._is_needed(manager):
                    raise
                manager.fail(error)
                manager.abandon()
                logger.error("log directory %s is offline: %s", manager.directory, error)

        online = self.online
        for _ in run_all([(each, partial(load_one, each)) for each in online], 1 if self.was_clean else len(online)):
            pass
        self._check_any_left()
        self._settle_doubles()
        for manager in self.managers:
            manager.on_failure = self._failed
        for manager in self.online:
            for key, path in manager.futures:
                manager.discard(path, now_ms)
                if key in self:
                    self._move_again(key, manager.directory)
            manager.futures.clear()

    def _check_any_left(self) -> None:
        """Raise LogDirError if no directory is usable: without a directory, a broker would block all its partitions."""
        if not self.online:
            failures = ", ".join(f"{each.directory}: {each.failure}" for each in self.managers)
            raise LogDirError(f"no log directory can be used: {failures}")

    def stop_loading(self) -> None:
        """Let a running `load` end soon with RecoveryStopped; any thread may call this."""
        for manager in self.managers:
            manager.recovery.stop()

    def _move_again(self, key: Key, directory: str) -> None:
        try:
            self.move(*key, directory)
        except (ApiError, OSError) as error:
            # For example, the target is cordoned. The partition is complete in its old directory.
            logger.warning("%s-%d was being moved to %s and stays where it is: %s", *key, directory, error)

    def _settle_doubles(self) -> None:
        """Keep one copy of a partition.

        It has two copies if a broker ended between the two renames at the end of a move.
        """
        homes: dict[Key, LogDirectory] = {}
        for manager in self.online:
            for key, log in list(manager.logs.items()):
                other = homes.setdefault(key, manager)
                if other is manager:
                    continue
                shorter = manager if _extent(log) <= _extent(other.logs[key]) else other
                logger.warning("%s-%d is in two directories; the one in %s is set aside", *key, shorter.directory)
                shorter.set_aside(*key)
                homes[key] = other if shorter is manager else manager

    def close(self, clean: bool = True, now_ms: int = 0) -> None:
        """Close all directories; offline directories get no mark of a clean stop."""
        for move in self.moves.values():
            move.stop()
        self.moves.clear()
        self._movers.shutdown()
        self._stopped.set()
        self._makers.shutdown(cancel_futures=True)
        for manager in self.managers:
            manager.close(clean=clean and not manager.failure, now_ms=now_ms)

    # -- partitions -------------------------------------------------------------------------------------------

    def __contains__(self, key: Key) -> bool:
        return self.home(key) is not None

    def home(self, key: Key) -> LogDirectory | None:
        return next((manager for manager in self.managers if key in manager.logs), None)

    def get_or_create(
        self, topic: str, partition: int, topic_id: uuid.UUID | None, config: LogConfig, now_ms: int | None = None
    ) -> PartitionLog:
        """Return a log; create a missing log in the directory with the fewest partitions. Raises OSError."""
        key = topic, partition
        manager = self.home(key) or self._place(key)
        made = self._made.pop(key, None)
        if made is not None and not (made.new.topic_id == topic_id and manager.takes(made)):
            self._discard(made)
        try:
            log = manager.get_or_create(topic, partition, topic_id, config, now_ms)
        except OSError as error:
            manager.report(error)
            raise
        self._preferred.pop(key, None)
        return log

    def make_ahead(self, new: Sequence[NewPartition]) -> list[Future[list[MadeAhead]]]:
        """Create the files of missing partitions on threads, for `offer`.

        Failures are ignored here: `get_or_create` tries again, and reports an error.
        """
        if not self.online:
            return []
        left = {manager.directory: len(manager.logs) for manager in self._open_to_new()}
        jobs: list[list[tuple[str, NewPartition]]] = [[] for _ in range(_MAKERS)]
        for number, each in enumerate(new[:_MAX_AHEAD]):
            key = each.key
            directory = self._place(key).directory if key in self._preferred else min(left, key=left.__getitem__)
            if len(left) > 1:
                left[directory] = left.get(directory, 0) + 1
                self._prefer(key, directory)
            jobs[number % _MAKERS].append((directory, each))
        return [self._makers.submit(_make_all, job, self._stopped) for job in jobs if job]

    def offer(self, made: Sequence[MadeAhead]) -> None:
        """Let `get_or_create` use the files made ahead, until `withdraw`."""
        for each in made:
            before = self._made.get(each.new.key)
            self._made[each.new.key] = each
            if before is not None:
                self._discard(before)

    def withdraw(self, made: Sequence[MadeAhead]) -> None:
        """Remove the files that were made ahead and not used."""
        for each in made:
            if self._made.get(each.new.key) is each:
                del self._made[each.new.key]
                self._discard(each)

    def _discard(self, made: MadeAhead) -> None:
        for manager in self.online:
            if manager.directory == made.directory:
                manager.discard(made.path, 0)

    def _open_to_new(self) -> list[LogDirectory]:
        # Even if all directories are cordoned, a partition that was assigned to this broker earlier needs a directory
        # (as in Kafka).
        found = [manager for manager in self.online if not self.is_cordoned(manager.directory)] or self.online
        return [manager for manager in found if not manager.room.lacking] or found

    def _place(self, key: Key) -> LogDirectory:
        preferred = self._preferred.get(key)
        online = self.online
        if not online:
            raise OSError("no log directory is online")
        for manager in online:
            if manager.directory == preferred and not manager.room.lacking:
                return manager
        return min(self._open_to_new(), key=lambda manager: len(manager.logs))

    def is_cordoned(self, directory: str) -> bool:
        """Whether a directory accepts no new partitions (KIP-1066)."""
        return ALL_DIRS in self.cordoned or directory in self.cordoned

    @property
    def all_cordoned(self) -> bool:
        return all(self.is_cordoned(manager.directory) for manager in self.managers)

    def delete_all(self, keys: Iterable[Key], now_ms: int | None = None) -> None:
        """Stop using partitions immediately; their files are removed later.

        If a partition cannot be deleted, an OSError is raised, but only after all other partitions are deleted.
        Partitions in a failed directory stay in the table: if a broker's last directory has failed, the broker will end
        soon.
        """
        keys = list(keys)
        failure: OSError | None = None
        for key in keys:
            self._cancel(key, now_ms or 0)
        for manager in self.managers:
            own = [key for key in keys if key in manager.logs]
            try:
                if own and manager.failure:
                    raise OSError(errno.EIO, f"log directory {manager.directory} has failed: {manager.failure}")
                if own:
                    manager.delete_all(own, now_ms)
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure

    @property
    def departing(self) -> bool:
        """Whether a deleted partition's directory may still have its name.

        Always true while a log directory is offline.
        """
        return self.some_offline or any(manager.departing for manager in self.managers)

    def sync_by_threads(self) -> list[Future[None]]:
        """Fsync the directories on threads after creations and renames."""
        return [manager.sync_by_thread() for manager in self.online]

    def save_log_starts(self) -> None:
        for manager in self.online:
            _attempt(manager, "the start offsets of logs could not be saved", manager.save_log_starts)

    def sync(self) -> None:
        for manager in self.online:
            manager.sync()

    def set_producer_id_expiration(self, ms: int) -> None:
        for manager in self.managers:
            manager.producer_id_expiration_ms = ms

    # -- failures ---------------------------------------------------------------------------------------------

    def _is_needed(self, manager: LogDirectory) -> bool:
        return manager is self.metadata and self._keeps_metadata

    def _failed(self, manager: LogDirectory) -> None:
        logger.error("log directory %s goes offline: %s", manager.directory, manager.failure)
        if self._is_needed(manager) or not self.online:
            self.events.logs_failed(f"log directory {manager.directory} has failed: {manager.failure}")
            return
        for key, move in list(self.moves.items()):
            if move.target is manager or key in manager.logs:
                self.moves.pop(key).stop()
        self.events.partitions_lost(manager.abandon())

    # -- moves ------------------------------------------------------------------------------------------------

    def move(self, topic: str, partition: int, directory: str) -> None:
        """Start moving a partition (AlterReplicaLogDirs, ReplicaManager.alterReplicaLogDirs). Raises ApiError.

        For a missing partition the directory is remembered, and REPLICA_NOT_AVAILABLE is raised.
        """
        key = topic, partition
        if len(f"{topic}-{partition}.{uuid.UUID(int=0).hex}-future") > _MAX_NAME:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
        target = next((manager for manager in self.managers if manager.directory == directory), None)
        if target is None:
            raise ApiError(ErrorCode.LOG_DIR_NOT_FOUND)
        if target.failure:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        if self.is_cordoned(directory):
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        source = self.home(key)
        if source is None:
            self._prefer(key, directory)
            raise ApiError(ErrorCode.REPLICA_NOT_AVAILABLE)
        running = self.moves.get(key)
        if running is not None and running.target is target:
            return
        self._cancel(key, 0)
        if source is target:
            return
        if self.some_offline:
            # An offline directory might also contain the partition, and the two copies could never be distinguished
            # later.
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        ready = self.events.move_ready
        self.moves[key] = Move(source.logs[key], target, self._movers, lambda: self.move_bytes_per_second, ready)
        logger.info("%s-%d begins to move from %s to %s", topic, partition, source.directory, directory)

    def _prefer(self, key: Key, directory: str) -> None:
        self._preferred.pop(key, None)
        self._preferred[key] = directory
        if len(self._preferred) > _MAX_PREFERRED:
            del self._preferred[next(iter(self._preferred))]

    def _cancel(self, key: Key, now_ms: int) -> None:
        move = self.moves.pop(key, None)
        if move is not None:
            move.stop()
            move.target.discard(move.path, now_ms)

    def advance_moves(self, now_ms: int) -> None:
        """Finish the moves that are ready."""
        for key, move in list(self.moves.items()):
            try:
                ready = move.is_ready()
                if ready:
                    self._end_move(key, move, now_ms)
            except OSError as error:
                logger.error("%s-%d cannot be moved to %s: %s", *key, move.target.directory, error)
                self._cancel(key, now_ms)
                failed = self.home(key) if isinstance(error, SourceError) else move.target
                if failed is not None and error.errno is not None:
                    failed.report(error)

    def _end_move(self, key: Key, move: Move, now_ms: int) -> None:
        log = move.finish(now_ms)
        source = self.home(key)
        cleaned_to = source.cleaner.cleaned_to(*key) if source is not None else None
        if cleaned_to is not None:
            move.target.cleaner.note(key, cleaned_to)
        try:
            move.target.take_over(log)
        except OSError:
            # Otherwise the entry would apply to a new partition of that name, whose log would never be compacted up to
            # that offset.
            move.target.cleaner.forget(key)
            raise
        # The copy is now the log. Even after a later failure, no records may be appended to the old log.
        del self.moves[key]
        self.events.log_moved(key, log)
        logger.info("%s-%d has moved to %s", *key, move.target.directory)
        if source is not None:
            trouble = f"{key[0]}-{key[1]} has moved, but its old files could not be removed"
            _attempt(source, trouble, lambda: source.delete_all([key], now_ms))
        _attempt(move.target, "checkpoints could not be written", move.target.checkpoint)

    # -- compaction -------------------------------------------------------------------------------------------

    @property
    def cleaning(self) -> bool:
        return any(manager.cleaner.busy for manager in self.online)

    async def follow_cleaning(self, now_ms: int) -> None:
        """Apply finished compactions and start the next ones, in pieces."""
        for manager in self.online:
            await manager.cleaner.due(now_ms)

    def change_cleaning_rate(self) -> None:
        for manager in self.online:
            manager.cleaner.change_rate()

    # -- due work ---------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Do all due work, and wait until it is done."""
        for manager in self.online:
            manager.tick(now_ms)
        if self.moves:
            self.advance_moves(now_ms)

    async def due(self, now_ms: int) -> None:
        """Do the due work in pieces."""
        for manager in self.online:
            await manager.due(now_ms)
        if self.moves:
            self.advance_moves(now_ms)


def _extent(log: PartitionLog) -> tuple[int, int]:
    """Return a sort key for copies of a log: the longer copy is kept, then the copy with the higher log start."""
    return log.log_end_offset, log.log_start_offset


def _make_all(job: Sequence[tuple[str, NewPartition]], stopped: threading.Event) -> list[MadeAhead]:
    """Create files on a thread."""
    found: list[MadeAhead] = []
    for directory, new in job:
        if stopped.is_set():
            break
        # If this fails, the later creation of the log raises the same error.
        with contextlib.suppress(OSError, ValueError):
            made = make_ahead(directory, new)
            if made is not None:
                found.append(made)
    return found


def _attempt(manager: LogDirectory, trouble: str, work: Callable[[], object]) -> None:
    """Do optional work; report an error to the directory."""
    try:
        work()
    except OSError as error:
        logger.error("%s: %s: %s", manager.directory, trouble, error)
        manager.report(error)
