"""Retry tiers: topics that return a failed record after a delay, and a topic for records that nobody could process.

Owns the names of these topics and their configs. Creates all of them or none: if the cluster would refuse one of them,
none is created. The delay itself is the broker's (`delivery.delay.ms`). Never moves a record: consumers write a failed
record to the next tier. Never prints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kbroker.admin.configs import topic_config
from kbroker.admin.did_you_mean import no_such_topic
from kbroker.admin.errors import AdminError, WrongInput
from kbroker.admin.topics import create_topics, existing_topics

DELAY: Final = "delivery.delay.ms"
NAMINGS: Final = ("delay", "spring")
"""The forms of a tier's name: `orders-retry-5s`, or `orders-retry-5000` (ms) as in Spring's @RetryableTopic."""
_RETENTION: Final = "retention.ms"
_LONGEST_MS: Final = 2**63 - 1
_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"([1-9][0-9]{0,14})(ms|s|m|h|d)")
_NAME_END: Final = re.compile(r"-retry-[1-9][0-9]*(ms|s|m|h|d)?")
_UNKNOWN_KEY: Final = f"Unknown topic config name: {DELAY}"


@dataclass(frozen=True, slots=True)
class Tier:
    """One topic of a set of tiers; `delay_ms` is None for the dead letter topic."""

    topic: str
    delay_ms: int | None
    partitions: int
    exists: bool = False

    @property
    def role(self) -> str:
        return "dead letters" if self.delay_ms is None else "retry"


def parse_delay(text: str) -> int:
    """Return the ms of a delay such as 500ms, 5s, 10m, 2h or 1d. Raises WrongInput."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise WrongInput(f"{text.strip()!r} is no delay like 500ms, 5s, 10m, 2h or 1d")
    return int(found[1]) * _UNITS[found[2]]


def tier_name(topic: str, delay: str, naming: str) -> str:
    """Return the name of a topic's tier. `delay` is the tier's delay, such as 5s."""
    return f"{topic}-retry-{delay.strip() if naming == 'delay' else parse_delay(delay)}"


def create_tiers(
    admin: Any, topic: str, delays: Sequence[str], dead_letter: str | None, naming: str = "delay", *, dry_run: bool
) -> list[Tier]:
    """Create the tiers of a topic and its dead letter topic, with the topic's partitions and replicas.

    Topics that exist with the same delay stay as they are. If another topic has one of the names, or if the cluster
    would refuse one of the topics, this function raises AdminError and creates nothing.
    """
    source = existing_topics(admin, [topic]).get(topic)
    if source is None:
        raise AdminError(no_such_topic(admin, topic))
    wanted = _wanted(admin, topic, delays, dead_letter or _default_dead_letter(topic, naming), naming)
    known = existing_topics(admin, list(wanted))
    existing_delays = topic_config(admin, list(known), DELAY)
    partitions = len(source["partitions"])
    tiers = []
    for name, configs in wanted.items():
        delay = int(configs[DELAY]) if DELAY in configs else None
        if delay and name in known and name not in existing_delays:
            raise AdminError(f"topic {name} exists, and its {DELAY} cannot be read")
        theirs = int(existing_delays.get(name, "0"))
        if name in known and theirs != (delay or 0):
            raise AdminError(f"topic {name} exists with {DELAY}={theirs}; it needs {delay or 0}")
        tiers.append(Tier(name, delay, len(known[name]["partitions"]) if name in known else partitions, name in known))
    missing = {each.topic: wanted[each.topic] for each in tiers if not each.exists}
    replicas = max(len(each["replica_nodes"]) for each in source["partitions"])
    for is_trial in (True, False) if not dry_run else (True,):
        _create(admin, missing, partitions, replicas, is_trial=is_trial)
    return tiers


def tiers_of(admin: Any, topic: str) -> list[Tier]:
    """Return the existing tiers of a topic, by delay."""
    names = [
        each
        for each in existing_topics(admin, None)
        if each.startswith(topic) and _NAME_END.fullmatch(each, len(topic))
    ]
    delays = topic_config(admin, names, DELAY) if names else {}
    found = existing_topics(admin, names) if names else {}
    tiers = [
        Tier(name, int(delays[name]), len(found[name]["partitions"]), exists=True)
        for name in names
        if name in found and int(delays.get(name, "0"))
    ]
    return sorted(tiers, key=lambda each: each.delay_ms or 0)


def _default_dead_letter(topic: str, naming: str) -> str:
    return f"dlq.{topic}" if naming == "delay" else f"{topic}-dlt"


def _retention(source_ms: int, delay_ms: int) -> int:
    """Return a tier's retention.ms (-1: unlimited). The retention must be longer than the delay."""
    total = max(source_ms, 1) + delay_ms
    return total if source_ms >= 0 and total <= _LONGEST_MS else -1


def _wanted(
    admin: Any, topic: str, delays: Sequence[str], dead_letter: str, naming: str
) -> dict[str, Mapping[str, str]]:
    """Return the configs of each topic.

    After the delay, a tier keeps a record for as long as the source topic keeps its records.
    """
    found = topic_config(admin, [topic], _RETENTION).get(topic)
    if found is None:
        raise AdminError(f"the configs of {topic} cannot be read, but its tiers need {_RETENTION}")
    retention = int(found)
    wanted: dict[str, Mapping[str, str]] = {}
    for delay in delays:
        delay_ms, name = parse_delay(delay), tier_name(topic, delay, naming)
        if name in wanted or any(each.get(DELAY) == str(delay_ms) for each in wanted.values()):
            raise WrongInput(f"the delay {delay.strip()} is given twice")
        wanted[name] = {
            DELAY: str(delay_ms),
            "cleanup.policy": "delete",
            "message.timestamp.type": "LogAppendTime",
            _RETENTION: str(_retention(retention, delay_ms)),
        }
    if dead_letter == topic or dead_letter in wanted:
        raise WrongInput(f"{dead_letter} cannot be the dead letter topic of its own records")
    wanted[dead_letter] = {"errors.deadletterqueue.group.enable": "true"}
    return wanted


def _create(
    admin: Any, topics: Mapping[str, Mapping[str, str]], partitions: int, replicas: int, *, is_trial: bool
) -> None:
    for name, configs in topics.items():
        refusal = create_topics(admin, [name], partitions, replicas, configs, dry_run=is_trial)[name]
        if refusal is not None:
            reason = "this Kafka has no delay topics: they need kbroker" if _UNKNOWN_KEY in refusal.text else None
            raise AdminError(f"cannot create {name}: {reason}" if reason else refusal.text)
