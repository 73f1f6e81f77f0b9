"""Keys that say the same: in other units, and as a listener's own; which of them counts.

Owns which keys a broker's key may take its value from, and in which order (Apache Kafka: the synonyms of
DescribeConfigs). Never knows values.
"""

from __future__ import annotations

from typing import Final

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
