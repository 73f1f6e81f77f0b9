"""The rules by which a topic can be the target of a schedule topic.

Owns these rules and their texts. produce_check.py checks the right to write to a target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.cluster_state import TopicState
from kbroker.topic_names import INTERNAL_TOPICS, topic_name_fault

ENABLE: Final = "schedule.enable"
TARGET: Final = "schedule.target.topic"
VIEW: Final = "view.source"
"""The config that only a view has. A view is a topic that stores nothing itself."""


def is_schedule_topic(configs: Mapping[str, str]) -> bool:
    """Whether a topic's configs make it a schedule topic."""
    return configs.get(ENABLE, "").strip().lower() == "true"


def target_fault(topic: str, target: str, topics: Mapping[str, TopicState]) -> str | None:
    """Return the reason why records of the schedule topic `topic` cannot be delivered to `target`; None if they can."""
    if target == topic:
        return f"{target} cannot be its own target"
    if target in INTERNAL_TOPICS:
        return f"{target} is an internal topic, and no target"
    found = topics.get(target)
    if found is None:
        return f"the target {target} does not exist"
    if is_schedule_topic(found.configs):
        return f"{target} is a schedule topic, and no target"
    if found.configs.get(VIEW, "").strip():
        return f"{target} is a view, and no target"
    return None


def config_fault(topic: str, configs: Mapping[str, str]) -> str | None:
    """Return the reason why a topic with these configs cannot be a schedule topic.

    Return None if it can be one, or if `schedule.enable` is not set. The target may be created later.
    """
    if not is_schedule_topic(configs):
        return None
    if topic in INTERNAL_TOPICS:
        return f"{ENABLE} cannot be set: {topic} is an internal topic"
    if configs.get(VIEW, "").strip():
        return f"{ENABLE} cannot be set: {topic} is a view, which takes no records"
    target = configs.get(TARGET, "").strip()
    if target == topic:
        return f"{TARGET}: {target} cannot be its own target"
    if target in INTERNAL_TOPICS:
        return f"{TARGET}: {target} is an internal topic"
    if target and topic_name_fault(target) is not None:
        return f"{TARGET} is no name of a topic"
    return None
