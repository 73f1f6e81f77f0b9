"""Writing the outcome of transactions into the partitions they touched.

Owns the way of a marker: from a transaction whose outcome is in the log, by each partition's leader, to what its answer
means. Never decides an outcome, and keeps nothing: what has not been written yet is in the coordinator's shard, which
asks again, so a marker that is lost in a crash is written after it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, Protocol

from kbroker.coordination.then import then
from kbroker.protocol.errors import ErrorCode
from kbroker.txn.transaction import TopicPartition

log = logging.getLogger(__name__)

Answers = Mapping[TopicPartition, ErrorCode]

_WRITTEN = frozenset({ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION})
_FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})


class Marker(NamedTuple):
    """The end of one producer's transaction on some partitions (an entry of WriteTxnMarkers)."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


class Target(Protocol):
    """A broker that takes markers for partitions it leads."""

    def write(self, marker: Marker) -> Answers | Awaitable[Answers]:
        """Append a marker to its partitions; an error code for each."""


class Progress(NamedTuple):
    """How far a round of markers came.

    `fenced` are partitions that know of somebody newer and will never take the marker; `failed` says why others did not
    take it yet. What is named nowhere is to be tried again as well.
    """

    done: frozenset[TopicPartition] = frozenset()
    fenced: frozenset[TopicPartition] = frozenset()
    failed: Mapping[TopicPartition, ErrorCode] = MappingProxyType({})


class Round(NamedTuple):
    """Which partitions a part of a round of markers is about, and how far they are, now or later."""

    partitions: frozenset[TopicPartition]
    progress: Progress | Awaitable[Progress]


class MarkerWriter:
    """Sends markers to leaders.

    `leader_of` returns a partition's leader: None where the partition does not exist (any more), -1 where nobody leads.
    `target_of` returns the broker of a node id, None where it cannot be reached.
    """

    def __init__(
        self, leader_of: Callable[[TopicPartition], int | None], target_of: Callable[[int], Target | None]
    ) -> None:
        self._leader_of = leader_of
        self._target_of = target_of

    def write(self, marker: Marker) -> list[Round]:
        """Send one round of markers, leader by leader; what no answer names is to be tried again."""
        by_leader: dict[int, list[TopicPartition]] = {}
        gone = []
        for partition in marker.partitions:
            leader = self._leader_of(partition)
            if leader is None:
                gone.append(partition)
            else:
                by_leader.setdefault(leader, []).append(partition)
        rounds = [Round(frozenset(gone), Progress(frozenset(gone)))] if gone else []
        for leader, partitions in by_leader.items():
            target = self._target_of(leader)
            if target is None:
                rounds.append(Round(frozenset(partitions), Progress()))
            else:
                part = marker._replace(partitions=tuple(partitions))
                rounds.append(Round(frozenset(partitions), then(target.write(part), partial(_judge, part))))
        return rounds or [Round(frozenset(), Progress())]


def _judge(marker: Marker, answers: Answers) -> Progress:
    """Tell what was written. Everything but fencing is tried again: an outcome that was decided must be carried out.

    Each partition is judged by itself: that one knows of somebody newer says nothing about the others, where readers
    may wait for this marker.
    """
    done, fenced, failed = set(), set(), {}
    for partition in marker.partitions:
        code = answers.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
        if code in _WRITTEN:
            done.add(partition)
        elif code in _FENCED:
            log.warning("%s-%d refuses the marker of producer %d: %s", *partition, marker.producer_id, code.name)
            fenced.add(partition)
        else:
            failed[partition] = code
    return Progress(frozenset(done), frozenset(fenced), failed)
