"""A connection from its parts: an address, a profile, a file of settings, and single settings.

Owns which of them overrides which. Never connects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbroker.admin.client_properties import Tell, known_settings, normal, parse_settings, settings_of
from kbroker.admin.connection import Connection, addresses
from kbroker.admin.profiles import read_profile


def connection_of(
    bootstrap: str,
    profile: str | None,
    file: str | None,
    settings: Sequence[str],
    tell: Tell,
    *,
    profile_counts: bool,
) -> Connection:
    """Return the connection; single settings override the file, which overrides the profile.

    With `profile_counts` the profile's address overrides `bootstrap`. Raises AdminError.
    """
    found: dict[str, Any] = {}
    if profile is not None:
        path, texts = read_profile(profile, tell)
        address = _taken(texts, "bootstrap_servers")
        if address is not None and profile_counts:
            bootstrap = address
        found |= known_settings(str(path), texts, tell)
    found |= {} if file is None else settings_of(file, tell)
    found |= parse_settings(tuple(settings))
    return Connection(addresses(bootstrap), found)


def _taken(texts: dict[str, str], key: str) -> str | None:
    """Remove and return a setting, by kafka-python's name; None if it is missing."""
    names = [name for name in texts if normal(name) == key]
    return [texts.pop(name) for name in names][-1] if names else None
