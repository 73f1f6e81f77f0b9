"""The config changes that a running broker accepts, for itself or for all brokers of the cluster.

Decides which keys are read-only, per-broker or per-listener. Owns the limits for changes of a thread count, the limits
of local retention with tiered storage, and the check that a login module can be parsed. All messages are Kafka's,
except the messages of the check of login modules. between_keys.py owns the rules between keys. Never stores: an invalid
change raises InvalidConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.config.between_keys import check_rules
from kbroker.config.jaas import JaasError, parse_jaas
from kbroker.config.limits import invalid
from kbroker.config.listeners import parse_endpoint, parse_protocol_map
from kbroker.config.model import ConfigError, ConfigKey, InvalidConfig, Mode, Value
from kbroker.config.server_config import BrokerConfig
from kbroker.config.table import BROKER, broker_key, listener_base
from kbroker.config.values import parse
from kbroker.protocol.errors import ErrorCode

_THREAD_KEYS: Final = (
    "num.io.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "background.threads",
)
_JAAS: Final = "sasl.jaas.config"
_LONGEST_LOGIN: Final = 64 * 1024
"""The limit in characters. It is enough for the names and passwords of a thousand users."""
_CLUSTER_LEVEL_LISTENER_KEYS: Final = ("max.connections", "max.connection.creation.rate", "num.network.threads")


def validate_broker(config: BrokerConfig, configs: Mapping[str, str], *, per_broker: bool) -> None:
    """Check dynamic broker configs: those of one broker (`per_broker`), or the cluster-wide defaults.

    Raises InvalidConfig. Its code is INVALID_CONFIG for an unreadable login module, and otherwise INVALID_REQUEST, as
    in Kafka's brokers.
    """
    try:
        _validate_broker(config, configs, per_broker=per_broker)
    except InvalidConfig as error:
        raise InvalidConfig(config.hide(error.text), ErrorCode.INVALID_REQUEST) from None
    _check_logins(config, configs)


def _check_logins(config: BrokerConfig, configs: Mapping[str, str]) -> None:
    """Refuse unreadable login modules, which Kafka accepts. Messages omit the content, which may be a password."""
    for name in configs:
        if name != _JAAS and not name.endswith(f".{_JAAS}"):
            continue
        text = config.stored.effective(name, configs[name])
        if text.strip():
            if len(text) > _LONGEST_LOGIN:
                raise InvalidConfig(f"{name} has {len(text)} characters; at most {_LONGEST_LOGIN} are allowed")
            try:
                count = sum(map(len, parse_jaas(f"KafkaServer {{ {text} }};").values()))
            except JaasError:
                raise InvalidConfig(f'{name} is not of the form CLASS required name="value" ...;') from None
            if count != 1:
                raise InvalidConfig(f"{name} has {count} login modules instead of one")


def _validate_broker(config: BrokerConfig, configs: Mapping[str, str], *, per_broker: bool) -> None:
    keys = {name: broker_key(name) for name in configs}
    config.stored.check_count(configs)
    _refuse(
        [name for name in configs if name in BROKER and BROKER[name].mode is Mode.READ_ONLY],
        "Cannot update these configs dynamically",
    )
    _refuse(
        [name for name in configs if name in BROKER and name.startswith("ssl.") and name != "ssl.client.auth"],
        "These security configs can be dynamically updated only per-listener using the listener prefix",
    )
    known: dict[str, list[str]] = {}
    for configured, key in keys.items():
        if key is not None:
            known.setdefault(key.name, []).append(configured)
    for name in BROKER:
        for configured in known.get(name, ()):
            key = keys[configured]
            assert key is not None
            # before variables are resolved, as in Kafka: so a number must not be given as a variable
            parse(key, configs[configured])
            parse(key, config.stored.effective(configured, configs[configured]))
    if not per_broker:
        _refuse(
            [name for name, key in keys.items() if key is not None and _only_per_broker(name, key)],
            "Cannot update these configs at default cluster level, broker id must be specified",
        )
    after = config.with_dynamic(configs, per_broker=per_broker)
    check_rules(after)
    if any(key is not None and key.name == "max.connections" and int(configs[name]) == 0 for name, key in keys.items()):
        raise _not_reconfigurable("Invalid max.connections 0")
    if "listeners" in configs or "listener.security.protocol.map" in configs:
        _check_listeners(after, config)
    for name in _THREAD_KEYS:
        _check_thread_count(name, after.get_int(name), config.get_int(name))
    _check_cleaner_threads(after.get_int("log.cleaner.threads"), config.get_int("log.cleaner.threads"))
    _check_local_retention(after, config, "ms")
    _check_local_retention(after, config, "bytes")


def _check_listeners(after: BrokerConfig, before: BrokerConfig) -> None:
    """Refuse the changes of listeners that Kafka refuses, and the changes that kbroker applies only at a start."""
    listeners = after.get_list("listeners")
    try:
        protocols = parse_protocol_map(after.get_str("listener.security.protocol.map"))
        asked = [parse_endpoint("listeners", text) for text in listeners]
    except ConfigError as error:
        raise InvalidConfig(str(error)) from None
    for endpoint in asked:
        if endpoint.name not in protocols:
            problem = f"No security protocol defined for listener {endpoint.name}"
            raise InvalidConfig(f"Error creating broker listeners from '[{', '.join(listeners)}]': {problem}")
    now = before.listeners
    for name, protocol in now.protocols.items():
        if protocols.get(name, protocol) != protocol:
            raise _not_reconfigurable(f"Security protocol cannot be updated for existing listener ListenerName({name})")
    controllers = {name.upper() for name in after.get_list("controller.listener.names")}
    wanted = {endpoint.name: endpoint for endpoint in asked if endpoint.name not in controllers}
    same = wanted.keys() == {each.name for each in now.bind} and all(
        wanted[each.name].host == each.host and each.port in (0, wanted[each.name].port) for each in now.bind
    )
    if not same:
        raise InvalidConfig(
            "kbroker opens and closes listeners only when it starts: set listeners in its own configuration"
        )


def _only_per_broker(name: str, key: ConfigKey) -> bool:
    if listener_base(name) is not None:
        return key.name not in _CLUSTER_LEVEL_LISTENER_KEYS
    return key.mode is Mode.PER_BROKER


def _refuse(names: list[str], message: str) -> None:
    if names:
        raise InvalidConfig(f"{message}: [{', '.join(names)}]")


def _check_thread_count(name: str, new: int, old: int) -> None:
    """Refuse a new number of threads that is larger than twice the old number, or smaller than half of it."""
    failed = f"Dynamic thread count update validation failed for {name}={new}"
    if new < old // 2:
        problem = f"{failed}, value should be at least half the current value {old}"
    elif new > old * 2:
        problem = f"{failed}, value should not be greater than double the current value {old}"
    else:
        return
    raise _not_reconfigurable(problem)


def _check_cleaner_threads(new: int, old: int) -> None:
    """Do the check of _check_thread_count, with the messages of Kafka's LogCleaner."""
    if new < old // 2:
        raise _not_reconfigurable(f"Log cleaner threads cannot be reduced to less than half the current value {old}")
    if new > old * 2:
        raise _not_reconfigurable(
            f"Log cleaner threads cannot be increased to more than double the current value {old}"
        )


def _check_local_retention(after: BrokerConfig, before: BrokerConfig, unit: str) -> None:
    """Refuse a local retention above the total retention (tiered storage). -2 means the total retention."""
    local_name, name = f"log.local.retention.{unit}", f"log.retention.{unit}"

    def both(config: BrokerConfig) -> tuple[int, Value]:
        return config.get_int(local_name), config.topic_defaults()[f"retention.{unit}"]

    local, kept = both(after)
    if (local, kept) == both(before) or not isinstance(kept, int) or kept == -1 or local == -2:
        return
    if local == -1:
        raise _not_reconfigurable(invalid(local_name, local, f"Value must not be -1 as {name} value is set as {kept}."))
    if local > kept:
        text = f"Value must not be more than {name} property value: {kept}"
        raise _not_reconfigurable(invalid(local_name, local, text))


def _not_reconfigurable(problem: str | InvalidConfig) -> InvalidConfig:
    # Kafka reports this failure as an invalid value, so clients see this sentence.
    text = problem.text if isinstance(problem, InvalidConfig) else problem
    cause = f"org.apache.kafka.common.config.ConfigException: {text}"
    return InvalidConfig(f"Invalid value {cause} for configuration Invalid dynamic configuration")
