"""Interfaces for the additional checks of a topic's records, because the log itself knows no schemas and no schedules.

Owns the interfaces, and the check of a broker without a schema registry. This check refuses every batch: a topic whose
records cannot be checked must not accept any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from kbroker.log.append_info import BatchRefused
from kbroker.log.append_validation import BatchRules
from kbroker.log.log_config import LogConfig
from kbroker.protocol.errors import ErrorCode

MayWrite = Callable[[str], bool]
"""Whether the producer of a batch may write to a topic."""


def may_write_anywhere(_topic: str) -> bool:
    """Allow the batches that this broker itself produces."""
    return True


class RecordCheck(Protocol):
    """Checks the records of one topic according to its present configs."""

    @property
    def is_quick(self) -> bool:
        """Whether `passes` can return True."""

    def passes(self, data: bytes | memoryview, start: int, count: int) -> bool:
        """Whether all records certainly pass; False means unknown. This takes some nanoseconds per record.

        `data` contains `count` well-formed uncompressed records from byte `start` to its end.
        """

    async def judge(self, batch: memoryview, rules: BatchRules, may_write: MayWrite) -> memoryview:
        """Return the batch to store for a well-formed batch. Raises AppendError. The call may wait.

        The result may contain fewer records, and has the same offsets and sequences.
        """


class RecordChecks(Protocol):
    """The checks of one topic."""

    def under(self, config: LogConfig) -> RecordCheck:
        """Return the check for a config that requires one; return the same object for the same config."""


class _Refuses:
    """The checks of a broker without a schema registry. `under` returns this object itself for every config."""

    is_quick = False

    def under(self, _config: LogConfig) -> RecordCheck:
        return self

    def passes(self, _data: bytes | memoryview, _start: int, _count: int) -> bool:
        return False

    async def judge(self, _batch: memoryview, _rules: BatchRules, _may_write: MayWrite) -> memoryview:
        text = "The records' schemas cannot be checked: this broker has no schema registry."
        raise BatchRefused(ErrorCode.INVALID_RECORD, text)


NO_CHECKS: Final[RecordChecks] = _Refuses()
