"""The failures of a store of objects, as a few exceptions with one clear line each.

Owns the exceptions, and the choice of the parts of a library's error text that people may see: an HTTP status and a
store's error code. The rest of such a text can contain keys, signatures and complete answers, so no message and no
traceback contains it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final


class StoreSettingError(ValueError):
    """Raised if no store can be opened with an address or settings, or if the extra `tiers` is not installed."""


class StoreError(Exception):
    """The base class of errors of a store's calls. The message names the call, the object and the store."""


class ObjectNotFoundError(StoreError):
    """Raised if there is no such object."""


class ObjectExistsError(StoreError):
    """Raised by `put` if the object exists already. Nothing has changed."""


class StoreDeniedError(StoreError):
    """Raised if the store refuses the caller, or does not know the caller. A repetition does not help."""


class StoreUnavailableError(StoreError):
    """Raised if the store cannot be reached, or cannot run the call now. A repetition can help."""


class StoreTooSlowError(StoreUnavailableError):
    """Raised at the deadline. Whether a `put` or `delete` has had an effect is unknown."""


class WrongLengthError(StoreError):
    """Raised if an object, or a part of an object, does not have the expected length."""


class DamagedObjectError(StoreError):
    """Raised if an object differs from its footer or its segment: other bytes, another length, another format."""


_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_OS_ERROR: Final = re.compile(r"\(os error (\d{1,4})\)")
_DENIED: Final = ("401", "403")
_OS_DENIED: Final = ("1", "13", "30")  # EPERM, EACCES, EROFS
_OS_FULL: Final = ("28", "122")  # ENOSPC, EDQUOT
_NO_RANGE: Final = ("Requested range was invalid", "InvalidRange", "StartTooLarge", "Invalid range")
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound")


def classified(name: str, text: str) -> tuple[type[StoreError], str]:
    """Return the exception for an error of the library obstore, and the part of its text that people may see."""
    status = next(iter(_STATUS.findall(text)), None)
    code = next(iter(_CODE.findall(text)), None)
    os_error = next(iter(_OS_ERROR.findall(text)), None)
    facts = ", ".join(fact for fact in (f"HTTP {status}" if status else None, code) if fact)
    found, reason = _class_of(name, text, status, code, os_error)
    return found, f"{reason} ({facts})" if facts else reason


def _class_of(
    name: str, text: str, status: str | None, code: str | None, os_error: str | None
) -> tuple[type[StoreError], str]:
    if code in _NO_BUCKET:
        return StoreUnavailableError, "the bucket does not exist"
    if name in ("PermissionDeniedError", "UnauthenticatedError") or status in _DENIED or os_error in _OS_DENIED:
        return StoreDeniedError, "access denied"
    if status == "416" or any(each in text for each in _NO_RANGE):
        return WrongLengthError, "the object ends before the requested range"
    if name in ("AlreadyExistsError", "PreconditionError"):
        return ObjectExistsError, "the object exists already"
    if name in ("FileNotFoundError", "NotFoundError") or status == "404":
        return ObjectNotFoundError, "no such object"
    if os_error in _OS_FULL:
        return StoreUnavailableError, "no space left"
    if "error sending request" in text:
        return StoreUnavailableError, "cannot reach it"
    if "timed out" in text:
        return StoreTooSlowError, "no answer in time"
    return StoreUnavailableError, "the store cannot do this now"


def first_line(text: str, secrets: Iterable[str]) -> str:
    """Return the first line of an error's text, without the values of settings."""
    line = text.strip().partition("\n")[0][:300]
    for secret in sorted((each for each in secrets if len(each) > 2), key=len, reverse=True):
        line = line.replace(secret, "***")
    return line
