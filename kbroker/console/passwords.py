"""Passwords of the console's users: scrypt hashes, and files of them.

Owns the form of a line, NAME:scrypt$N$R$P$SALT$HASH with base64, and the comparison in constant time. Never keeps or
prints a password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kbroker.admin.errors import AdminError

_N: Final = 1 << 14
_R: Final = 8
_P: Final = 1
_SALT: Final = 16
_MOST_MEMORY: Final = 128 * 1024 * 1024
_MOST_N: Final = 1 << 16
LONGEST: Final = 1024
"""The maximum number of characters of a password; a longer password counts as wrong, and is not hashed."""


def hashed(password: str) -> str:
    """Return the hash line of a password, for a file."""
    salt = os.urandom(_SALT)
    made = hashlib.scrypt(password.encode(), salt=salt, n=_N, r=_R, p=_P, maxmem=_MOST_MEMORY)
    return f"scrypt${_N}${_R}${_P}${base64.b64encode(salt).decode()}${base64.b64encode(made).decode()}"


_UNKNOWN_USER: Final = hashed(os.urandom(16).hex())
"""The hash that is compared for an unknown user, so that known and unknown users take the same time."""


def matches(password: str, line: str) -> bool:
    """Whether a password matches a hash line."""
    n, r, p, salt, wanted = _parsed(line)
    typed = password.encode("utf-8", "surrogateescape")
    made = hashlib.scrypt(typed, salt=salt, n=n, r=r, p=p, maxmem=_MOST_MEMORY, dklen=len(wanted))
    return hmac.compare_digest(made, wanted)


def is_users(users: Mapping[str, str], name: str, password: str) -> bool:
    """Whether a user has this password. The check takes the same time for an unknown user."""
    if len(password) > LONGEST:
        return False
    right = matches(password, users.get(name, _UNKNOWN_USER))
    return right and name in users


def read_users(path: Path) -> dict[str, str]:
    """Return the users of a file. Raises AdminError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise AdminError(f"--users {path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise AdminError(f"--users {path} is not a text file") from None
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, rest = line.strip().partition(":")
        try:
            if not colon or not name:
                raise ValueError
            _parsed(rest)
        except ValueError:
            form = "NAME:scrypt$..., as `kbroker console --hash-password` prints it"
            raise AdminError(f"--users {path}: line {number} does not have the form {form}") from None
        users[name] = rest
    if not users:
        raise AdminError(f"--users {path} has no user")
    return users


def _parsed(line: str) -> tuple[int, int, int, bytes, bytes]:
    """Return the parts of a line. Raises ValueError."""
    kind, n, r, p, salt, made = line.split("$")
    numbers = int(n), int(r), int(p)
    too_expensive = numbers[0] > _MOST_N or numbers[1] > 16 or numbers[2] > 4
    if kind != "scrypt" or too_expensive or min(numbers) < 1 or numbers[0] & (numbers[0] - 1) or numbers[0] < 2:
        raise ValueError(line)
    try:
        found = base64.b64decode(salt, validate=True), base64.b64decode(made, validate=True)
    except binascii.Error as error:
        raise ValueError(line) from error
    if not found[0] or len(found[1]) < 16:
        raise ValueError(line)
    return (*numbers, *found)
