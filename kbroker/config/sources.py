"""The sources of a broker's settings: properties files, environment variables, the command line.

Owns the precedence of the sources, the syntax of Java properties files, and the names of the apache/kafka image's
variables. Decides which JVM system properties of a Java broker are settings here. Does not know which keys exist.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from kbroker.config.model import ConfigError

_BLANKS: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE: Final = re.compile(r"\r\n|\r|\n")

# Variables of the image that configure the JVM, scripts and logging instead of the broker.
_NOT_SETTINGS: Final = frozenset(
    f"KAFKA_{name}"
    for name in [
        "VERSION",
        "HOME",
        "USER",
        "GROUP",
        "HEAP_OPTS",
        "OPTS",
        "LOG4J_OPTS",
        "LOG4J_ROOT_LOGLEVEL",
        "LOG4J_LOGGERS",
        "TOOLS_LOG4J_LOGLEVEL",
        "JVM_PERFORMANCE_OPTS",
        "GC_LOG_OPTS",
        "JMX_OPTS",
        "JMX_HOSTNAME",
        "JMX_PORT",
        "BOOTSTRAP_SERVERS",
        "CLUSTER_ID",
        "DEBUG",
    ]
)
_NOT_SETTINGS_PREFIXES: Final = ("KAFKA_LOG4J_", "KAFKA_JMX_")
# The JVM system properties with which a Java broker logs in to ZooKeeper.
_OF_THE_MACHINE: Final = frozenset(
    {"java.security.auth.login.config", "zookeeper.sasl.client", "zookeeper.sasl.clientconfig"}
)


def merged(
    settings: Mapping[str, str], file: Path | None, environment: Mapping[str, str], overrides: Iterable[str]
) -> dict[str, str]:
    """Return the settings of all sources, merged by precedence (see BrokerConfig.load). Raises ConfigError."""
    found = dict(settings)
    if file is not None:
        found.update(read_properties(file))
    found.update(settings_from_environment(environment))
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{text!r} is not of the form key=value")
        found[name.strip()] = value.strip()
    return found


def read_properties(file: Path) -> dict[str, str]:
    """Return the settings in a server.properties file. Raises ConfigError if the file is unreadable."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text") from None
    return parse_properties(text)


def parse_properties(text: str) -> dict[str, str]:
    """Parse a Java properties file. If a key is repeated, its last value counts."""
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key, value = _split(line)
        try:
            found[_unescape(key)] = _unescape(value)
        except ValueError as error:
            raise ConfigError(f"line {number} of the properties file: {error}") from None
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and content of each entry, without comments and with continuation lines joined."""
    pending, start = "", 0
    for number, raw in enumerate(_LINE.split(text), 1):
        line = raw.lstrip(_BLANKS)
        if not pending:
            if not line or line[0] in "#!":
                continue
            start = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
            continue
        yield start, pending + line
        pending = ""
    if pending:
        yield start, pending


def _split(line: str) -> tuple[str, str]:
    """Split an entry at its first unescaped '=', ':' or space."""
    index = 0
    while index < len(line) and line[index] not in "=:" + _BLANKS:
        index += 2 if line[index] == "\\" else 1
    key, rest = line[:index], line[index:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return key, rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    index = 0
    while index < len(text):
        char = text[index]
        index += 1
        if char != "\\":
            out.append(char)
            continue
        escaped = text[index : index + 1]
        index += 1
        if escaped == "u":
            digits = text[index : index + 4]
            if re.fullmatch(r"[0-9a-fA-F]{4}", digits) is None:
                raise ValueError(rf"\u must be followed by four hexadecimal digits, not by {digits!r}")
            out.append(chr(int(digits, 16)))
            index += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)


def settings_from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in KAFKA_* variables, which have the names of the apache/kafka image.

    After the prefix, "_" means ".", "__" means "_", and "___" means "-". KAFKA_OPTS configures a Java broker's JVM.
    Only its properties for the login to ZooKeeper are used: the JAAS file, and the name of its section.
    """
    found = _machine_properties(environment.get("KAFKA_OPTS", ""))
    for name, value in environment.items():
        if not name.startswith("KAFKA_") or name in _NOT_SETTINGS or name.startswith(_NOT_SETTINGS_PREFIXES):
            continue
        key = name.removeprefix("KAFKA_").lower().replace("_", ".").replace("...", "-").replace("..", "_")
        found[key] = value
    return found


def _machine_properties(options: str) -> dict[str, str]:
    """Return the JVM options -Dname=value that kbroker accepts as settings."""
    try:
        words = shlex.split(options)
    except ValueError:
        words = options.split()
    found = {}
    for word in words:
        name, equals, value = word.removeprefix("-D").partition("=")
        if word.startswith("-D") and equals and name in _OF_THE_MACHINE:
            found[name] = value
    return found
