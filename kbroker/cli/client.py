"""What the client verbs share: how a broker is reached, and how a client's errors read.

Owns the options of a connection and the settings that Kafka clients are made with. Never prints. The client is
kafka-python, so that the verbs work against any Kafka; its own log is silent except under `--debug`.
"""

from __future__ import annotations

import difflib
import functools
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import (
    BrokerResponseError,
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    NoError,
    for_code,
)

from kbroker.cli.client_settings import normal, read_file, resolved, translate
from kbroker.cli.profiles import read_profile
from kbroker.cli.spoken_at import tls_fault

T = TypeVar("T")
Result = TypeVar("Result")

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
_PATIENCE_S: Final = 15.0
_PAUSE_S: Final = 0.1
_LAST_PORT: Final = 65_535

# What the client would wait for, shortened to what somebody at a terminal waits for.
_DEFAULTS: Final[Mapping[str, Any]] = {
    "client_id": "kbroker-cli",
    "bootstrap_timeout_ms": 5_000,
    "reconnect_backoff_max_ms": 1_000,
    "max_block_ms": 10_000,
}
_KNOWN: Final[Mapping[str, Any]] = {
    **KafkaAdminClient.DEFAULT_CONFIG,
    **KafkaConsumer.DEFAULT_CONFIG,
    **KafkaProducer.DEFAULT_CONFIG,
}
# The client itself takes any other word for PLAINTEXT.
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# Settings that hold objects, or that an option of the verbs sets.
_NOT_TEXT: Final = frozenset(
    [
        "bootstrap_servers",
        "ssl_context",
        "sasl_oauth_token_provider",
        "key_serializer",
        "value_serializer",
        "key_deserializer",
        "value_deserializer",
    ]
)


