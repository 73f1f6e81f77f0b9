"""The content of DescribeConfigs for a topic, a broker, a group or a subscription: values, sources and synonyms.

Owns that view. Never builds protocol messages; a handler copies the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kbroker.config.loggers import levels
from kbroker.config.model import ConfigKey, ConfigSource, ConfigType, Mode, Value
from kbroker.config.server_config import BrokerConfig
from kbroker.config.stored_configs import stored_values
from kbroker.config.table import BROKER, CLIENT_METRICS, DYNAMIC_ONLY, GROUP, TOPIC, broker_key, listener_base
from kbroker.config.values import parse_all, to_text

Synonym = tuple[str, str | None, ConfigSource]


@dataclass(frozen=True, slots=True)
class Described:
    """One config in DescribeConfigs. `synonyms` are (key, text, source), highest precedence first."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    type: ConfigType
    doc: str | None
    synonyms: list[Synonym] = field(default_factory=list)


def describe_topic(config: BrokerConfig, configs: Mapping[str, str]) -> list[Described]:
    """Describe a topic with its own `configs` (text by key)."""
    own = {name: text for name, text in configs.items() if name in TOPIC}
    values = stored_values(TOPIC, own, config.topic_defaults())
    described = []
    for name, key in TOPIC.items():
        synonyms = config.synonyms(key.synonyms[0].name) if key.synonyms else []
        if (
            key.internal
            and name not in configs
            and not any(source < ConfigSource.DEFAULT_CONFIG for *_, source in synonyms)
        ):
            continue
        described.append(_own(key, values[name], name in configs, ConfigSource.DYNAMIC_TOPIC_CONFIG, synonyms))
    return described


def describe_created_topic(config: BrokerConfig, configs: Mapping[str, str]) -> list[Described]:
    """Describe a topic for the response of CreateTopics, which has fewer fields than DescribeConfigs.

    Values are returned as the client sent them. If a broker setting in hours or minutes determines a time, this setting
    is returned as the source.
    """
    described = []
    for entry in describe_topic(config, configs):
        source = _created_source(config, entry.name, configs)
        value = configs.get(entry.name, entry.value)
        described.append(replace(entry, value=value, source=source, doc=None, synonyms=[]))
    return described


def _created_source(config: BrokerConfig, name: str, configs: Mapping[str, str]) -> ConfigSource:
    if name in configs:
        return ConfigSource.DYNAMIC_TOPIC_CONFIG
    names = [synonym.name for synonym in TOPIC[name].synonyms]
    sources = [config.source(each) for each in names]
    # A source with a smaller number has a higher precedence.
    return min(sources, default=ConfigSource.DEFAULT_CONFIG)


def describe_group(config: BrokerConfig, configs: Mapping[str, str]) -> list[Described]:
    """Describe a group with its own `configs` (text by key). Internal keys are included only if they are set."""
    values = parse_all(GROUP, {name: text for name, text in configs.items() if name in GROUP}, config.group_defaults())
    described = []
    for name, key in GROUP.items():
        if key.internal and name not in configs and all(each.name not in config.static for each in key.synonyms):
            continue
        if key.synonyms:
            synonyms = config.synonyms(key.synonyms[0].name)
        else:
            synonyms = [(name, to_text(key.default), ConfigSource.DEFAULT_CONFIG)]
        described.append(_own(key, values[name], name in configs, ConfigSource.GROUP_CONFIG, synonyms))
    return described


def describe_client_metrics(configs: Mapping[str, str]) -> list[Described]:
    """Describe a subscription to clients' metrics with its own `configs` (text by key)."""
    values = parse_all(CLIENT_METRICS, {name: text for name, text in configs.items() if name in CLIENT_METRICS}, {})
    described = []
    for name, key in CLIENT_METRICS.items():
        described.append(_own(key, values[name], name in configs, ConfigSource.CLIENT_METRICS_CONFIG, []))
    return described


def _own(key: ConfigKey, value: Value, is_set: bool, own: ConfigSource, synonyms: list[Synonym]) -> Described:
    text = to_text(value)
    if is_set:
        synonyms = [(key.name, text, own), *synonyms]
    source = synonyms[0][2] if synonyms else ConfigSource.DEFAULT_CONFIG
    return Described(key.name, text, source, False, False, key.type, key.doc, synonyms)


def describe_broker(config: BrokerConfig) -> list[Described]:
    """Describe this broker: every key, and the settings with keys that kbroker does not know."""
    names = [name for name, key in BROKER.items() if not key.internal and name not in DYNAMIC_ONLY]
    settings = {**config.static, **config.dynamic_default, **config.dynamic_broker}
    names += [name for name in settings if name not in BROKER or BROKER[name].internal or name in DYNAMIC_ONLY]
    return [_broker_entry(config, name, settings.get(name), config.synonyms(name)) for name in names]


def describe_broker_default(config: BrokerConfig) -> list[Described]:
    """Describe the cluster-wide dynamic broker configs."""
    wanted = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return [
        _broker_entry(config, name, text, [each for each in config.synonyms(name) if each[2] is wanted], as_set=True)
        for name, text in config.dynamic_default.items()
    ]


def describe_loggers() -> list[Described]:
    """Describe the levels of this process's loggers. As in Kafka, their type is UNKNOWN, without a description."""
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    return [Described(name, level, source, False, False, ConfigType.UNKNOWN, "") for name, level in levels().items()]


def _broker_entry(
    config: BrokerConfig, name: str, text: str | None, synonyms: list[Synonym], *, as_set: bool = False
) -> Described:
    key = broker_key(name)
    # The value of an unknown key may be a secret.
    sensitive = key is None or key.sensitive
    if not as_set and name in BROKER:
        text = to_text(config[name])
    text = config.variables.get(name, text)
    if sensitive:
        text = None
        synonyms = [(each, None, source) for each, _, source in synonyms]
    source = synonyms[0][2] if synonyms else ConfigSource.DEFAULT_CONFIG
    read_only = name not in BROKER or BROKER[name].mode is Mode.READ_ONLY
    doc = key.doc if key is not None and listener_base(name) is None else None
    return Described(
        name, text, source, read_only, sensitive, key.type if key is not None else ConfigType.UNKNOWN, doc, synonyms
    )
