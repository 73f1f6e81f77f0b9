"""What a topic may demand of its records beyond their form: an interface, since the log knows no schemas.

Owns the vocabulary, and the check of a broker that cannot check: it refuses every batch, because a topic whose records
nobody can check must not take any.
"""

from __future__ import annotations

from typing import Final, Protocol

from kbroker.log.append_info import BatchRefused
from kbroker.log.append_validation import BatchRules
from kbroker.log.log_config import LogConfig
from kbroker.protocol.errors import ErrorCode


class RecordCheck(Protocol):
    """Judges the records of one topic under its present configs."""

    @property
    def is_quick(self) -> bool:
        """Whether `passes` can ever be True."""

    def passes(self, data: bytes | memoryview, start: int, count: int) -> bool:
        """Whether all records certainly pass; False proves nothing. Takes some nanoseconds a record.

        `data` has `count` well-formed records, uncompressed, from byte `start` to its end.
        """

    async def judge(self, batch: memoryview, rules: BatchRules) -> memoryview:
        """Return what is to be stored of a well-formed batch; raises AppendError. May wait.

        The result may have fewer records, and has the same offsets and sequences.
        """


class RecordChecks(Protocol):
    """The checks of one topic."""

    def under(self, config: LogConfig) -> RecordCheck:
        """Return the check under a config that wants one: the same object for the same config."""


class _Refuses:
    """The check, and the checks, of a broker without a schema registry."""

    is_quick = False

    def under(self, _config: LogConfig) -> RecordCheck:
        return self

    def passes(self, _data: bytes | memoryview, _start: int, _count: int) -> bool:
        return False

    async def judge(self, _batch: memoryview, _rules: BatchRules) -> memoryview:
        text = "The records' schemas cannot be checked: this broker has no schema registry."
        raise BatchRefused(ErrorCode.INVALID_RECORD, text)


NO_CHECKS: Final[RecordChecks] = _Refuses()
