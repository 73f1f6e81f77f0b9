"""Client settings by other clients' names: those of librdkafka and of Java's tools, as kafka-python has them.

Owns the translation and the reading of files of settings (--command-config, and profiles). Never connects, and never
shows a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click

from kbroker.config.jaas import JaasError, parse_jaas
from kbroker.config.model import ConfigError
from kbroker.config.providers import PROVIDERS, Providers
from kbroker.config.sources import parse_properties

Texts = Mapping[str, str]


def normal(name: str) -> str:
    """Return a setting's name with underscores, as kafka-python has it."""
    return name.strip().lower().replace(".", "_").replace("-", "_")


def translate(name: str, text: str) -> Texts:
    """Return what a setting comes to, by kafka-python's names; itself, where it is none of the others'."""
    key = normal(name)
    if key in _ALIASES:
        return {_ALIASES[key]: text}
    other = _OTHERS.get(key)
    return {key: text} if other is None else other(name.strip(), text)


def read_file(path: str | Path, what: str = "--command-config") -> dict[str, str]:
    """Read a file of key=value lines, as they are; raises ClickException, which begins with `what` the file is."""
    try:
        return parse_properties(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise click.ClickException(f"{what} {path}: {error.strerror}") from None
    except (UnicodeDecodeError, ConfigError):
        raise click.ClickException(f"{what} {path} is not a file of key=value lines") from None


def resolved(texts: Texts, what: str) -> dict[str, str]:
    """Return a file's settings with what their variables stand for, by the config providers that it names itself.

    Raises ClickException, which begins with `what` the file is.
    """
    try:
        providers = Providers(texts.get(PROVIDERS, ""), texts)
        found = {name: providers.resolved(name, text) for name, text in texts.items() if not _is_of_providers(name)}
    except ConfigError as error:
        raise click.ClickException(f"{what}: {error}") from None
    for warning in providers.warnings:
        click.echo(f"kbroker: {warning}", err=True)
    return found


def _is_of_providers(name: str) -> bool:
    return name == PROVIDERS or name.startswith(f"{PROVIDERS}.")


def _login(name: str, text: str) -> Texts:
    try:
        modules = parse_jaas(f"KafkaClient {{ {text} }};")["KafkaClient"]
    except JaasError:
        modules = []
    if len(modules) != 1:
        raise click.UsageError(f'{name} is not of the form CLASS required username="..." password="...";')
    options = modules[0].options
    if "username" not in options or "password" not in options:
        raise click.UsageError(f"{name} has no username, or no password; other logins cannot be set here")
    if options.get("tokenauth", "").lower() == "true":
        from kbroker.cli.token_login import log_in_by_token

        log_in_by_token(options["username"])
    return {"sasl_plain_username": options["username"], "sasl_plain_password": options["password"]}


def _pem(name: str, text: str) -> Texts:
    if text.strip().upper() != "PEM":
        raise click.UsageError(f"{name}: the client here reads PEM files only, not {text.strip()}")
    return {}


def _nothing(_name: str, _text: str) -> Texts:
    return {}


def _check_name(_name: str, text: str) -> Texts:
    return {"ssl_check_hostname": "true" if text.strip().lower() == "https" else "false"}


_ALIASES: Final[Texts] = {
    "sasl_mechanisms": "sasl_mechanism",
    "sasl_username": "sasl_plain_username",
    "sasl_password": "sasl_plain_password",
    "ssl_ca_location": "ssl_cafile",
    "ssl_certificate_location": "ssl_certfile",
    "ssl_key_location": "ssl_keyfile",
    "ssl_key_password": "ssl_password",
    "ssl_truststore_location": "ssl_cafile",
    "compression_codec": "compression_type",
}
_OTHERS: Final[Mapping[str, Callable[[str, str], Texts]]] = {
    "sasl_jaas_config": _login,
    "ssl_truststore_type": _pem,
    "ssl_keystore_type": _pem,
    "ssl_keystore_location": lambda _name, text: {"ssl_certfile": text, "ssl_keyfile": text},
    "ssl_endpoint_identification_algorithm": _check_name,
    "ssl_truststore_password": _nothing,  # what is PEM has none
    "ssl_keystore_password": _nothing,
}
