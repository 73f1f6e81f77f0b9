"""The SASL settings of a broker's listeners.

Owns the mechanisms that each listener offers, the settings of a listener or one of its mechanisms, and their JAAS
options. Owns also this broker's login to other brokers, if the inter-broker listener requires a login. Refuses
unsupported settings. Never authenticates a client, and never connects.

    sasl.jaas.config                                  for any listener and mechanism with this login module
    listener.name.inside.sasl.enabled.mechanisms      for one listener, its name in lower case
    listener.name.inside.plain.sasl.jaas.config       for one mechanism of a listener, also in lower case
    java.security.auth.login.config                   a file, if none of these is set: login modules of all
                                                      mechanisms in its sections inside.KafkaServer and KafkaServer
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kbroker.clock import SystemClock
from kbroker.config.jaas import JaasError, LoginModule, parse_jaas
from kbroker.config.model import ConfigError, InvalidConfig, Value
from kbroker.config.server_config import BrokerConfig
from kbroker.config.table import broker_key
from kbroker.config.values import parse
from kbroker.security.sasl import gssapi, kerberos, kerberos_names, oauthbearer, plain, scram
from kbroker.security.sasl.authentication import ClientMechanism, Offer, ServerMechanism
from kbroker.security.sasl.key_set import BadKeySet, KeySet, parse_keys, reader
from kbroker.security.sasl.scram_credential import HASHES, ScramCredential
from kbroker.security.sasl.signed_tokens import Expected, signed
from kbroker.security.sasl.unsecured_tokens import are_enabled, unsecured
from kbroker.security.tls.mapping import BadRules

log = logging.getLogger(__name__)

JAAS: Final = "sasl.jaas.config"
ENABLED: Final = "sasl.enabled.mechanisms"
SASL_PROTOCOLS: Final = ("SASL_PLAINTEXT", "SASL_SSL")
Begin = Callable[[], ServerMechanism]


class Credentials(NamedTuple):
    """Look-ups of SCRAM credentials for a mechanism: of users by name, and of delegation tokens by id."""

    of_user: Callable[[str, str], ScramCredential | None]
    of_token: Callable[[str, str], scram.TokenLogin | None]


_HANDLER: Final = "sasl.server.callback.handler.class"
_FILE: Final = "java.security.auth.login.config"
_SECTION: Final = "KafkaServer"
_SERVICE_NAME: Final = "sasl.kerberos.service.name"
_OAUTH_HANDLERS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler",
)


class ListenerSettings:
    """The settings of one listener."""

    def __init__(self, config: BrokerConfig, listener: str, credentials: Credentials | None = None) -> None:
        self.config = config
        self.listener = listener
        self.credentials = credentials or Credentials(_no_credential, _no_credential)
        self.serves = credentials is not None
        """Whether a broker serves the listener; False if only the settings are checked."""
        self._in_file: list[LoginModule] | None = None

    def find(self, key: str, mechanism: str = "") -> tuple[str, str] | None:
        """Return name and text of the setting that has precedence for a key; None if the key is not set."""
        own = f"listener.name.{self.listener.lower()}."
        names = [f"{own}{mechanism.lower()}.{key}"] if mechanism else []
        for name in (*names, f"{own}{key}", key):
            for settings in (self.config.dynamic_broker, self.config.dynamic_default, self.config.static):
                if settings.get(name, "").strip():
                    return name, settings[name]
        return None

    def value(self, key: str, mechanism: str = "") -> Value:
        """Return the value of a key, or its default. Raises ConfigError."""
        found = self.find(key, mechanism)
        declared = broker_key(key)
        assert declared is not None, key
        if found is None:
            return declared.default
        try:
            return parse(declared, found[1])
        except InvalidConfig as error:
            raise ConfigError(error.text) from None

    def login(self, mechanism: str, module: str) -> LoginModule | None:
        """Return the login module of a mechanism, or None. Raises ConfigError, whose text contains no secret.

        If the setting is a file of login modules, `module` is the class to find.
        """
        found = self.find(JAAS, mechanism)
        if found is None:
            if self._in_file is None:
                self._in_file = _logins_in_file(self.config.static.get(_FILE, "").strip(), self.listener)
            return next((each for each in self._in_file if each.name == module), None)
        name, text = found
        try:
            modules = parse_jaas(f"KafkaServer {{ {text} }};")["KafkaServer"]
        except JaasError:
            # The parser's message may contain a part of a badly quoted password.
            raise ConfigError(f'{name} is not of the form CLASS required name="value" ...;') from None
        if len(modules) != 1:
            raise ConfigError(f"{name} has {len(modules)} login modules instead of one")
        return modules[0]


def _logins_in_file(path: str, listener: str) -> list[LoginModule]:
    """Return a listener's login modules from the JAAS file; empty without a file. Raises ConfigError."""
    if not path:
        return []
    try:
        with open(path, encoding="utf-8") as file:
            sections = parse_jaas(file.read())
    except OSError as error:
        raise ConfigError(f"{_FILE}: cannot read {path}: {error.strerror}") from None
    except (JaasError, UnicodeDecodeError):
        raise ConfigError(f"{_FILE}: {path} is no login configuration") from None
    return sections.get(f"{listener.lower()}.{_SECTION}") or sections.get(_SECTION) or []


