"""Profiles: named settings of a connection, each a file of client settings in the user's own directory.

Owns the directory of profiles, and the warning if other users can read a secret in a profile. Owns the order of
precedence if several sources define a connection. The sources are an address, a profile, a file, and single settings.
Never connects, and never shows a value.

    ~/.config/kbroker/profiles/staging.properties       $XDG_CONFIG_HOME/kbroker/... if that is set

Kafka's own tools read such a file with --command-config; its `bootstrap.servers` contains the brokers' addresses.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from kbroker.admin.client_properties import (
    Warn,
    known_settings,
    normal,
    parse_settings,
    read_file,
    resolved,
    settings_of,
)
from kbroker.admin.connection import Connection, addresses
from kbroker.admin.errors import AdminError, WrongInput

_SUFFIX: Final = ".properties"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_SECRETS: Final = ("password", "secret", "sasl_jaas_config", "ssl_keystore_key")
"""Parts of the names of secret settings."""


def directory() -> Path:
    """Return the path of the directory of profiles; the directory might not exist."""
    return Path(click.get_app_dir("kbroker")) / "profiles"


def names() -> list[str]:
    """Return the names of the existing profiles."""
    return sorted(each.name.removesuffix(_SUFFIX) for each in directory().glob(f"*{_SUFFIX}"))


def file_of(name: str) -> Path:
    """Return the path of a profile; the profile might not exist. Raises WrongInput for an invalid name."""
    if _NAME.fullmatch(name) is None:
        raise WrongInput(f"a profile has a name of letters, digits, '.', '_' and '-', not {name!r}")
    return directory() / f"{name}{_SUFFIX}"


def existing(name: str) -> Path:
    """Return the path of a profile. Raises AdminError if the profile does not exist."""
    path = file_of(name)
    if not path.is_file():
        known = names()
        there = f"there are {', '.join(known)}" if known else "there are none yet: `kbroker profile add` makes one"
        raise AdminError(f"no profile {name}: {path} does not exist; {there}")
    return path


def read_profile(name: str, warn: Warn) -> tuple[Path, dict[str, str]]:
    """Return a profile's file and settings; warn if the file contains secrets that other users can read.

    Raises AdminError.
    """
    path = existing(name)
    settings = read_file(path, "profile")
    has_secret = any(is_secret(key) and "${" not in text for key, text in settings.items())
    if has_secret and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        warn(f"{path} has a password, and others can read it: chmod 600 {path}")
    return path, resolved(settings, f"profile {path}", warn)


def is_secret(name: str) -> bool:
    """Whether a setting's value must not be shown."""
    return any(each in normal(name) for each in _SECRETS)


def connection_of(
    bootstrap: str,
    profile: str | None,
    file: str | None,
    settings: Sequence[str],
    warn: Warn,
    *,
    profile_counts: bool,
) -> Connection:
    """Return the connection. `settings` override the file's settings, and these override the profile's settings.

    With `profile_counts`, the profile's address overrides `bootstrap`. Raises AdminError.
    """
    found: dict[str, Any] = {}
    if profile is not None:
        path, texts = read_profile(profile, warn)
        address = _taken(texts, "bootstrap_servers")
        if address is not None and profile_counts:
            bootstrap = address
        found |= known_settings(str(path), texts, warn)
    found |= {} if file is None else settings_of(file, warn)
    found |= parse_settings(tuple(settings))
    return Connection(addresses(bootstrap), found)


def _taken(texts: dict[str, str], key: str) -> str | None:
    """Remove the setting with this name of kafka-python, and return its value; None if it is missing."""
    names = [name for name in texts if normal(name) == key]
    return [texts.pop(name) for name in names][-1] if names else None