class Failures(click.ClickException):
    """Several things failed in one command; each has its line."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\nkbroker: ".join(lines))


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a cluster: its bootstrap addresses, and client settings by kafka-python's names."""

    bootstrap: str
    settings: Mapping[str, Any]

    @contextmanager
    def admin(self) -> Iterator[Any]:
        """Open a KafkaAdminClient."""
        self._require_reachable()
        client = KafkaAdminClient(**self._for(KafkaAdminClient))
        try:
            yield client
        finally:
            client.close()

    def consumer(self, **own: Any) -> Any:
        """Make a KafkaConsumer; what -X says wins over `own`."""
        self._require_reachable()
        return KafkaConsumer(**self._for(KafkaConsumer, own))

    def producer(self, **own: Any) -> Any:
        """Make a KafkaProducer; what -X says wins over `own`."""
        self._require_reachable()
        return KafkaProducer(**self._for(KafkaProducer, own))

    def _require_reachable(self) -> None:
        """Fail in one line when no address takes a connection: the client would only say so after seconds."""
        if (reason := self.unreachable()) is not None:
            raise click.ClickException(reason)

    def unreachable(self) -> str | None:
        """Return why no bootstrap address takes a connection, None when one does; behind a proxy nobody looks."""
        if self.settings.get("proxy_url") or self.settings.get("socks5_proxy"):
            return None
        patience_ms = self.settings.get("bootstrap_timeout_ms") or _DEFAULTS["bootstrap_timeout_ms"]
        reasons = []
        for address in self.bootstrap.split(","):
            reason = _unreachable(address, patience_ms / 1000)
            if reason is None:
                return None
            reasons.append(f"{address}: {reason}")
        return f"no broker answers at {'; '.join(reasons)}"

    def _for(self, kind: Any, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
        merged = {**_DEFAULTS, **(own or {}), **self.settings}
        merged["bootstrap_servers"] = self.bootstrap.split(",")
        return {key: value for key, value in merged.items() if key in kind.DEFAULT_CONFIG}


def _unreachable(address: str, patience_s: float) -> str | None:
    """Return why nothing takes a connection at HOST:PORT; None if something does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), patience_s).close()
    except TimeoutError:
        return "no answer"
    except socket.gaierror as err:
        return "unknown host" if err.errno == socket.EAI_NONAME else str(err.strerror).lower()
    except UnicodeError:  # of the host's name: a label that is empty or too long
        return "unknown host"
    except OSError as err:
        return (err.strerror or str(err)).lower()
    return None


def client_options(function: Callable[..., Result]) -> Callable[..., Result]:
    """Give a verb the options of a connection, hand it their `connection`, and put errors into words.

    What is nearer counts: -X before --command-config before --profile, whose address counts before the environment's.
    """

    @click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        envvar=["KBROKER_BOOTSTRAP", "KAFKA_BOOTSTRAP_SERVERS"],
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        help="Where a broker is; also KBROKER_BOOTSTRAP or KAFKA_BOOTSTRAP_SERVERS.",
    )
    @click.option(
        "--command-config", "file", metavar="FILE", help="A file of the client's settings, as Kafka's tools take it."
    )
    @click.option(
        "--profile",
        metavar="NAME",
        envvar="KBROKER_PROFILE",
        help="Settings of the client by a name, from your own directory; also KBROKER_PROFILE.",
    )
    @click.option("-X", "settings", multiple=True, metavar="KEY=VALUE", help="Set a setting of the client.")
    @functools.wraps(function)
    def with_connection(
        *args: Any, bootstrap: str, profile: str | None, file: str | None, settings: tuple[str, ...], **kwargs: Any
    ) -> Result:
        _set_log()
        found: dict[str, Any] = {}
        if profile is not None:
            path, texts = read_profile(profile)
            address = _taken(texts, "bootstrap_servers")
            if address is not None and not _is_on_command_line("bootstrap"):
                bootstrap = address
            found |= _settings(str(path), texts)
        found |= {} if file is None else settings_of(file)
        found |= parse_settings(settings)
        connection = Connection(_addresses(bootstrap), found)
        with errors_in_words(connection):
            return function(*args, connection=connection, **kwargs)

    return with_connection


def _is_on_command_line(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _taken(texts: dict[str, str], key: str) -> str | None:
    """Take a setting out of others, by kafka-python's name; None where it is not there."""
    names = [name for name in texts if normal(name) == key]
    return [texts.pop(name) for name in names][-1] if names else None


def _addresses(text: str) -> str:
    """Check HOST:PORT,... and return it without blanks."""
    found = [each.strip() for each in text.split(",") if each.strip()]
    for each in found:
        host, _, port = each.rpartition(":")
        if not host or not port.isdecimal() or int(port) > _LAST_PORT:
            raise click.UsageError(f"--bootstrap takes HOST:PORT, not {each!r}")
    if not found:
        raise click.UsageError("--bootstrap is empty")
    return ",".join(found)


def parse_settings(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Read client settings; dots and dashes in names may stand for underscores. Raises UsageError."""
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise click.UsageError(f"-X takes KEY=VALUE, not {pair!r}")
        for key, each in translate(name, text.strip()).items():
            if key not in _KNOWN:
                near = difflib.get_close_matches(key, _KNOWN, 1, 0.75)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise click.UsageError(f"-X: the client here, kafka-python, has no setting {name.strip()!r}{hint}")
            found[key] = _typed(key, each)
    return found


def settings_of(path: str) -> dict[str, Any]:
    """Read a file of client settings; of those that the client here does not have, a line on stderr tells."""
    return _settings(path, resolved(read_file(path), f"--command-config {path}"))


def _settings(path: str, texts: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for name, text in texts.items():
        for key, each in translate(name, text.strip()).items():
            if key in _KNOWN and key != "bootstrap_servers":
                found[key] = _typed(key, each)
            else:
                click.echo(f"kbroker: {path}: {name} has no effect here", err=True)
    return found


def _typed(key: str, text: str) -> Any:
    default = _KNOWN[key]
    if key in _NOT_TEXT or not isinstance(default, (str, int, float, type(None))):
        raise click.UsageError(f"-X: {key} cannot be set here")
    if key == "transactional_id":
        raise click.UsageError(f"-X: {key} cannot be set here: `kbroker produce` writes without transactions")
    if key == "api_version":
        return tuple(int(part) for part in text.split(".") if part.isdigit()) or None
    if key == "security_protocol" and text not in _PROTOCOLS:
        raise click.UsageError(f"-X: security_protocol is one of {', '.join(_PROTOCOLS)}, not {text!r}")
    if key == "acks" and text == "all":
        return -1
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise click.UsageError(f"-X: {key} takes true or false, not {text!r}")
        return text.lower() == "true"
    if isinstance(default, (int, float)) or key.endswith("_bytes"):
        try:
            return int(text)
        except ValueError:
            raise click.UsageError(f"-X: {key} takes a number, not {text!r}") from None
    return text


def _set_log() -> None:
    """Let the client's log appear under --debug and nowhere else."""
    context = click.get_current_context(silent=True)
    if context is not None and context.find_root().params.get("debug"):
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s (%(name)s)")
    else:
        logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)


@contextmanager
def ending_at_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM end a verb as an error would: what it holds is given back, and nothing is printed.

    The first signal counts. Those that follow are ignored until the end of the `with`, so that they do not interrupt
    what gives back; that must be bounded in time.
    """
    ending = False

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal ending
        if ending:
            return
        ending = True
        sys.exit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def errors_in_words(connection: Connection) -> Iterator[None]:
    """Turn what the client raises into one line for people."""
    try:
        yield
    except KafkaError as err:
        raise click.ClickException(_words(err, connection)) from err
    except ValueError as err:
        raise click.ClickException(str(err)) from err


def _words(err: KafkaError, connection: Connection) -> str:
    if isinstance(err, BrokerResponseError):
        return error_text(err)
    reason = str(err.args[0]) if err.args else type(err).__name__
    if isinstance(err, KafkaTimeoutError) and "bootstrap" in reason:
        for address in connection.bootstrap.split(","):
            if (fault := tls_fault(address, connection.settings)) is not None:
                return fault
        if str(connection.settings.get("security_protocol", "")).startswith("SASL"):
            asked = "are mechanism, name and password right?"
            return f"no broker at {connection.bootstrap} lets this client in: {asked}"
        return f"no broker answers at {connection.bootstrap}"
    if isinstance(err, (KafkaConnectionError, NodeNotReadyError)):
        return f"the connection to the cluster at {connection.bootstrap} failed: {reason}"
    if isinstance(err, KafkaConfigurationError):
        return f"bad client setting: {reason}"
    return reason


def error_text(error: Any, said: str | None = None) -> str:
    """Return Kafka's name of an error (a class or an instance) and what the broker said about it, if anything."""
    what = said or getattr(error, "description", None)
    name = getattr(error, "message", None) or f"error {getattr(error, 'errno', '?')}"
    return f"{what} ({name})" if what else str(name)


def code_error(code: int) -> Any | None:
    """Return the class of an error code; None for no error."""
    error = for_code(code)
    return None if error is NoError else error


def patiently(call: Callable[[], T], *, reads: bool = False) -> T:
    """Repeat a call while the cluster asks for that: coordinators load, leaders move.

    One that only `reads` is also repeated when its broker is gone: for some seconds clients are still told of it.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return call()
        except BrokerResponseError as err:
            if not err.retriable or time.monotonic() > deadline:
                raise
        except (KafkaConnectionError, NodeNotReadyError):
            if not reads or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)
