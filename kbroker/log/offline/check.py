"""Audit a data directory, or one partition of it, without changing a byte.

Owns the order of the checks and the meaning of the mark of a clean stop. With the mark, every fault is reported as a
fault. Without it, the next start reads each log from its recovery point on, and faults that the start will repair are
reported as repairable. Never repairs (repair.py does). Also works on the files of Apache Kafka 3.9 and 4.x.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from kbroker.log import checkpoints
from kbroker.log.batch_scan import end_of_file
from kbroker.log.directories import meta_properties
from kbroker.log.directories.partition_dir_names import partition_of
from kbroker.log.files import (
    CLEANED_SUFFIX,
    HEADERS_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    offset_name,
    offset_of,
)
from kbroker.log.offline.audit import Checked, Finding, Progress, read_bounded
from kbroker.log.offline.check_batches import PartitionWalk
from kbroker.log.offline.check_checkpoints import (
    EpochCheck,
    check_snapshot,
    offsets_in_order,
    parse_offsets,
    parse_properties,
    parse_topic_id,
)
from kbroker.log.producers.producer_snapshots import decode_snapshot
from kbroker.log.producers.producer_state import ProducerEntry
from kbroker.log.segment.header_index import HeaderIndex

_OFFSET_CHECKPOINTS = (
    checkpoints.RECOVERY_POINTS,
    checkpoints.LOG_STARTS,
    checkpoints.HIGH_WATERMARKS,
    checkpoints.CLEANER_OFFSETS,
)
_METADATA_LOG = "__cluster_metadata"
"""The topic of the only log that Apache Kafka 4.4 closes without the last entry of its time index."""
_OF_A_DIRECTORY = (*_OFFSET_CHECKPOINTS, meta_properties.META_PROPERTIES)
_OF_A_PARTITION = (checkpoints.LEADER_EPOCHS, checkpoints.PARTITION_METADATA)
_CHECKS = 3  # the number of checks of a partition to which a broker may be writing
_OF_A_SEGMENT = (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX, HEADERS_SUFFIX)

Key = tuple[str, int]


class NoLogDir(Exception):  # noqa: N818 - its text is the reason, in one line
    """A directory contains neither partitions nor segments."""


@dataclass(slots=True)
class DataDir:
    """The content of the files beside the partitions' directories; offsets by checkpoint name and partition."""

    path: str
    clean: bool
    offsets: dict[str, dict[Key, int]] = field(default_factory=dict)
    topic_ids: dict[str, bytes] = field(default_factory=dict)

    def offset(self, checkpoint: str, key: Key) -> int | None:
        return self.offsets.get(checkpoint, {}).get(key)


def partitions_of(directory: str) -> dict[str, Key]:
    """Return the partitions in `directory` by path, or `directory` itself if it is a partition.

    Raises NoLogDir and OSError.
    """
    found = {}
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        key = partition_of(name)
        if key is not None and os.path.isdir(path):
            found[path] = key
    if found or os.path.exists(os.path.join(directory, meta_properties.META_PROPERTIES)):
        return found
    key = partition_of(os.path.basename(os.path.abspath(directory)))
    if key is None:
        raise NoLogDir(f"{directory} is neither a data directory nor one of a partition")
    return {directory: key}


def data_dir_of(directory: str, partitions: dict[str, Key]) -> str:
    """Return the data directory: the parent of `directory` if `directory` is a partition, otherwise `directory`."""
    return os.path.dirname(os.path.abspath(directory)) if directory in partitions else directory


def log_bytes(directory: str) -> int:
    """Return the number of bytes of all logs that an audit reads. Raises NoLogDir and OSError."""
    total = 0
    for path in partitions_of(directory):
        with os.scandir(path) as entries:
            total += sum(entry.stat().st_size for entry in entries if entry.name.endswith(LOG_SUFFIX))
    return total


def audit(
    directory: str,
    progress: Progress = lambda _count: None,
    *,
    before_recovery: bool = False,
    checked: Checked | None = None,
    pause: Callable[[], None] | None = None,
) -> Iterator[Finding]:
    """Yield every fault. Raises NoLogDir, OSError.

    `pause` is for a directory that a broker uses: it is called between repeated checks of a partition.

    `before_recovery` predicts the effects of a recovery, even if the mark of a clean stop means that no recovery will
    be done. `checked` counts what has been checked so far.
    """
    checked = checked or Checked()
    partitions = partitions_of(directory)
    above = data_dir_of(directory, partitions)
    clean = not before_recovery and os.path.exists(os.path.join(above, checkpoints.CLEAN_SHUTDOWN))
    state = DataDir(above, clean)
    findings = list(_read_checkpoints(state))
    if above == directory:
        yield from findings
        yield from parse_properties(os.path.join(above, meta_properties.META_PROPERTIES))
        if pause is None:  # a running broker's checkpoints may name a topic deleted seconds ago
            yield from _strangers(state, set(partitions.values()))
        checked.files += sum(name in _OF_A_DIRECTORY for name in os.listdir(above))
    for path, key in partitions.items():
        if pause is None:
            yield from _partition(path, key, state, progress, checked)
        else:
            yield from _lasting(path, partial(_partition, path, key, state, progress), checked, pause)


