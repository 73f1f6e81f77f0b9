"""The errors of the registry's API: Confluent's codes and texts (Confluent: rest.exceptions.Errors).

Clients decide according to the code; some compare the text. The first three digits of a code are the HTTP status.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

_MODES: Final = "Valid values are READWRITE, READONLY, IMPORT and FORWARD."
_LEVELS: Final = "none, backward, forward, full, backward_transitive, forward_transitive, and full_transitive"


class RegistryError(Exception):
    """The refusal of a request. The answer contains the code and the text."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """The HTTP status."""
        return int(str(self.code)[:3])


class Refusal(Enum):
    """A reason to refuse a request. A call with the parts of its text returns the error."""

    DENIED = 40301, "{}"
    SUBJECT_NOT_FOUND = 40401, "Subject '{}' not found."
    VERSION_NOT_FOUND = 40402, "Version {} not found."
    SCHEMA_NOT_FOUND = 40403, "Schema {} not found"
    NO_SCHEMA = 40403, "Schema not found"
    SUBJECT_SOFT_DELETED = 40404, "Subject '{}' was soft deleted.Set permanent=true to delete permanently"
    SUBJECT_NOT_SOFT_DELETED = 40405, "Subject '{}' was not deleted first before being permanently deleted"
    VERSION_SOFT_DELETED = 40406, "Subject '{}' Version {} was soft deleted.Set permanent=true to delete permanently"
    VERSION_NOT_SOFT_DELETED = 40407, "Subject '{}' Version {} was not deleted first before being permanently deleted"
    NO_SUBJECT_CONFIG = 40408, "Subject '{}' does not have subject-level compatibility configured"
    NO_SUBJECT_MODE = 40409, "Subject '{}' does not have subject-level mode configured"
    INCOMPATIBLE = (
        40901,
        'Schema being registered is incompatible with an earlier schema for subject "{}", details: [{}]',
    )
    INVALID_SCHEMA = 42201, "{}"
    INVALID_VERSION = (
        42202,
        "The specified version '{}' is not a valid version id. "
        'Allowed values are between [1, 2^31-1] and the string "latest"',
    )
    INVALID_COMPATIBILITY = 42203, f"Invalid compatibility level. Valid values are {_LEVELS}"
    INVALID_MODE = 42204, f"Invalid mode. {_MODES}"
    FORWARD_IS_GLOBAL = 42204, "Forward mode only supported on global level"
    NOT_PERMITTED = 42205, "{}"
    REFERENCE_EXISTS = (
        42206,
        "One or more references exist to the schema {{magic=1,keytype=SCHEMA,subject={},version={}}}.",
    )
    INVALID_SUBJECT = 42208, "The specified subject '{}' is not a valid."
    SCHEMA_TOO_LARGE = 42209, "Register operation failed because schema is too large"
    INVALID_RULES = 42210, "{}"
    CONTEXT_NOT_EMPTY = 42211, "The specified context '{}' is not empty."
    STORE_FAILED = 50001, "{}"
    TIMED_OUT = 50002, "{}"
    FORWARDING_FAILED = 50003, "{}"
    UNKNOWN_LEADER = 50004, "Leader not known."

    def __call__(self, *parts: object) -> RegistryError:
        """Return the error; `parts` fill the placeholders of its text."""
        code, text = self.value
        return RegistryError(code, text.format(*parts))

    @property
    def error(self) -> RegistryError:
        """The error of a reason whose text has no placeholders."""
        return self()
