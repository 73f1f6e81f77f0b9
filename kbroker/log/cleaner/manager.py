"""Chooses the next log of a directory to clean, and applies the results.

Owns the running jobs, the clean offset of each log (`cleaner-offset-checkpoint`), and the list of logs that cannot be
cleaned. Never reads a record, and has no clock: `tick` does the due work on the event loop. The results of a job are
applied only if the log still consists of exactly the job's segments. A log that was deleted, truncated or otherwise
changed meanwhile stays unchanged.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, Final

from kbroker.log import checkpoints
from kbroker.log.checkpoints import CheckpointFile
from kbroker.log.cleaner.cleanable import Cleanable, examine, make_job
from kbroker.log.cleaner.worker_pool import WorkerPool, WorkerProcess
from kbroker.log.partition_log import PartitionLog
from kbroker.log.segment.segment import Segment
from kbroker.log.segment_swap import remove_cleaned
from kbroker.long_work import turn, whole

_ATTEMPTS: Final = 3

logger = logging.getLogger(__name__)

Key = tuple[str, int]


@dataclass(slots=True)
class _Running:
    key: Key
    log: PartitionLog
    worker: WorkerProcess
    segments: dict[int, Segment]
    truncations: int
    read_bytes: int
    left_bytes: int = 0
    end_offset: int = -1
    noted: Future[None] | None = None
    """A future that is done when the checkpoint on disk records that the log is allowed to have holes.

    Until then the log must not have holes.
    """
    abandoned: bool = False
    ended: bool = False
    result: dict[str, Any] = field(default_factory=dict)
    messages: deque[dict[str, Any]] = field(default_factory=deque)


@dataclass(slots=True)
class Done:
    """Statistics of the compaction since the start, for metrics."""

    read_bytes: int = 0
    left_bytes: int = 0
    seconds: float = 0.0
    """The duration of the last log's compaction, in seconds."""
    recopy: float = 0.0
    """The share of the last log's bytes that remained after its compaction."""
    checked_ms: int | None = None
    """The time of the last search for work."""
    dirtiest: float = 0.0
    """The largest share of dirty bytes in any log, at the last search."""


