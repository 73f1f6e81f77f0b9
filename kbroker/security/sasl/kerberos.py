"""The system's Kerberos, through python-gssapi: the extra `gssapi`.

Owns every use of that library, which is imported only if a listener offers GSSAPI. Also owns the reading of the realm
from krb5.conf. Never knows the messages of SASL (gssapi.py does).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from kbroker.config.model import ConfigError
from kbroker.extras import how_to_install
from kbroker.security.sasl.gssapi import Context, ContextFailed

_SECTION: Final = re.compile(r"\s*\[(\w+)\]")
_REALM: Final = re.compile(r"\s*default_realm\s*=\s*(\S+)")


def library(listener: str) -> Any:
    """Return python-gssapi. Raises ConfigError if it is not installed, or finds no Kerberos."""
    try:
        return import_module("gssapi")
    except (ImportError, OSError):
        raise ConfigError(
            f"listener {listener} cannot offer GSSAPI, because an extra is missing: {how_to_install('gssapi')}"
        ) from None


def acceptor(gssapi: Any, where: str, options: Mapping[str, str]) -> Callable[[], Context]:
    """Return a function that begins a security context with the principal and keytab in Krb5LoginModule's options.

    Raises ConfigError. Its text begins with `where`.
    """
    principal, key_table = options.get("principal"), options.get("keyTab")
    if options.get("useKeyTab", "").lower() != "true" or not principal or not key_table:
        raise ConfigError(f'{where} has to have useKeyTab=true keyTab="FILE" principal="service/host@REALM"')
    try:
        with open(key_table, "rb"):
            pass
        name = gssapi.Name(principal, gssapi.NameType.kerberos_principal)
        credentials = gssapi.Credentials(name=name, usage="accept", store={"keytab": f"FILE:{key_table}"})
    except (OSError, gssapi.exceptions.GSSError) as error:
        raise ConfigError(f"{where}: the key of {principal} cannot be used: {_line(error)}") from None

    def begin() -> Context:
        try:
            return _Context(gssapi, gssapi.SecurityContext(creds=credentials, usage="accept"))
        except gssapi.exceptions.GSSError as error:
            raise ContextFailed(_line(error)) from None

    return begin


class _Context:
    """A `Context` that uses python-gssapi."""

    def __init__(self, gssapi: Any, context: Any) -> None:
        self._errors = gssapi.exceptions.GSSError
        self._context = context

    @property
    def complete(self) -> bool:
        return bool(self._context.complete)

    @property
    def initiator(self) -> str:
        return str(self._call(lambda: self._context.initiator_name))

    def step(self, token: bytes) -> bytes:
        return self._call(lambda: self._context.step(token)) or b""

    def wrap(self, message: bytes) -> bytes:
        wrapped: bytes = self._call(lambda: self._context.wrap(message, False)).message
        return wrapped

    def unwrap(self, message: bytes) -> bytes:
        unwrapped: bytes = self._call(lambda: self._context.unwrap(message)).message
        return unwrapped

    def _call(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except self._errors as error:
            raise ContextFailed(_line(error)) from None


def default_realm() -> str:
    """Return this machine's realm from krb5.conf, or ""."""
    for path in os.environ.get("KRB5_CONFIG", "/etc/krb5.conf").split(os.pathsep):
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if realm := realm_of(text):
            return realm
    return ""


def realm_of(text: str) -> str:
    """Return the default realm in the text of a krb5.conf, or ""."""
    section = ""
    for line in text.splitlines():
        if found := _SECTION.match(line):
            section = found[1]
        elif section == "libdefaults" and (found := _REALM.match(line)):
            return found[1]
    return ""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
