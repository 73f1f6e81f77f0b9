"""The table of all config keys, by resource. The files of this folder declare the keys.

Reads the files: `broker_keys.txt`, `cluster_keys.txt` (for nodes of a cluster), `topic_keys.txt`, `group_keys.txt` and
`client_metrics_keys.txt`. Owns the look-up of a key by name, and the keys for the same value in other units (the
synonyms of DescribeConfigs). Never parses a configured value. Topic and group keys are in the order of Kafka's checks:
if a request has several wrong values, the first in this order is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kbroker.config import limits
from kbroker.config.model import ConfigKey, ConfigType, Mode, Synonym, Validator
from kbroker.config.values import parse_text

# The broker keys for one value in several units. The first key that is set counts. DescribeConfigs lists these keys
# together.
_FAMILIES: Final = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_SYNONYMS: Final = {name: family for family in _FAMILIES for name in family} | {
    # The scheduler's interval is only the default of log.flush.interval.ms, so it has no synonyms of its own.
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
}


def listener_base(name: str) -> str | None:
    """Return the key in a listener's own setting `listener.name.<listener>.<key>`. Return None for other names."""
    parts = name.split(".", 3)
    return parts[3] if len(parts) == 4 and parts[:2] == ["listener", "name"] and parts[2] else None


def broker_synonyms(name: str) -> tuple[str, ...]:
    """Return the broker keys that may set the value of `name`, including `name`, highest precedence first."""
    family = _SYNONYMS.get(name)
    if family is not None:
        return family
    base = listener_base(name)
    return (name,) if base is None else (name, base)


class Section(NamedTuple):
    """A section of the docs page, with its keys."""

    title: str
    keys: list[ConfigKey]


_LIMITS: Final[Mapping[str, Callable[..., Validator]]] = {
    each.__name__: each
    for each in (limits.at_least, limits.between, limits.one_of, limits.one_of_any_case, limits.list_of)
}
_FLAGS: Final = {"!empty": ("empty", False), "null": ("null", True)}


def _limit(text: str) -> Validator | None:
    """Return the limit that a table cell names: a constant of limits.py, or a function and its arguments."""
    if not text:
        return None
    name, *words = text.split()
    if name not in _LIMITS:
        constant: Validator = getattr(limits, name.upper())
        return constant
    arguments: list[Any] = [word for word in words if word not in _FLAGS]
    if name in ("at_least", "between"):
        arguments = [float(word) if "." in word else int(word) for word in words]
    return _LIMITS[name](*arguments, **dict(_FLAGS[word] for word in words if word in _FLAGS))


def _key(line: str, *, of_broker: bool) -> ConfigKey:
    name, type_, default, limit, fifth, effect, doc = (cell.strip() for cell in line.split("|"))
    kind = ConfigType[type_.upper()]
    synonyms = []
    for each in () if of_broker else filter(None, fifth.split(", ")):
        synonym, _, factor = each.partition(" * ")
        synonyms.append(Synonym(synonym, int(factor or 1)))
    return ConfigKey(
        name,
        kind,
        parse_text(name, kind, "" if default == '""' else default) if default else None,
        _limit(limit),
        doc,
        Mode(fifth) if of_broker else Mode.CLUSTER_WIDE,
        effect.startswith("yes"),
        effect.endswith("internal"),
        tuple(synonyms),
        effect.startswith("refused"),
        effect.endswith("dynamic-only"),
    )


def _read(resource: str) -> list[Section]:
    sections = [Section("", [])]
    for line in Path(__file__).with_name(f"{resource}_keys.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            sections.append(Section(line[3:], []))
        elif line and not line.startswith("#"):
            sections[-1].keys.append(_key(line, of_broker=resource in ("broker", "cluster")))
    return [section for section in sections if section.keys]


def _by_name(sections: list[Section]) -> Mapping[str, ConfigKey]:
    return MappingProxyType({key.name: key for section in sections for key in section.keys})


BROKER_SECTIONS: Final = _read("broker")
BROKER: Final = _by_name(BROKER_SECTIONS)
CLUSTER_SECTIONS: Final = _read("cluster")
CLUSTER: Final = _by_name(CLUSTER_SECTIONS)
"""The additional keys for a node of a cluster."""
TOPIC: Final = _by_name(_read("topic"))
GROUP: Final = _by_name(_read("group"))
CLIENT_METRICS: Final = _by_name(_read("client_metrics"))

DYNAMIC_ONLY: Final = frozenset(name for name, key in BROKER.items() if key.dynamic_only)


def broker_key(name: str) -> ConfigKey | None:
    """Return the declaration of a broker key or of a listener's own setting; None if the key is unknown."""
    found = BROKER.get(name)
    if found is not None:
        return found
    base = listener_base(name)
    if base is None:
        return None
    # In a listener's SASL settings, the mechanism is before the key: listener.name.<listener>.<mechanism>.<key>.
    return BROKER.get(base) or BROKER.get(base.partition(".")[2])
