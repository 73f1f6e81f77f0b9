"""The arguments and the result of an append.

Owns the types that validation, producer state and the log share. Contains data only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from kbroker.protocol.errors import ApiError, ErrorCode

RecordErrors = list[tuple[int, str | None]]


class AppendOrigin(Enum):
    """The origin of an append. It determines the checks of the append."""

    CLIENT = 0
    """A produce request, or a batch of the broker itself (broker/own_produce.py): everything is checked."""
    COORDINATOR = 1
    """A coordinator of this broker, which has just built the batch: the batch's sequences and bytes are not checked."""
    REPLICATION = 2
    """Replication: batches that a leader has already checked."""


CLIENT: Final = AppendOrigin.CLIENT
COORDINATOR: Final = AppendOrigin.COORDINATOR
REPLICATION: Final = AppendOrigin.REPLICATION


@dataclass(slots=True)
class AppendInfo:
    """The position of a batch in the log.

    `log_append_time_ms` is -1 if the topic keeps the producers' timestamps. For a duplicate, the offsets are the
    offsets of the first append, and the time is the largest timestamp of the earlier batch, as in Kafka.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


class AppendError(ApiError):
    """A batch was refused, and the log is unchanged.

    `message` is for the response: as in Kafka, errors of single records have a message. Errors of kbroker's own rule
    about the batch (`BatchRefused`) also have a message. All other errors have none. `detail` is for the broker's own
    log. `record_errors` are (index within the batch, message).
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        record_errors: RecordErrors | None = None,
        *,
        detail: str | None = None,
    ) -> None:
        super().__init__(code, message)
        self.detail = detail or message
        self.record_errors: RecordErrors = record_errors or []

    @property
    def response_message(self) -> str | None:
        """The message in the response."""
        return self.message if self.record_errors else None

    def __str__(self) -> str:
        return f"{self.code.name}: {self.detail}" if self.detail else self.code.name


class BatchRefused(AppendError):  # noqa: N818 - an outcome
    """A batch was refused because of a rule about the batch as a whole; the response has the message."""

    @property
    def response_message(self) -> str | None:
        return self.message


def invalid_records(errors: RecordErrors, count: int) -> AppendError:
    """Return the refusal of a batch with bad records; `errors` are the first errors, `count` is their total number."""
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{message}')" for index, message in errors[:3])
    text = (
        f"One or more records have been rejected due to {count} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]"
    )
    return AppendError(ErrorCode.INVALID_RECORD, text, errors)
