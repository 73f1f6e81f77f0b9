"""Variables in settings, ${provider:path:key}, and the config providers that resolve them.

Owns Kafka's three providers, their parameters and the allowed paths. Does not know a key's type.

    config.providers=file
    config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider
    config.providers.file.param.allowed.paths=/etc/kafka/secrets
    ssl.key.password=${file:/etc/kafka/secrets/tls.properties:password}
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from kbroker.config.model import ConfigError, InvalidConfig
from kbroker.config.sources import parse_properties

PROVIDERS: Final = "config.providers"
_PACKAGE: Final = "org.apache.kafka.common.config.provider"
_PATHS: Final = "allowed.paths"
_PATTERN: Final = "allowlist.pattern"
_LARGEST: Final = 1 << 20
_LARGEST_DYNAMIC: Final = 1 << 14
"""The maximum size in bytes of a file that may be read on the event loop."""
_MOST_DYNAMIC: Final = 20
"""The maximum number of variables in the dynamic configs of one broker, or in the cluster-wide defaults."""
_MOST_HIDDEN: Final = 1_000
_SEPARATORS: Final = re.compile(r"[,;\s]+")
_MOST_ELEMENTS: Final = 20
_SHORTEST_ELEMENT: Final = 4
"""The minimum length of hidden values, in characters. Any message may contain shorter values by chance."""
Lookup = Callable[[str, str, int], str | None]
"""Looks up a value by path, key and maximum file size in bytes. Returns None if it is missing. Raises ConfigError."""


class _Variable(NamedTuple):
    begin: int
    end: int
    provider: str
    path: str
    key: str


def _variables(text: str) -> Iterator[_Variable]:
    """Find ${provider:path:key} and ${provider:key}, as ConfigTransformer does. The time is linear in the text."""
    at = 0
    while (begin := text.find("${", at)) >= 0 and (end := text.find("}", begin)) >= 0:
        at = end + 1
        provider, colon, rest = text[begin + 2 : end].partition(":")
        if colon:
            path, second, key = rest.partition(":")
            yield _Variable(begin, at, provider, path if second else "", key if second else rest)


class Providers:
    """The config providers in the settings, and the values that these providers have returned."""

    def __init__(self, names: str, settings: Mapping[str, str], environment: Mapping[str, str] | None = None) -> None:
        """Create the providers from `names`, the value of config.providers.

        `environment` is by default the environment of this process. Raises ConfigError for an invalid provider.
        """
        self.warnings: list[str] = []
        self._environment = os.environ if environment is None else environment
        self._hidden: dict[str, str] = {}
        self._by_name = {
            name: self._provider(name, settings)
            for name in dict.fromkeys(each.strip() for each in names.split(","))
            if name
        }

    def resolved(self, name: str, text: str, *, is_dynamic: bool = False) -> str:
        """Return a setting's text with its variables resolved. Variables in the results are not resolved.

        A variable of an unknown provider stays unchanged, as in Kafka. Raises ConfigError if a provider has no value.
        For a dynamic config, also raises ConfigError if the look-up would take long.
        """
        if not self._by_name:
            return text
        parts, at, largest = [], 0, _LARGEST_DYNAMIC if is_dynamic else _LARGEST
        for found in _variables(text):
            lookup = self._by_name.get(found.provider)
            if lookup is None:
                continue
            variable = text[found.begin : found.end]
            try:
                known = lookup(found.path, found.key, largest)
            except ConfigError as error:
                raise ConfigError(f"{name}: {variable}: {error}") from None
            if known is None:
                raise ConfigError(f"{name}: {variable} is not there")
            parts += [text[at : found.begin], known]
            at = found.end
            # Hide single elements of a list, too, because a message may contain only one element.
            self._hide(known, variable)
            for each in _SEPARATORS.split(known, _MOST_ELEMENTS):
                if len(each) >= _SHORTEST_ELEMENT:
                    self._hide(each, variable)
        if not parts:
            return text
        result = "".join(parts) + text[at:]
        self._hide(result, text)
        return result

    def _hide(self, value: str, variable: str) -> None:
        if len(self._hidden) >= _MOST_HIDDEN:
            self._hidden.clear()
        self._hidden[value] = variable

    def check_count(self, texts: Iterable[str]) -> None:
        """Raise InvalidConfig if the event loop would have to look up too many variables."""
        if not self._by_name:
            return
        count = sum(found.provider in self._by_name for text in texts for found in _variables(text))
        if count > _MOST_DYNAMIC:
            raise InvalidConfig(f"There may be {_MOST_DYNAMIC} variables at most")

    def left_over(self, settings: Mapping[str, str]) -> list[str]:
        """Return a line of text for each setting with a variable of an unknown provider."""
        if not self._by_name:
            return []
        return [
            f"{name}: ${{{found.provider}:...}} stays as it is, as {PROVIDERS} has no {found.provider}"
            for name, text in sorted(settings.items())
            for found in _variables(text)
            if found.provider not in self._by_name
        ]

    def hide(self, text: str) -> str:
        """Return a message in which values are replaced with their variables."""
        for value, variable in sorted(self._hidden.items(), key=lambda each: len(each[0]), reverse=True):
            if value.strip() and value.strip() in text:
                pattern = rf"(?<!\w){re.escape(value.strip())}(?!\w)"
                text = re.sub(pattern, variable.replace("\\", r"\\"), text)
        return text

    def _provider(self, name: str, settings: Mapping[str, str]) -> Lookup:
        key = f"{PROVIDERS}.{name}.class"
        kind = settings.get(key, "").strip()
        if not kind:
            raise ConfigError(f"{PROVIDERS} has {name}, but {key} is missing")
        kinds: dict[str, tuple[Callable[[str, str], Lookup], str]] = {
            f"{_PACKAGE}.FileConfigProvider": (self._files, _PATHS),
            f"{_PACKAGE}.DirectoryConfigProvider": (self._directories, _PATHS),
            f"{_PACKAGE}.EnvVarConfigProvider": (self._variables, _PATTERN),
        }
        if kind not in kinds:
            raise ConfigError(f"{key} is {kind}; this version runs no Java class, but has {', '.join(kinds)}")
        make, parameter = kinds[kind]
        prefix = f"{PROVIDERS}.{name}.param."
        strange = sorted(each for each in settings if each.startswith(prefix) and each != prefix + parameter)
        if strange:
            # Kafka ignores unknown parameters, so a misspelt parameter would silently remove a restriction.
            raise ConfigError(f"{strange[0]} is no parameter of {kind}, which has {prefix}{parameter}")
        return make(prefix + parameter, settings.get(prefix + parameter, ""))

    # --- the providers

    def _files(self, name: str, allowed: str) -> Lookup:
        paths = _allowed_paths(name, allowed)

        def lookup(path: str, key: str, largest: int) -> str | None:
            if not path:
                return None
            return parse_properties(self._read(_checked(path, paths), largest)).get(key)

        return lookup

    def _directories(self, name: str, allowed: str) -> Lookup:
        paths = _allowed_paths(name, allowed)

        def lookup(path: str, key: str, largest: int) -> str | None:
            if not path or not key or "/" in key or key in (".", ".."):
                return None
            directory = Path(_checked(path, paths))
            if not directory.is_dir():
                raise ConfigError(f"{directory} is no directory")
            return self._read(str(directory / key), largest) if (directory / key).is_file() else None

        return lookup

    def _variables(self, name: str, pattern: str) -> Lookup:
        try:
            allowed = re.compile(pattern or ".*")
        except re.error as error:
            raise ConfigError(f"{name} is no regular expression: {error}") from None

        def lookup(path: str, key: str, _largest: int) -> str | None:
            if path:
                raise ConfigError(f"an environment variable has no path, but the variable has the path {path}")
            return self._environment.get(key) if allowed.fullmatch(key) else None

        return lookup

    def _read(self, path: str, largest: int) -> str:
        try:
            # O_NONBLOCK is needed because opening a pipe without a writer would block forever.
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                if not stat.S_ISREG(mode):
                    raise ConfigError(f"{path} is no file")
                data = file.read(largest + 1)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        if len(data) > largest:
            raise ConfigError(f"{path} is larger than {largest} bytes")
        if mode & stat.S_IROTH:
            warning = f"{path}, which settings are read from, can be read by every user of this machine"
            if warning not in self.warnings:
                self.warnings.append(warning)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not UTF-8 text") from None


def _allowed_paths(name: str, text: str) -> tuple[str, ...] | None:
    """Return the paths that a parameter allows. None means that all paths are allowed."""
    if not text:
        return None
    paths = tuple(os.path.normpath(each) for each in text.split(","))
    for path in paths:
        if not os.path.isabs(path):
            raise ConfigError(f"{name}: path {path} is not absolute")
        if not os.path.exists(path):
            raise ConfigError(f"{name}: path {path} does not exist")
    return paths


def _checked(path: str, allowed: tuple[str, ...] | None) -> str:
    if allowed is None:
        return path
    found = Path(os.path.normpath(path))
    if not any(found.is_relative_to(each) for each in allowed):
        raise ConfigError(f"{path} may not be read")
    return str(found)
