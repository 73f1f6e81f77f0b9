"""What kazoo may write into the log: never credentials, and nothing of what znodes hold.

Owns the filter. Never knows which session it is.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from kazoo.protocol.serialization import SASL, Auth


class Discreet(logging.Filter):
    """Keeps credentials and data out of the log, into which kazoo writes whatever comes and goes at the level DEBUG.

    Data, as passwords are in that of /config, and a session's own password, are told by their sizes.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args if isinstance(record.args, tuple) else ()
        if any(isinstance(each, (Auth, SASL)) for each in arguments):
            return False
        record.args = tuple(map(_without_data, arguments)) if arguments else record.args
        return True


@dataclass(frozen=True, slots=True)
class _Bytes:
    size: int

    def __repr__(self) -> str:
        return f"<{self.size} bytes>"


def _without_data(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return _Bytes(len(value))
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(map(_without_data, value))
    if isinstance(value, (tuple, list)):
        return type(value)(map(_without_data, value))
    return value
