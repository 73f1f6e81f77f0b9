"""The configuration of one broker: the settings at its start, and the later changes.

Owns `BrokerConfig`. Its sources by rising precedence: defaults < properties file < environment < command line < the
dynamic configs that the controller passes in. Also owns the settings of authorization. Two of them are not keys of a
broker (nor of Kafka's KafkaConfig). Never decides whether a client may change a config (changes_while_running.py does),
and never describes a config (describe.py does).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from kbroker.config import listeners as listener_rules
from kbroker.config.between_keys import check_start
from kbroker.config.model import ConfigError, ConfigSource, ConfigType, InvalidConfig, Mode, Value
from kbroker.config.password_encoder import PasswordEncoder
from kbroker.config.providers import Providers
from kbroker.config.sources import merged
from kbroker.config.stored_configs import StoredConfigs
from kbroker.config.table import BROKER, CLUSTER, DYNAMIC_ONLY, GROUP, TOPIC, broker_key, broker_synonyms, listener_base
from kbroker.config.values import parse, parse_text, to_text

CLASS: Final = "authorizer.class.name"
SUPER_USERS: Final = "super.users"
ALLOW_EVERYONE: Final = "allow.everyone.if.no.acl.found"
OF_AUTHORIZERS: Final = frozenset({SUPER_USERS, ALLOW_EVERYONE})
"""The settings that Kafka's authorizers read, and that KafkaConfig does not know."""
STANDARD: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OF_ZOOKEEPER: Final = "kafka.security.authorizer.AclAuthorizer"


class Authorization(NamedTuple):
    """The super users (TYPE:NAME), and whether everyone may use resources without an ACL."""

    super_users: tuple[str, ...]
    allow_if_no_acl: bool


def authorization(name: str, settings: Mapping[str, str], *, in_cluster: bool) -> Authorization | None:
    """Return the settings of an authorizer with class `name`. Return None without an authorizer.

    Raises ConfigError for settings that are invalid or have no effect.
    """
    if not name:
        idle = [each for each in sorted(OF_AUTHORIZERS) if settings.get(each, "").strip()]
        if idle:
            raise ConfigError(f"{', '.join(idle)}: without {CLASS} every client may do everything; set it, too")
        return None
    expected = OF_ZOOKEEPER if in_cluster else STANDARD
    if name != expected:
        where = "in a cluster on ZooKeeper" if in_cluster else "on a node that is alone"
        raise ConfigError(f"{CLASS} {name} is not known: {where} it is {expected}")
    users = tuple(each.strip() for each in settings.get(SUPER_USERS, "").split(";") if each.strip())
    for user in users:
        if user.find(":") < 1:
            raise ConfigError(f"{SUPER_USERS} has {user!r}, which is not a principal like User:alice")
    allow = settings.get(ALLOW_EVERYONE, "").strip().lower() or "false"
    if allow not in ("true", "false"):
        raise ConfigError(f"{ALLOW_EVERYONE} is {allow}, which is neither true nor false")
    return Authorization(users, allow == "true")


# Keys of older Kafka versions that many files still contain. They are not typing mistakes, so no name is suggested.
_REMOVED: Final = frozenset(
    [
        "advertised.host.name",
        "advertised.port",
        "auto.include.jmx.reporter",
        "broker.id.generation.enable",
        "controlled.shutdown.max.retries",
        "controlled.shutdown.retry.backoff.ms",
        "host.name",
        "inter.broker.protocol.version",
        "leader.imbalance.per.broker.percentage",
        "log.message.downconversion.enable",
        "log.message.format.version",
        "log.message.timestamp.difference.max.ms",
        "offsets.commit.required.acks",
        "port",
        "reserved.broker.max.id",
    ]
)
# DescribeConfigs omits these defaults: the defaults of keys that only dynamic changes set, and of keys without a
# default in Kafka.
_UNREPORTED: Final = DYNAMIC_ONLY | {"node.id"}
_SECURITY_PREFIXES: Final = ("ssl.", "sasl.")
_REMOVED_PREFIXES: Final = ("zookeeper.", "password.encoder.")
_BETWEEN_BROKERS: Final = ("inter.broker.listener.name", "security.inter.broker.protocol")
"""The keys that name the inter-broker listener. The first key has precedence."""
_LOGIN: Final = "java.security.auth.login.config"