class Cleaner:
    """Compaction of the logs of one directory; times in ms."""

    def __init__(
        self,
        directory: str,
        logs: Mapping[Key, PartitionLog],
        pool: WorkerPool,
        writer: Callable[[], Executor],
    ) -> None:
        """Initialize; `writer` returns an executor whose thread may wait for the disk."""
        self._file = CheckpointFile(f"{directory}/{checkpoints.CLEANER_OFFSETS}")
        self._writer = writer
        self._logs = logs
        self._pool = pool
        self._cleaned_to: dict[Key, int] = {}
        self._truncations: dict[Key, int] = {}
        self._running: list[_Running] = []
        self._check_ms = 0
        self._checking = False
        self._failures: Counter[Key] = Counter()
        self.done = Done()
        self.uncleanable: dict[Key, str] = {}
        """The logs that are not cleaned until the next start, and the reasons."""

    def load(self) -> None:
        """Read the clean offset of each log.

        Entries of missing logs are removed. A truncated log is dirty from its start. For recovery an entry also means
        that the log may have holes, so the entry remains as long as the log exists.
        """
        found = checkpoints.read_offsets(self._file.path)
        for key, offset in found.items():
            log = self._logs.get(key)
            if log is not None:
                self._cleaned_to[key] = offset if offset <= log.log_end_offset else log.log_start_offset
        if not checkpoints.is_whole(self._file.path, found):
            # The damaged file may have contained an entry for any of the logs.
            for key, log in self._logs.items():
                self._cleaned_to.setdefault(key, log.log_start_offset)
        if self._cleaned_to != found:
            self.save()

    def save(self) -> None:
        """Write the clean offset of each log. If the write fails, a log may be cleaned again later."""
        self._write(self._file.begin(), self._lines())

    def save_by_thread(self) -> Future[None]:
        """Write the clean offsets on a thread, so that the event loop does not wait for the disk."""
        return self._writer().submit(self._write, self._file.begin(), self._lines())

    def _lines(self) -> list[str]:
        return [checkpoints.offset_line(key, offset) for key, offset in self._cleaned_to.items()]

    def _write(self, number: int, lines: list[str]) -> None:
        try:
            self._file.put(number, lines)
        except OSError as error:
            logger.error("%s could not be written: %s", self._file.path, error)

    def cleaned_to(self, topic: str, partition: int) -> int | None:
        """Return the offset up to which a log is clean; None if it was never cleaned."""
        return self._cleaned_to.get((topic, partition))

    def note(self, key: Key, cleaned_to: int) -> None:
        """Set a log's clean offset and write it immediately: recovery must know that the log may have holes."""
        self._cleaned_to[key] = cleaned_to
        self.save()

    def note_holes(self, key: Key) -> None:
        """Record on disk that a log may have holes, before it has a hole. Raises OSError on failure."""
        self._cleaned_to.setdefault(key, 0)
        self._file.put(self._file.begin(), self._lines())

    def is_busy(self, log: PartitionLog) -> bool:
        """Whether a log's segments are being cleaned. Retention then has to wait."""
        return any(job.log is log for job in self._running)

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def forget(self, key: Key) -> bool:
        """Delete the state and the job of a deleted log; return whether the caller must call `save`."""
        self.uncleanable.pop(key, None)
        self._failures.pop(key, None)
        self._truncations.pop(key, None)
        for job in self._running:
            if job.key == key:
                self._abandon(job)
        return self._cleaned_to.pop(key, None) is not None

    def close(self) -> None:
        """Stop the running jobs: they are repeated after the next start."""
        for job in self._running:
            job.ended = True
            self._pool.discard(job.worker)
            remove_cleaned(job.log.directory)
        self._running.clear()

    # -- due work ---------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Do the work of `due` without interruption."""
        whole(self.due(now_ms))

    async def due(self, now_ms: int) -> None:
        """Apply results and give work to free workers, in pieces."""
        for job in list(self._running):
            await self._follow(job, now_ms)
        if now_ms >= self._check_ms and self._pool.is_free and not self._checking:
            self._checking = True
            try:
                await self._check(now_ms)
            finally:
                self._checking = False

    async def _check(self, now_ms: int) -> None:
        while self._pool.is_free:
            found = await self._dirtiest(now_ms)
            if found is None or not await self._begin(found, now_ms):
                self._check_ms = now_ms + self._pool.settings.backoff_ms
                return

    async def _dirtiest(self, now_ms: int) -> Cleanable | None:
        best = None
        dirtiest = 0.0
        for key in list(self._logs):  # a list of only the keys, because a list of all pairs would take milliseconds
            await turn
            log = self._logs.get(key)
            if log is None:
                continue
            if not log.config.compact or len(log.segments) < 2 or log.failed or key in self.uncleanable:
                continue
            if self.is_busy(log):
                continue
            self._notice_truncation(key, log)
            try:
                found = examine(log, self._cleaned_to.get(key), now_ms)
            except OSError as error:
                self._give_up(key, str(error))
                continue
            dirtiest = max(dirtiest, found.ratio)
            if found.precedes(best):
                best = found
        self.done.checked_ms, self.done.dirtiest = now_ms, dirtiest
        return best

    def _notice_truncation(self, key: Key, log: PartitionLog) -> None:
        """Clean from the start again after a truncation, which may have removed records before the clean offset."""
        if self._truncations.get(key, 0) != log.truncations:
            self._truncations[key] = log.truncations
            if key in self._cleaned_to:
                self.note(key, log.log_start_offset)

    async def _begin(self, found: Cleanable, now_ms: int) -> bool:
        log, settings, pool = found.log, self._pool.settings, self._pool
        key = (log.topic, log.partition)
        try:
            map_bytes = int(pool.share(settings.dedupe_buffer_size))
            order = await make_job(found, now_ms, map_bytes, int(pool.share(settings.io_buffer_size)))
            if order is None or self._logs.get(key) is not log or not pool.is_free:
                return False  # the log has changed meanwhile
            worker = pool.acquire()
        except OSError as error:
            logger.error("%s-%d cannot be cleaned now: %s", *key, error)
            return False
        noted = None
        if key not in self._cleaned_to:
            self._cleaned_to[key] = found.first_dirty
            noted = self.save_by_thread()
        segments = {each.base_offset: each for each in log.segments if each.base_offset < found.upper}
        self._running.append(_Running(key, log, worker, segments, log.truncations, 0, noted=noted))
        worker.send({"clean": order.encode(), "rate": self._rate()})
        logger.debug("%s-%d: cleaning from %d to %d", *key, found.first_dirty, found.upper)
        return True

    def _rate(self) -> float | None:
        rate = self._pool.share(self._pool.settings.io_max_bytes_per_second)
        return rate if 0 < rate < 1e300 else None  # Kafka's default is the largest double, which means no limit

    def change_rate(self) -> None:
        """Apply a changed rate limit to the running jobs."""
        for job in self._running:
            job.worker.send({"rate": self._rate()})

    # -- jobs -------------------------------------------------------------------------------------------------

    async def _follow(self, job: _Running, now_ms: int) -> None:
        """Process a worker's new messages one after the other."""
        if job.ended or (job.noted is not None and not job.noted.done()):
            return
        has_ended = job.worker.has_ended  # read first: if the worker has ended, `receive` returns the rest
        job.messages += job.worker.receive()
        while job.messages and not job.ended:
            if not self._is_wanted(job):
                self._abandon(job)
            self._take(job, job.messages.popleft(), now_ms)
            await turn
        if not job.ended and not self._is_wanted(job):
            self._abandon(job)
        if has_ended and not job.ended and not job.messages:
            self._lost(job, now_ms)

    def _is_wanted(self, job: _Running) -> bool:
        log = job.log
        same = self._logs.get(job.key) is log and log.truncations == job.truncations
        return same and log.config.compact and not log.failed

    def _abandon(self, job: _Running) -> None:
        if not job.abandoned:
            job.abandoned = True
            job.worker.send({"abort": True})

    def _take(self, job: _Running, message: dict[str, Any], now_ms: int) -> None:
        if "group" in message:
            self._swap(job, message, now_ms)
        elif "done" in message:
            if job.abandoned:
                self._end(job, now_ms)
                return
            job.end_offset = message["done"]
            job.result = message
            job.worker.send({"sync": True})
        elif "synced" in message:
            if not job.abandoned:
                self._complete(job)
            self._end(job, now_ms)
        else:
            self._failed(job, message["kind"], message["error"], now_ms)

    def _swap(self, job: _Running, message: dict[str, Any], now_ms: int) -> None:
        old = [job.segments[base] for base in message["group"]]
        log = job.log
        first = log.segments.index_of(old[0])
        if job.abandoned or first < 0 or log.segments[first : first + len(old)] != old:
            self._abandon(job)  # retention or DeleteRecords has changed the segments
            return
        try:
            log.replace_segments(old, now_ms)
        except OSError as error:
            logger.error("%s-%d: compacted segments could not be swapped in: %s", *job.key, error)
            self._abandon(job)
            return
        job.read_bytes += message["before"]
        job.left_bytes += message["after"]

    def _complete(self, job: _Running) -> None:
        self._cleaned_to[job.key] = job.end_offset
        self._truncations[job.key] = job.truncations
        self._failures.pop(job.key, None)
        self.save_by_thread()
        self.done.read_bytes += job.read_bytes
        self.done.left_bytes += job.left_bytes
        self.done.seconds = job.result["seconds"]
        self.done.recopy = job.left_bytes / job.read_bytes if job.read_bytes else 0.0
        if job.result["keyless"]:
            logger.warning("%s-%d: %d records without a key were dropped", *job.key, job.result["keyless"])
        if job.result["unreadable_count"]:
            logger.warning(
                "%s-%d: compaction left %d batches unchanged, because their records cannot be read: %s",
                *job.key,
                job.result["unreadable_count"],
                "; ".join(job.result["unreadable"]),
            )
        logger.info(
            "%s-%d: compacted up to %d, %d bytes became %d in %.1f s",
            *job.key,
            job.end_offset,
            job.read_bytes,
            job.left_bytes,
            job.result["seconds"],
        )

    def _failed(self, job: _Running, kind: str, text: str, now_ms: int) -> None:
        if kind in ("corrupt", "bug") and not job.abandoned:
            self._give_up(job.key, text)
        elif kind == "io" and not job.abandoned:
            logger.error("%s-%d: compaction failed and is tried again later: %s", *job.key, text)
            self._end(job, now_ms, self._pool.settings.backoff_ms)
            return
        self._end(job, now_ms)

    def _lost(self, job: _Running, now_ms: int) -> None:
        """Handle the end of a worker's process: the log is unchanged and will be cleaned again."""
        if not job.abandoned:
            self._failures[job.key] += 1
            logger.error("%s-%d: the compaction process %d has died", *job.key, job.worker.pid)
            if self._failures[job.key] >= _ATTEMPTS:
                self._give_up(job.key, f"{_ATTEMPTS} compaction processes died")
        self._end(job, now_ms, self._pool.settings.backoff_ms)

    def _give_up(self, key: Key, reason: str) -> None:
        self.uncleanable[key] = reason
        logger.error("%s-%d will not be compacted before the next start: %s", *key, reason)

    def _end(self, job: _Running, now_ms: int, pause_ms: int = 0) -> None:
        job.ended = True
        self._running.remove(job)
        self._pool.release(job.worker, now_ms)
        if self._logs.get(job.key) is job.log:
            remove_cleaned(job.log.directory)
        self._check_ms = now_ms + pause_ms