def _lasting(
    path: str, check: Callable[[Checked], Iterator[Finding]], checked: Checked, pause: Callable[[], None]
) -> Iterator[Finding]:
    """Yield the findings that all checks of a partition have in common.

    A batch that is being written seems incomplete only in some of the checks. Yield no findings if the partition is
    deleted between the checks.
    """
    lasting: dict[tuple[str, int | None], Finding] | None = None
    for number in range(_CHECKS):
        if number:
            pause()
        counted = Checked()
        try:
            found = {(each.path, each.position): each for each in check(counted)}
        except FileNotFoundError:  # a segment was deleted meanwhile
            if not os.path.isdir(path):
                return
            if number == _CHECKS - 1 and lasting is None:
                raise
            continue
        if lasting is None:
            checked.add(counted)
        lasting = found if lasting is None else {key: each for key, each in lasting.items() if key in found}
        if not lasting:
            return
    yield from (lasting or {}).values()


def _read_checkpoints(state: DataDir) -> Iterator[Finding]:
    for name in _OFFSET_CHECKPOINTS:
        path = os.path.join(state.path, name)
        try:
            state.offsets[name] = parse_offsets(path)
        except ValueError as error:
            yield Finding(path, None, str(error))


def _strangers(state: DataDir, known: set[Key]) -> Iterator[Finding]:
    for name, offsets in state.offsets.items():
        for topic, partition in offsets.keys() - known:
            what = f"names {topic}-{partition}, which is not in the directory"
            yield Finding(os.path.join(state.path, name), None, what, not state.clean)


def _partition(path: str, key: Key, state: DataDir, progress: Progress, checked: Checked) -> Iterator[Finding]:
    names = os.listdir(path)
    checked.partitions += 1
    checked.files += sum(name.endswith(_OF_A_SEGMENT) or name in _OF_A_PARTITION for name in names)
    yield from _leftovers(path, names, state.clean)
    yield from _topic_id(path, key, state)
    epochs = EpochCheck(path)
    yield from epochs.read()
    bases = sorted(base for name in names if name.endswith(LOG_SUFFIX) and (base := offset_of(name)) is not None)
    if not bases:
        yield Finding(path, None, "holds no segment", not state.clean)
        return
    log_start = max(state.offset(checkpoints.LOG_STARTS, key) or 0, bases[0])
    epochs.begin(log_start, clean=state.clean)
    walk = PartitionWalk(path, bases[0], epochs, _first_producers(path, bases[0]), progress, checked)
    first_recovered = _first_recovered(path, key, bases, state)
    for index, base in enumerate(bases):
        recovers = index >= first_recovered
        next_base = bases[index + 1] if index + 1 < len(bases) else None
        resting = next_base is not None or (state.clean and key[0] != _METADATA_LOG)
        whole = yield from walk.segment(base, next_base, recovers=recovers, resting=resting)
        if not whole and recovers:
            for later in bases[index + 1 :]:
                yield Finding(offset_name(path, later, LOG_SUFFIX), None, "recovery will remove the segment", True)
            break
    end = walk.next_offset
    for name in sorted(names):
        if name.endswith(SNAPSHOT_SUFFIX) and offset_of(name) is not None:
            yield from check_snapshot(os.path.join(path, name), end, recovery=first_recovered < len(bases))
    yield from epochs.end(end, clean=state.clean)
    high_watermark = state.offset(checkpoints.HIGH_WATERMARKS, key)
    recovery_point = state.offset(checkpoints.RECOVERY_POINTS, key)
    yield from offsets_in_order(path, log_start, end, high_watermark, recovery_point, clean=state.clean)


def _leftovers(path: str, names: list[str], clean: bool) -> Iterator[Finding]:
    logs = {name[: -len(LOG_SUFFIX)] for name in names if name.endswith(LOG_SUFFIX)}
    for name in sorted(names):
        if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)):
            yield Finding(
                os.path.join(path, name), None, "is left over from a compaction that was interrupted", not clean
            )
        elif name.endswith((*SEGMENT_SUFFIXES[1:], HEADERS_SUFFIX)) and name.split(".", 1)[0] not in logs:
            yield Finding(os.path.join(path, name), None, "belongs to no segment", not clean)
        elif name.endswith(HEADERS_SUFFIX):
            yield from _headers(os.path.join(path, name))


def _headers(path: str) -> Iterator[Finding]:
    """Check an index of headers. When the broker reads a damaged index, it builds the index again."""
    try:
        HeaderIndex(read_bounded(path) or b"")
    except ValueError as error:
        yield Finding(path, None, f"is no index of headers: {error}", True)


def _topic_id(path: str, key: Key, state: DataDir) -> Iterator[Finding]:
    file = os.path.join(path, checkpoints.PARTITION_METADATA)
    try:
        topic_id = parse_topic_id(file)
    except ValueError as error:
        yield Finding(file, None, str(error))
        return
    if topic_id is not None and state.topic_ids.setdefault(key[0], topic_id) != topic_id:
        yield Finding(file, None, f"has another topic id than the other partitions of {key[0]}")


def _first_producers(path: str, base: int) -> list[ProducerEntry] | None:
    """Return the producers at the beginning of the first segment; None if unknown."""
    if base == 0:
        return []
    try:
        return decode_snapshot(read_bounded(offset_name(path, base, SNAPSHOT_SUFFIX)) or b"")
    except (OSError, ValueError):
        return None


def _first_recovered(path: str, key: Key, bases: list[int], state: DataDir) -> int:
    """Return the index of the first segment that the next start reads batch by batch."""
    if state.clean:
        return len(bases)
    point = state.offset(checkpoints.RECOVERY_POINTS, key) or 0
    if point > bases[-1] and point > end_of_file(offset_name(path, bases[-1], LOG_SUFFIX), bases[-1]):
        point = 0  # the checkpoint belongs to another log
    return max(bisect_right(bases, point) - 1, 0)