def _no_credential(_user: str, _mechanism: str) -> None:
    return None


def offers(config: BrokerConfig, credentials: Credentials | None = None) -> dict[str, Offer]:
    """Return the offer of each SASL listener, by listener name. Raises ConfigError.

    Without `credentials`, this function only checks the settings, and fetches no keys.
    """
    return {
        each.name: _offer(ListenerSettings(config, each.name, credentials), protocol)
        for each in config.listeners.bind
        if (protocol := config.listeners.protocols[each.name]) in SASL_PROTOCOLS
    }


def _offer(settings: ListenerSettings, protocol: str) -> Offer:
    enabled = settings.value(ENABLED)
    if not isinstance(enabled, tuple) or not enabled:
        raise ConfigError(f"{ENABLED} is empty, but listener {settings.listener} asks for {protocol}")
    begin = {mechanism: _begin(settings, mechanism) for mechanism in dict.fromkeys(enabled)}
    config = settings.config
    return Offer(
        begin,
        {mechanism: _number(settings.value("connections.max.reauth.ms", mechanism)) for mechanism in begin},
        config.get_int("sasl.server.max.receive.size"),
        config.get_int("connection.failed.authentication.delay.ms"),
    )


def _number(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _begin(settings: ListenerSettings, mechanism: str) -> Begin:
    make = _MAKERS.get(mechanism)
    if make is None:
        raise ConfigError(
            f"{ENABLED}: listener {settings.listener} cannot offer {mechanism}; this version has {', '.join(_MAKERS)}"
        )
    handler = settings.find(_HANDLER, mechanism)
    if handler is not None and (mechanism != oauthbearer.NAME or handler[1].strip() not in _OAUTH_HANDLERS):
        raise ConfigError(f"{handler[0]}: this version runs no Java class, and has nothing in its place")
    return make(settings, mechanism)


def required_login(settings: ListenerSettings, mechanism: str, module: str) -> LoginModule:
    """Return a mechanism's login module, which must be `module`. Raises ConfigError."""
    login = settings.login(mechanism, module)
    where = f"listener.name.{settings.listener.lower()}.{mechanism.lower()}.{JAAS}"
    if login is None:
        raise ConfigError(f"{where} is missing: listener {settings.listener} offers {mechanism}, which needs {module}")
    if login.name != module:
        raise ConfigError(f"{where}: the login module of {mechanism} is {module}, not {login.name}")
    return login


def _plain(settings: ListenerSettings, mechanism: str) -> Begin:
    login = required_login(settings, mechanism, plain.MODULE)
    first = settings.find(JAAS, mechanism)
    known: tuple[str, Mapping[str, str]] = (first[1] if first else "", plain.passwords(login.options))

    def begin() -> ServerMechanism:
        """Begin an authentication with the current users, which may change while the broker runs."""
        nonlocal known
        found = settings.find(JAAS, mechanism)
        text = found[1] if found else ""
        if text != known[0]:
            try:
                login = settings.login(mechanism, plain.MODULE)
                known = text, plain.passwords(login.options) if login else {}
            except ConfigError as error:
                log.error("the users are unchanged: %s", error)
                known = text, known[1]
        return plain.PlainServer(known[1])

    return begin


def _scram(settings: ListenerSettings, mechanism: str) -> Begin:
    found = settings.find(JAAS, mechanism)
    # A setting without the name of a mechanism may be intended for another mechanism.
    if found is not None and found[0].endswith(f".{mechanism.lower()}.{JAAS}"):
        required_login(settings, mechanism, scram.MODULE)
    credentials = settings.credentials
    return lambda: scram.ScramServer(
        mechanism,
        lambda user: credentials.of_user(user, mechanism),
        lambda token: credentials.of_token(token, mechanism),
    )


def _oauthbearer(settings: ListenerSettings, mechanism: str) -> Begin:
    options = required_login(settings, mechanism, oauthbearer.MODULE).options
    url = settings.find("sasl.oauthbearer.jwks.endpoint.url", mechanism)
    if url is None and not are_enabled(options):
        raise ConfigError(
            f"listener {settings.listener} offers {mechanism}, but sasl.oauthbearer.jwks.endpoint.url is not "
            "set, so the keys that sign tokens are unknown; for development, the unsecuredValidator... options of the "
            "login module allow unsigned tokens"
        )
    if url is None:
        validate = unsecured(options, SystemClock().now_ms)
    else:
        expected = _expected(settings, mechanism)
        validate = signed(_key_set(settings, mechanism, *url), expected)
    return lambda: oauthbearer.OAuthBearerServer(validate)


def _gssapi(settings: ListenerSettings, mechanism: str) -> Begin:
    library = kerberos.library(settings.listener)
    options = required_login(settings, mechanism, gssapi.MODULE).options
    where = (settings.find(JAAS, mechanism) or (JAAS, ""))[0]
    begin = kerberos.acceptor(library, where, options)
    found = settings.find(_SERVICE_NAME, mechanism)
    names = {each for each in (found[1].strip() if found else None, options.get("serviceName")) if each}
    if not names:
        raise ConfigError(f"{_SERVICE_NAME} is missing: listener {settings.listener} offers {mechanism}")
    if names != {kerberos_names.service_of(options["principal"])}:
        raise ConfigError(f"{_SERVICE_NAME}, and serviceName and principal of {where}, must name the same service")
    rules = settings.value(kerberos_names.KEY, mechanism)
    try:
        namer = kerberos_names.PrincipalNamer(rules if isinstance(rules, tuple) else (), kerberos.default_realm())
    except BadRules as error:
        raise ConfigError(f"{kerberos_names.KEY}: {error}") from None
    return lambda: gssapi.GssapiServer(begin, namer.name_of)


def _key_set(settings: ListenerSettings, mechanism: str, name: str, url: str) -> KeySet:
    def number(key: str) -> int:
        return _number(settings.value(key, mechanism))

    try:
        read = reader(url.strip())
    except ValueError as error:
        raise ConfigError(f"{name}: {url.strip()} is {error}") from None
    keys = KeySet(
        read,
        SystemClock().monotonic_ms,
        number("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
        number("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
        number("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
    )
    if url.strip().startswith("file:"):
        try:
            parse_keys(read())
        except (OSError, BadKeySet) as error:
            raise ConfigError(f"{name}: {url.strip()} cannot be used: {error}") from None
    if settings.serves:
        keys.refresh()
    return keys


def _expected(settings: ListenerSettings, mechanism: str) -> Expected:
    def text(key: str) -> str | None:
        value = settings.value(key, mechanism)
        return value if isinstance(value, str) and value else None

    found = settings.value("sasl.oauthbearer.expected.audience", mechanism)
    audience, issuer = found if isinstance(found, tuple) else (), text("sasl.oauthbearer.expected.issuer")
    for is_expected, key, unverified in (
        (bool(audience), "sasl.oauthbearer.expected.audience", "sasl.oauthbearer.allow.unverified.audience"),
        (issuer is not None, "sasl.oauthbearer.expected.issuer", "sasl.oauthbearer.allow.unverified.issuer"),
    ):
        if not is_expected and not settings.value(unverified, mechanism):
            claim = key.rpartition(".")[2]
            raise ConfigError(
                f"listener {settings.listener} offers {mechanism}, but {key} is not set; set it, or "
                f"{unverified}=true to accept tokens with any {claim}"
            )
    return Expected(
        issuer,
        audience,
        text("sasl.oauthbearer.sub.claim.name") or "sub",
        text("sasl.oauthbearer.scope.claim.name") or "scope",
        _number(settings.value("sasl.oauthbearer.clock.skew.seconds", mechanism)),
    )


_MAKERS: Final[Mapping[str, Callable[[ListenerSettings, str], Begin]]] = {
    "PLAIN": _plain,
    **dict.fromkeys(HASHES, _scram),
    oauthbearer.NAME: _oauthbearer,
    gssapi.NAME: _gssapi,
}


_INTER_BROKER: Final = "sasl.mechanism.inter.broker.protocol"
Login = Callable[[], tuple[str, ClientMechanism]]
"""Begins a login; returns the mechanism's name, and this broker's side of the authentication."""


def login_between_brokers(config: BrokerConfig) -> Login | None:
    """Return a function that logs in to other brokers; None if no login is required. Raises ConfigError."""
    listener = config.listeners.inter_broker
    if not config.in_cluster or config.listeners.protocols.get(listener) not in SASL_PROTOCOLS:
        return None
    settings = ListenerSettings(config, listener)
    mechanism = config.get_str(_INTER_BROKER)
    modules = {"PLAIN": plain.MODULE, **dict.fromkeys(HASHES, scram.MODULE)}
    if mechanism not in modules:
        raise ConfigError(f"{_INTER_BROKER} is {mechanism}; brokers of this version log in by {', '.join(modules)}")
    offered = settings.value("sasl.enabled.mechanisms")
    if not isinstance(offered, tuple) or mechanism not in offered:
        raise ConfigError(
            f"{_INTER_BROKER} is {mechanism}, which listener {listener} does not offer (sasl.enabled.mechanisms)"
        )

    def credentials() -> tuple[str, str]:
        """Return the current credentials, which may change while the broker runs."""
        options = required_login(settings, mechanism, modules[mechanism]).options
        name, password = options.get("username"), options.get("password")
        if not name or not password:
            where = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
            raise ConfigError(f"{where} has no username, or no password, with which brokers log in to each other")
        return name, password

    def begin() -> tuple[str, ClientMechanism]:
        name, password = credentials()
        if mechanism == "PLAIN":
            return mechanism, plain.PlainClient(name, password)
        return mechanism, scram.ScramClient(mechanism, name, password)

    credentials()
    return begin