class BrokerConfig:
    """The value of every broker key: `config["log.dirs"]`, or typed: `config.get_int("num.partitions")`.

    `warnings` has one line for each ignored setting. `set_dynamic` applies dynamic configs, so a value may change
    between two reads. Code that must not see such a change reads the value only once.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, *, strict: bool = False) -> None:
        """Check `settings` (text by key). Raises ConfigError for a bad value, and with `strict` for an unknown key."""
        self.warnings: list[str] = []
        given = dict(settings or {})
        self._providers = Providers(given.get("config.providers", ""), given)
        self.static = {name: self._providers.resolved(name, text) for name, text in given.items()}
        try:
            self._check(strict)
        except ConfigError as error:
            raise ConfigError(self.hide(str(error))) from None
        self.warnings = [*self._providers.warnings, *self._providers.left_over(given), *map(self.hide, self.warnings)]

    def _check(self, strict: bool) -> None:
        self._keys = {**BROKER, **CLUSTER} if self.in_cluster else BROKER
        self._check_node_id()
        self.dynamic_default: dict[str, str] = {}
        self.dynamic_broker: dict[str, str] = {}
        self.variables: dict[str, str] = {}
        """The original texts of dynamic configs with variables, because resolved values must not be shown."""
        self._as_set: tuple[dict[str, str], dict[str, str]] = {}, {}
        self._values: dict[str, Value] = {}
        self._check_names(strict)
        self._recompute()
        self.stored = self._stored_configs()
        self._refuse_security()
        self.authorization = authorization(
            self.get_str("authorizer.class.name").strip(), self.static, in_cluster=self.in_cluster
        )
        """The settings of an authorizer; None without an authorizer."""
        check_start(self)
        self.listeners = self._resolve_listeners()
        protocols = self.listeners.protocols.values()
        if not any(protocol.endswith("SSL") for protocol in protocols):
            self._warn_of_idle("ssl.", "SSL")
        if not any(protocol.startswith("SASL") for protocol in protocols):
            self._warn_of_idle("sasl.", "SASL")
        self._warn_of_idle_login()

    @classmethod
    def load(
        cls,
        file: Path | None = None,
        environment: Mapping[str, str] | None = None,
        overrides: Iterable[str] = (),
        *,
        settings: Mapping[str, str] | None = None,
        strict: bool = False,
    ) -> BrokerConfig:
        """Build a configuration from its sources, lowest precedence first.

        `settings` are a command's own defaults, `file` is a server.properties file, `environment` contains the
        process's variables, and `overrides` are texts like "num.partitions=3".
        """
        return cls(merged(settings or {}, file, environment or {}, overrides), strict=strict)

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def get_int(self, name: str) -> int:
        """Return the value of an integer key that has a value."""
        value = self._values[name]
        assert isinstance(value, int), name
        return value

    def get_optional_int(self, name: str) -> int | None:
        """Return the value of an integer key that may be unset."""
        value = self._values[name]
        assert value is None or isinstance(value, int), name
        return value

    def get_bool(self, name: str) -> bool:
        """Return the value of a boolean key."""
        value = self._values[name]
        assert isinstance(value, bool), name
        return value

    def get_float(self, name: str) -> float:
        """Return the value of a floating-point key."""
        value = self._values[name]
        assert isinstance(value, float), name
        return value

    def get_str(self, name: str) -> str:
        """Return the value of a string key that has a value."""
        value = self._values[name]
        assert isinstance(value, str), name
        return value

    def get_optional_str(self, name: str) -> str | None:
        """Return the value of a string key that may be unset."""
        value = self._values[name]
        assert value is None or isinstance(value, str), name
        return value

    def get_list(self, name: str) -> tuple[str, ...]:
        """Return the value of a list key. The value of an unset key is empty."""
        value = self._values[name] or ()
        assert isinstance(value, tuple), name
        return value

    @property
    def in_cluster(self) -> bool:
        """Whether this broker is a node of a cluster: true if ZooKeeper is configured."""
        return bool(self.static.get("zookeeper.connect", "").strip())

    @property
    def node_id(self) -> int:
        """The id of this broker, from node.id or broker.id."""
        return self.get_int("node.id")

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The log directories: log.dirs, or log.dir if log.dirs is unset."""
        return self.get_list("log.dirs") or self.get_list("log.dir")

    def source(self, name: str) -> ConfigSource:
        """Return the source of a broker key's value."""
        if name in self.dynamic_broker:
            return ConfigSource.DYNAMIC_BROKER_CONFIG
        if name in self.dynamic_default:
            return ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        return ConfigSource.STATIC_BROKER_CONFIG if name in self.static else ConfigSource.DEFAULT_CONFIG

    def synonyms(self, name: str) -> list[tuple[str, str | None, ConfigSource]]:
        """Return (key, text, source) of all sources that set a key's value, highest precedence first.

        The result is empty if only a synonym, but not `name` itself, has a value, as in Kafka's DescribeConfigs.
        """
        names = broker_synonyms(name)
        found: list[tuple[str, str | None, ConfigSource]] = []
        cluster_wide, this_broker = self._as_set
        for settings, source in (
            (this_broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (cluster_wide, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self.static, ConfigSource.STATIC_BROKER_CONFIG),
        ):
            found += [(each, settings[each], source) for each in names if each in settings]
        for each in names:
            key = BROKER.get(each)
            if key is not None and key.default is not None and each not in _UNREPORTED:
                found.append((each, to_text(key.default), ConfigSource.DEFAULT_CONFIG))
        while found and found[0][0] != name:
            del found[0]
        return found

    def topic_defaults(self) -> dict[str, Value]:
        """Return the value of each topic key in a topic that does not set the key."""
        values = {name: self._topic_default(name) for name in TOPIC}
        retention = values["retention.ms"]
        # The keys in minutes and hours have no lower bound: every negative time means unlimited (-1).
        if isinstance(retention, int) and retention < 0:
            values["retention.ms"] = -1
        return values

    def _topic_default(self, name: str) -> Value:
        key = TOPIC[name]
        for synonym in key.synonyms:
            value = self._values[synonym.name]
            if value is not None:
                return value * synonym.factor if isinstance(value, int) and synonym.factor != 1 else value
        return key.default

    def group_defaults(self) -> dict[str, Value]:
        """Return the default of each group key. A group that does not set the key uses this default."""
        defaults = {
            name: self._values[key.synonyms[0].name] if key.synonyms else key.default for name, key in GROUP.items()
        }
        # A group has one assignor. Its default is the broker's first assignor.
        return {
            name: value[0] if isinstance(value, tuple) and GROUP[name].type is ConfigType.STRING else value
            for name, value in defaults.items()
        }

    def set_dynamic(self, cluster_wide: Mapping[str, str], this_broker: Mapping[str, str]) -> frozenset[str]:
        """Apply the stored dynamic configs (text by key). Return the keys whose values changed.

        Invalid values are ignored, because a version that did not know the key may have stored them.
        """
        return self._take(self.stored.read(cluster_wide), self.stored.read(this_broker))

    def resolve_again(self) -> frozenset[str]:
        """Resolve the variables in dynamic configs again. Return the keys whose values changed."""
        return self._take(*self._as_set)

    def with_dynamic(self, configs: Mapping[str, str], *, per_broker: bool) -> BrokerConfig:
        """Return this configuration with other dynamic configs of this broker, or with other cluster-wide defaults."""
        changed = copy.copy(self)
        changed.warnings = []
        cluster_wide, this_broker = self._as_set
        changed._take(*((cluster_wide, configs) if per_broker else (configs, this_broker)))  # noqa: SLF001 - a copy of this one
        return changed

    def hide(self, text: str) -> str:
        """Return a message in which the values of config providers are replaced with their variables."""
        return self._providers.hide(text)

    def _take(self, cluster_wide: Mapping[str, str], this_broker: Mapping[str, str]) -> frozenset[str]:
        before = dict(self._values)
        self._as_set = dict(cluster_wide), dict(this_broker)
        self.dynamic_default, self.dynamic_broker = map(self._effective, self._as_set)
        self.variables = {
            name: text
            for as_set, effective in zip(self._as_set, (self.dynamic_default, self.dynamic_broker), strict=True)
            for name, text in as_set.items()
            if effective.get(name) != text
        }
        self._recompute()
        return frozenset(name for name, value in self._values.items() if before.get(name) != value)

    def _effective(self, as_set: Mapping[str, str]) -> dict[str, str]:
        found = {}
        for name, text in as_set.items():
            try:
                found[name] = self.stored.effective(name, text)
            except InvalidConfig as error:
                self.warnings.append(f"dynamic config ignored: {error.text}")
        return found

    def _stored_configs(self) -> StoredConfigs:
        stored = StoredConfigs(self._providers, in_cluster=self.in_cluster)
        if self.in_cluster:
            stored.encoder = self._encoder("password.encoder.secret")
            stored.old_encoder = self._encoder("password.encoder.old.secret")
            if stored.old_encoder is not None and stored.encoder is None:
                raise ConfigError("password.encoder.old.secret is set, but not password.encoder.secret")
        return stored

    def _encoder(self, key: str) -> PasswordEncoder | None:
        secret = self.get_optional_str(key)
        if not secret:
            return None
        return PasswordEncoder(
            secret,
            self.get_optional_str("password.encoder.keyfactory.algorithm"),
            self.get_str("password.encoder.cipher.algorithm"),
            self.get_int("password.encoder.key.length"),
            self.get_int("password.encoder.iterations"),
        )

    def _recompute(self) -> None:
        values = {name: key.default for name, key in self._keys.items()}
        for name, text in self.static.items():
            key = self._keys.get(name)
            if key is None:
                continue
            try:
                values[name] = parse(key, text)
            except InvalidConfig as error:
                allowed = f" (allowed: {key.validator.text})" if key.validator and key.validator.text else ""
                raise ConfigError(f"{error.text}{allowed}") from None
        for settings in (self.dynamic_default, self.dynamic_broker):
            for name, text in settings.items():
                key = BROKER.get(name)
                if key is None or key.mode is Mode.READ_ONLY:
                    continue
                try:
                    values[name] = parse(key, text)
                except InvalidConfig as error:
                    self.warnings.append(self.hide(f"dynamic config ignored: {error.text}"))
        self._values = values

    def _check_names(self, strict: bool) -> None:
        """Warn of settings with keys that kbroker does not know, or refuse them."""
        problems = []
        for name in sorted(self.static):
            if (name in self._keys or broker_key(name) is not None) and name not in DYNAMIC_ONLY:
                continue
            if name in OF_AUTHORIZERS or name.startswith("config.providers."):
                continue
            if name in DYNAMIC_ONLY:
                problems.append(f"{name} can only be set dynamically and is ignored here")
            elif name in _REMOVED or name.startswith(_REMOVED_PREFIXES):
                self.warnings.append(f"{name} has no effect: Apache Kafka 4 no longer has it either")
            elif name != _LOGIN:
                problems.append(f"unknown config {name}{_hint(name)}")
        if problems and strict:
            raise ConfigError("; ".join(problems))
        self.warnings += problems

    def _refuse_security(self) -> None:
        """Refuse settings of security features that kbroker does not have. Accept defaults and empty values."""
        promised = []
        for name, text in sorted(self.static.items()):
            key = self._keys.get(name) or broker_key(name)
            base = listener_base(name) or name
            if base is not name and name.split(".", 3)[2].lower() != name.split(".", 3)[2]:
                raise ConfigError(f"{name}: the name of a listener is written in small letters here, as in Kafka")
            promises = key.refused if key else base.startswith(_SECURITY_PREFIXES)
            if promises and text.strip() and (key is None or parse_text(name, key.type, text) != key.default):
                promised.append(name)
        revocation = [name for name in promised if name.startswith("zookeeper.")]
        if revocation:
            raise ConfigError(
                f"{', '.join(revocation)}: this version does not check whether ZooKeeper's certificate was revoked; to "
                "connect all the same, leave this out"
            )
        of_tls = [name for name in promised if (listener_base(name) or name).startswith("ssl.")]
        if of_tls:
            raise ConfigError(f"{', '.join(of_tls)}: this version has no such setting of TLS; leave this out")
        if promised:
            raise ConfigError(
                f"{', '.join(promised)}: this version does not have this part of SASL, so clients might use what "
                "this forbids; to serve like that, leave this out"
            )

    def _warn_of_idle(self, prefix: str, protocol: str) -> None:
        """Warn of settings for a protocol that no listener uses."""
        idle = []
        for name, text in sorted(self.static.items()):
            key = broker_key(name)
            if key is None or not key.name.startswith(prefix) or not text.strip():
                continue
            if parse_text(name, key.type, text) != key.default:
                idle.append(name)
        if idle:
            self.warnings.append(f"{', '.join(idle)}: without effect, as no listener speaks {protocol}")

    def _warn_of_idle_login(self) -> None:
        if self.in_cluster or _LOGIN not in self.static:
            return
        if not any(protocol.startswith("SASL") for protocol in self.listeners.protocols.values()):
            why = "no listener asks for SASL, and no ZooKeeper is connected"
            self.warnings.append(f"{_LOGIN} has no effect: {why}")

    def _check_node_id(self) -> None:
        """Set node.id and broker.id to the same value. Clients see both keys as set."""
        node, broker = self.static.get("node.id"), self.static.get("broker.id")
        if node is None and broker is None:
            if self.in_cluster:
                raise ConfigError("zookeeper.connect is set, but not broker.id: every broker of a cluster has its own")
            return
        if node is not None and broker is not None and node.strip() != broker.strip():
            raise ConfigError(
                f"node.id is {node} and broker.id is {broker}; set one of them, or both to the same number"
            )
        self.static["node.id"] = self.static["broker.id"] = node if node is not None else broker or ""

    def _resolve_listeners(self) -> listener_rules.Listeners:
        found = listener_rules.resolve(
            self.get_list("listeners"),
            self.get_list("advertised.listeners") or None,
            self.get_str("listener.security.protocol.map"),
            self.get_list("controller.listener.names"),
            self.get_optional_str("inter.broker.listener.name") or self.get_str("security.inter.broker.protocol"),
        )
        explicit = next((key for key in _BETWEEN_BROKERS if self._values[key] is not None and key in self.static), None)
        if (self.in_cluster or explicit) and found.inter_broker not in found.protocols:
            raise ConfigError(
                f"{explicit or _BETWEEN_BROKERS[0]} {found.inter_broker} is not among the listeners: "
                f"{', '.join(each.name for each in found.bind)}"
            )
        return found


def _hint(unknown: str) -> str:
    """Return a hint for an unknown config name: the broker key of this topic config, or a similar name."""
    for owner, table in (("topic", TOPIC), ("group", GROUP)):
        if (key := table.get(unknown)) is not None:
            own = f"the broker's own is {key.synonyms[0].name}" if key.synonyms else "the broker has none for all"
            return f"; it is a config of a {owner}, {own}"
    import difflib

    near = difflib.get_close_matches(unknown, BROKER, 1, 0.75)
    return f"; did you mean {near[0]}?" if near else ""
