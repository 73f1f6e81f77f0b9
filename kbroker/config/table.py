"""The table of all config keys, by resource.

Owns nothing but the sums of the table modules. Topic and group keys stand in the order in which Kafka checks them: when
several values of one request are wrong, the first in this order is the one reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kbroker.config import broker_cluster, broker_groups, broker_log, broker_node, broker_security, broker_tiered
from kbroker.config.group_keys import GROUP_KEYS
from kbroker.config.model import ConfigKey
from kbroker.config.topic_keys import TOPIC_KEYS

BROKER_SECTIONS: Final = (broker_node, broker_log, broker_groups, broker_cluster, broker_security, broker_tiered)

TOPIC: Final[Mapping[str, ConfigKey]] = MappingProxyType({key.name: key for key in TOPIC_KEYS})
GROUP: Final[Mapping[str, ConfigKey]] = MappingProxyType({key.name: key for key in GROUP_KEYS})
BROKER: Final[Mapping[str, ConfigKey]] = MappingProxyType(
    {key.name: key for section in BROKER_SECTIONS for key in section.KEYS}
)

# Broker keys that name one thing in several units; the first that is set counts. DescribeConfigs lists them together.
_FAMILIES: Final = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_SYNONYMS: Final = {name: family for family in _FAMILIES for name in family} | {
    # The scheduler's interval is only a default of the other, so it has no synonyms itself.
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
}

# What only a dynamic change can set: these have no place in server.properties.
DYNAMIC_ONLY: Final = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)


def listener_base(name: str) -> str | None:
    """Return the key behind a listener's own setting `listener.name.<listener>.<key>`, or None for other names."""
    parts = name.split(".", 3)
    return parts[3] if len(parts) == 4 and parts[:2] == ["listener", "name"] and parts[2] else None


def broker_synonyms(name: str) -> tuple[str, ...]:
    """Return the broker keys that `name` may take its value from, best first; `name` itself is one of them."""
    family = _SYNONYMS.get(name)
    if family is not None:
        return family
    base = listener_base(name)
    return (name,) if base is None else (name, base)


def broker_key(name: str) -> ConfigKey | None:
    """Return the declaration of a broker key, also of a listener's own setting of it; None when there is none."""
    found = BROKER.get(name)
    if found is not None:
        return found
    base = listener_base(name)
    if base is None:
        return None
    # SASL settings put the mechanism in front: listener.name.<listener>.<mechanism>.<key>.
    return BROKER.get(base) or BROKER.get(base.partition(".")[2])
