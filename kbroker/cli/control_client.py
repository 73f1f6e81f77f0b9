"""Shared by `kbroker fault|clock|requests|reset`: the client of a broker's control API.

Owns the option --control, and sends one HTTP request at a time, with only the standard library. The API itself checks
values, and its answer contains the text of a failure. Does not depend on a particular operation.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import click

from kbroker.local_http import CONTROL, NoPlace, joined, parse

_PATIENCE_S: Final = 30.0
_OTHER: Final = "what answers at {} is no control API"


class Control:
    """One broker's control API."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._where = joined(host, port)

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        *,
        patience_s: float = 0,
    ) -> Any:
        """Send a request and return its answer. The broker may need `patience_s` seconds for it.

        Raises ClickException.
        """
        connection, answer = self._request(method, path, body, query or {}, _PATIENCE_S + patience_s)
        try:
            return _json(answer.read(), self._where)
        except (http.client.HTTPException, OSError):
            raise click.ClickException(_OTHER.format(self._where)) from None
        finally:
            connection.close()

    def lines(self, path: str, query: Mapping[str, Any]) -> Iterator[Any]:
        """Yield values as they arrive, until the broker ends. Raises ClickException."""
        connection, answer = self._request("GET", path, None, query, _PATIENCE_S)
        try:
            if connection.sock is not None:
                connection.sock.settimeout(None)
            for line in answer:
                yield _json(line, self._where)
        except (http.client.HTTPException, OSError):
            return  # the broker has ended
        finally:
            connection.close()

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, Any], patience_s: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=patience_s)
        given = {name: value for name, value in query.items() if value is not None}
        try:
            connection.request(
                method,
                f"{path}?{urlencode(given)}" if given else path,
                None if body is None else json.dumps(body),
                {} if body is None else {"content-type": "application/json"},
            )
            answer = connection.getresponse()
            if answer.status >= 400:
                raise click.ClickException(_error(answer, self._where))
        except BaseException as error:
            connection.close()
            if isinstance(error, http.client.HTTPException | ConnectionResetError):
                raise click.ClickException(_OTHER.format(self._where)) from None
            if isinstance(error, OSError | UnicodeError):
                raise click.ClickException(self._unreachable(error)) from None
            raise
        return connection, answer

    def _unreachable(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            why = "no answer in time"
        elif isinstance(error, socket.gaierror | UnicodeError):
            why = "unknown host"
        else:
            why = (getattr(error, "strerror", None) or str(error)).lower()
        return f"no control API answers at {self._where}: {why}; `kbroker start --control {self._where}` serves it"


def _json(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise click.ClickException(_OTHER.format(where)) from None


def _error(answer: http.client.HTTPResponse, where: str) -> str:
    if answer.status == http.client.SERVICE_UNAVAILABLE and answer.getheader("content-type") != "application/json":
        return f"the control API at {where} has too many connections"  # an answer of the web server itself is not JSON
    answered = _json(answer.read(), where)
    if not isinstance(answered, dict) or not isinstance(answered.get("error"), str):
        raise click.ClickException(_OTHER.format(where))
    return str(answered["error"])


def control_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --control to a function. The function receives a Control as `control`."""

    def read(_context: click.Context, _parameter: click.Parameter, text: str) -> Control:
        try:
            return Control(*parse(text.removeprefix("http://").rstrip("/"), "--control", CONTROL.default))
        except NoPlace as error:
            raise click.UsageError(str(error)) from None

    return click.option(
        "--control",
        metavar="HOST:PORT",
        default=CONTROL.default,
        show_default=True,
        envvar="KBROKER_CONTROL",
        callback=read,
        help="The address of `kbroker start --control`; also KBROKER_CONTROL.",
    )(function)
