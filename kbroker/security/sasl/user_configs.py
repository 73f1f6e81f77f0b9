"""The SCRAM credentials in the configs of users, as in Kafka: /config/users/NAME, mechanism = credential.

Owns the encoding of a user's name, and the parsing of credentials in configs. Never stores anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

from kbroker.security.sasl.scram_credential import HASHES, ScramCredential

USERS = "users"
"""The kind of these configs."""


def entity_name(user: str) -> str:
    """Return a user's name as in a path: like Java's URLEncoder, without characters that disturb JMX."""
    return quote(user, safe="-_.", errors="replace").replace("~", "%7E")


def user_of(entity: str) -> str:
    """Return the user of a name in a path."""
    return unquote(entity)


def credential_of(configs: Mapping[str, Mapping[str, str]], user: str, mechanism: str) -> ScramCredential | None:
    """Return a user's credential for a mechanism; None if it is missing or unreadable."""
    text = configs.get(entity_name(user), {}).get(mechanism)
    if text is None:
        return None
    try:
        return ScramCredential.parse(text)
    except ValueError:
        return None


def credentials_of(configs: Mapping[str, str]) -> dict[str, ScramCredential]:
    """Return all credentials in one user's configs, by mechanism."""
    found = {}
    for mechanism in HASHES:
        if mechanism in configs:
            try:
                found[mechanism] = ScramCredential.parse(configs[mechanism])
            except ValueError:
                continue
    return found
