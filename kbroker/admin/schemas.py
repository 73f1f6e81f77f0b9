"""Requests to a schema registry with Confluent's API, over HTTP: the registry of kbroker, Confluent's, or any other.

Owns the connection, with basic authentication if the address contains a user. Owns the errors: a refusal contains the
registry's code and text. Uses only the standard library, because a verb sends few requests.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit

from kbroker.admin.errors import AdminError, Unreachable, WrongInput

_MEDIA: Final = "application/vnd.schemaregistry.v1+json"
_TIMEOUT_S: Final = 30.0
_LARGEST: Final = 64 * 1024 * 1024
_NOT_OF_THE_REQUEST: Final = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
)


class Refused(AdminError):  # noqa: N818 - an outcome
    """The registry works and has accepted the login, but refuses this request."""


class Unknown(Refused):
    """The registry has no such subject, version, schema or setting."""


class Forbidden(Refused):
    """The login lacks the right to send this request."""


class SchemaRegistry:
    """A registry at a URL, like "http://127.0.0.1:8081" or "https://user:password@registry". Raises AdminError."""

    def __init__(self, url: str, ca: str | Path | None = None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise WrongInput(f"a registry's address is a URL, as http://127.0.0.1:8081, not {url!r}")
        host = parts.netloc.rpartition("@")[2]
        self.url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        """The address, without a login."""
        self._headers = {"accept": _MEDIA}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        try:
            self._tls = ssl.create_default_context(cafile=ca) if parts.scheme == "https" else None
        except (OSError, ssl.SSLError) as error:
            raise WrongInput(f"{ca}: {error}") from None

    def ask(self, method: str, *path: object, body: Any = None, **query: object) -> Any:
        """Send a request; return the answer. Names in the path may contain any characters.

        Query parameters with the value None are omitted.
        """
        where = "".join(f"/{quote(str(part), safe='')}" for part in path)
        given = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
        sent = {name: value for name, value in given.items() if value is not None}
        url = f"{self.url}{where}{'?' + urlencode(sent) if sent else ''}"
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers if data is None else {**self._headers, "content-type": _MEDIA}
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=self._tls) as answer:
                content = answer.read(_LARGEST)
            return json.loads(content) if content else None
        except urllib.error.HTTPError as error:
            raise _kind(error.code)(_refusal(error)) from None
        except urllib.error.URLError as error:
            raise Unreachable(f"no registry answers at {self.url}: {error.reason}") from None
        except TimeoutError:
            raise Unreachable(f"no registry answers at {self.url} in {_TIMEOUT_S:.0f} seconds") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise AdminError(f"{self.url} is no schema registry: {error}") from None

    def level(self, subject: str | None = None) -> str | None:
        """Return a subject's compatibility level, or the global level; None if the login may not read the level."""
        try:
            found = self.ask("GET", "config", *([] if subject is None else [subject]), defaultToGlobal=True)
        except Forbidden:
            return None
        level: str | None = found.get("compatibilityLevel")
        return level


def pretty(found: Mapping[str, Any]) -> str:
    """Return the schema's text from a registry's answer; indent the text if it is JSON."""
    text = str(found["schema"])
    if found.get("schemaType") == "PROTOBUF":
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def reference_in(text: str) -> dict[str, Any] | None:
    """Parse a reference like NAME=SUBJECT:VERSION; return None for any other text."""
    name, equals, at = text.partition("=")
    subject, colon, version = at.rpartition(":")
    if not (equals and colon and name and subject and version.isdecimal() and version.isascii()):
        return None
    return {"name": name, "subject": subject, "version": int(version)}


def _kind(code: int) -> type[AdminError]:
    if code == HTTPStatus.NOT_FOUND:
        return Unknown
    if code == HTTPStatus.FORBIDDEN:
        return Forbidden
    is_refusal = HTTPStatus.BAD_REQUEST <= code < HTTPStatus.INTERNAL_SERVER_ERROR
    return Refused if is_refusal and code not in _NOT_OF_THE_REQUEST else AdminError


def _refusal(error: urllib.error.HTTPError) -> str:
    try:
        told = json.loads(error.read(_LARGEST))
        return f"{told['message']} ({told['error_code']})"
    except (OSError, ValueError, KeyError, TypeError):
        return f"the registry refuses: HTTP {error.code} {error.reason}"
