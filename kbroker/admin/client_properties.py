"""Client settings for kafka-python by the names that librdkafka and Kafka's Java tools use.

Owns the translation, and the reading of files of settings (--command-config, and profiles). Owns the login by a
delegation token (SCRAM with an additional attribute), because kafka-python lacks this login. Never connects, and never
shows a value.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.scram import SaslMechanismScram, ScramClient

from kbroker.admin.errors import AdminError, WrongInput
from kbroker.config.jaas import JaasError, parse_jaas
from kbroker.config.model import ConfigError
from kbroker.config.providers import PROVIDERS, Providers
from kbroker.config.sources import parse_properties

Texts = Mapping[str, str]
Warn = Callable[[str], None]
"""A function that receives a warning for people, in one line."""


def normal(name: str) -> str:
    """Return a setting's name with underscores, as in kafka-python."""
    return name.strip().lower().replace(".", "_").replace("-", "_")


def translate(name: str, text: str) -> Texts:
    """Return a setting under kafka-python's name; a name that no other client uses stays as it is."""
    key = normal(name)
    if key in _ALIASES:
        return {_ALIASES[key]: text}
    other = _OTHERS.get(key)
    return {key: text} if other is None else other(name.strip(), text)


def read_file(path: str | Path, what: str = "--command-config") -> dict[str, str]:
    """Return the key=value lines of a file. Raises AdminError; its text begins with `what`, a name for the file."""
    try:
        return parse_properties(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise AdminError(f"{what} {path}: {error.strerror}") from None
    except (UnicodeDecodeError, ConfigError):
        raise AdminError(f"{what} {path} is not a file of key=value lines") from None


def resolved(texts: Texts, what: str, warn: Warn) -> dict[str, str]:
    """Return a file's settings, with resolved variables.

    The file itself configures the config providers for its variables. Raises AdminError; its text begins with `what`, a
    name for the file.
    """
    try:
        providers = Providers(texts.get(PROVIDERS, ""), texts)
        found = {name: providers.resolved(name, text) for name, text in texts.items() if not _is_of_providers(name)}
    except ConfigError as error:
        raise AdminError(f"{what}: {error}") from None
    for warning in providers.warnings:
        warn(warning)
    return found


def _is_of_providers(name: str) -> bool:
    return name == PROVIDERS or name.startswith(f"{PROVIDERS}.")


def _login(name: str, text: str) -> Texts:
    try:
        modules = parse_jaas(f"KafkaClient {{ {text} }};")["KafkaClient"]
    except JaasError:
        modules = []
    if len(modules) != 1:
        raise WrongInput(f'{name} is not of the form CLASS required username="..." password="...";')
    options = modules[0].options
    if "username" not in options or "password" not in options:
        raise WrongInput(f"{name} has no username, or no password; other logins cannot be set here")
    if options.get("tokenauth", "").lower() == "true":
        log_in_by_token(options["username"])
    return {"sasl_plain_username": options["username"], "sasl_plain_password": options["password"]}


def _pem(name: str, text: str) -> Texts:
    if text.strip().upper() != "PEM":
        raise WrongInput(f"{name}: the client here reads PEM files only, not {text.strip()}")
    return {}


def _no_settings(_name: str, _text: str) -> Texts:
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
    "ssl_truststore_password": _no_settings,  # PEM files have no password
    "ssl_keystore_password": _no_settings,
}


_KNOWN: Final[Mapping[str, Any]] = {
    **KafkaAdminClient.DEFAULT_CONFIG,
    **KafkaConsumer.DEFAULT_CONFIG,
    **KafkaProducer.DEFAULT_CONFIG,
}
# kafka-python itself would treat any other value as PLAINTEXT.
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# Settings whose values are objects, and settings for which the command line has its own options.
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


def parse_settings(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Parse client settings; names may contain dots or dashes instead of underscores. Raises WrongInput."""
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise WrongInput(f"-X takes KEY=VALUE, not {pair!r}")
        for key, each in translate(name, text.strip()).items():
            if key not in _KNOWN:
                near = difflib.get_close_matches(key, {*_KNOWN, *_ALIASES, *_OTHERS}, 1, 0.75)
                dotted = "." if "." in name else "_"
                hint = f"; did you mean {near[0].replace('_', dotted)}?" if near else ""
                raise WrongInput(f"-X: the client here, kafka-python, has no setting {name.strip()!r}{hint}")
            found[key] = _typed(key, each)
    return found


def settings_of(path: str, warn: Warn) -> dict[str, Any]:
    """Read a file of client settings; pass warnings about unknown settings to `warn`."""
    return known_settings(path, resolved(read_file(path), f"--command-config {path}", warn), warn)


def known_settings(path: str, texts: Texts, warn: Warn) -> dict[str, Any]:
    """Return the settings that kafka-python has, in its types; pass warnings about all other settings to `warn`."""
    found = {}
    for name, text in texts.items():
        for key, each in translate(name, text.strip()).items():
            if key in _KNOWN and key != "bootstrap_servers":
                found[key] = _typed(key, each)
            else:
                warn(f"{path}: {name} has no effect here")
    return found


def _typed(key: str, text: str) -> Any:
    default = _KNOWN[key]
    if key in _NOT_TEXT or not isinstance(default, (str, int, float, type(None))):
        raise WrongInput(f"-X: {key} cannot be set here")
    if key == "transactional_id":
        raise WrongInput(f"-X: {key} cannot be set here: `kbroker produce` writes without transactions")
    if key == "api_version":
        return tuple(int(part) for part in text.split(".") if part.isdigit()) or None
    if key == "security_protocol" and text not in _PROTOCOLS:
        raise WrongInput(f"-X: security_protocol is one of {', '.join(_PROTOCOLS)}, not {text!r}")
    if key == "acks" and text == "all":
        return -1
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise WrongInput(f"-X: {key} takes true or false, not {text!r}")
        return text.lower() == "true"
    if isinstance(default, (int, float)) or key.endswith("_bytes"):
        try:
            return int(text)
        except ValueError:
            raise WrongInput(f"-X: {key} takes a number, not {text!r}") from None
    return text


_WORD = b",tokenauth=true"
_TOKENS: set[str] = set()


def log_in_by_token(token_id: str) -> None:
    """Register the id of a delegation token. A client that logs in with this id then declares that it uses a token."""
    _TOKENS.add(token_id)
    for mechanism in ScramClient.MECHANISMS:
        register_sasl_mechanism(mechanism, _Mechanism, overwrite=True)


class _Mechanism(SaslMechanismScram):  # type: ignore[misc]
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        if self.username in _TOKENS:
            self._scram_client = _TokenClient(self.username, config["sasl_plain_password"], self.mechanism)


class _TokenClient(ScramClient):  # type: ignore[misc]
    def first_message(self) -> bytes:
        message: bytes = super().first_message()
        self.auth_message += _WORD
        return message + _WORD
