"""Users that the broker creates before it serves clients: `--add-scram`, in the syntax of kafka-storage.

Owns that syntax and the stored form. Never stores anything.

    SCRAM-SHA-256=[name=alice,password=alice-secret]
    SCRAM-SHA-512=[name=alice,iterations=8192,salt="base64",saltedpassword="base64"]
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kbroker.config.model import ConfigError
from kbroker.security.sasl.scram_credential import (
    HASHES,
    LEAST_ITERATIONS,
    MOST_ITERATIONS,
    ScramCredential,
    entity_name,
    from_password,
    from_salted_password,
    new_salt,
)

_WHOLE: Final = re.compile(r"(?P<mechanism>[^=\[\]]+)=\[(?P<parts>.*)\]", re.DOTALL)
_PART: Final = re.compile(r'\s*(?P<name>\w+)=(?:"(?P<quoted>[^"]*)"|(?P<plain>[^,"]*))\s*(?:,|$)')
_KNOWN: Final = frozenset({"name", "password", "iterations", "salt", "saltedpassword"})


@dataclass(frozen=True, slots=True)
class ScramUser:
    """A user to create."""

    name: str
    mechanism: str
    iterations: int
    password: str | None = field(repr=False)
    salt: bytes | None = field(repr=False)
    salted: bytes | None = field(repr=False)

    @property
    def entity(self) -> str:
        """The name of the entity whose configs contain the credential."""
        return entity_name(self.name)

    def revise(self, old: Mapping[str, str]) -> dict[str, str]:
        """Return the user's configs with this credential.

        If they already contain the same password, return them unchanged.
        """
        text = old.get(self.mechanism)
        if text is not None and self._holds(text):
            return dict(old)
        return {**old, self.mechanism: self._credential(self.salt or new_salt(), self.iterations).text()}

    def _holds(self, text: str) -> bool:
        try:
            known = ScramCredential.parse(text)
        except ValueError:
            return False
        if known.iterations != self.iterations or self.salt not in (None, known.salt):
            return False
        return hmac.compare_digest(self._credential(known.salt, known.iterations).stored_key, known.stored_key)

    def _credential(self, salt: bytes, iterations: int) -> ScramCredential:
        if self.salted is not None:
            return from_salted_password(self.mechanism, self.salted, salt, iterations)
        assert self.password is not None
        return from_password(self.mechanism, self.password, salt, iterations)


def parse_user(text: str) -> ScramUser:
    """Parse one user; raises ConfigError, whose message contains no secret."""
    whole = _WHOLE.fullmatch(text.strip())
    if whole is None:
        raise _wrong("it is not of the form SCRAM-SHA-256=[name=alice,password=secret]")
    mechanism = whole["mechanism"].strip()
    if mechanism not in HASHES:
        raise _wrong(f"{mechanism} is none of {', '.join(HASHES)}")
    parts = _parts(whole["parts"])
    if not parts.get("name"):
        raise _wrong("it has no name")
    if not parts.keys() <= _KNOWN:
        raise _wrong(f"it may have {', '.join(sorted(_KNOWN))}")
    if ("password" in parts) == ("saltedpassword" in parts) or not (parts.get("password") or "saltedpassword" in parts):
        raise _wrong("it needs either password or saltedpassword")
    if "saltedpassword" in parts and "salt" not in parts:
        raise _wrong("saltedpassword needs the salt")
    iterations = parts.get("iterations", str(LEAST_ITERATIONS))
    if not iterations.isdecimal() or not LEAST_ITERATIONS <= int(iterations) <= MOST_ITERATIONS:
        raise _wrong(f"iterations are between {LEAST_ITERATIONS} and {MOST_ITERATIONS}")
    salt, salted = (_base64(name, parts.get(name)) for name in ("salt", "saltedpassword"))
    return ScramUser(parts["name"], mechanism, int(iterations), parts.get("password"), salt, salted)


def _parts(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    position = 0
    while position < len(text):
        found = _PART.match(text, position)
        if found is None or found["name"].lower() in parts:
            raise _wrong("in the brackets there must be name=value, separated by commas")
        parts[found["name"].lower()] = found["quoted"] if found["quoted"] is not None else found["plain"]
        position = found.end()
    return parts


def _base64(name: str, text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _wrong(f"{name} is not base64") from None


def _wrong(problem: str) -> ConfigError:
    return ConfigError(f"--add-scram: {problem}")
