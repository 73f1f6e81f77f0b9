"""What holds for a consumer group now: the broker's settings, and what is set on the group itself.

Owns that choice. Values of a group are Kafka's group configs and were checked when they were set; as the broker's
bounds may have changed since, they are held within them again.
"""

from __future__ import annotations

from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.consumer.topics import Topics


class Settings:
    """The settings of all consumer groups, all times in ms."""

    def __init__(self, config: GroupConfig, topics: Topics) -> None:
        self.config = config
        self._topics = topics
        self.assignment_interval_default_ms = config.consumer_assignment_interval_ms
        """group.consumer.assignment.interval.ms, which may change while the broker runs."""

    def session_timeout_ms(self, group_id: str) -> int:
        """How long a member may be silent."""
        config = self.config
        low, high = config.consumer_min_session_timeout_ms, config.consumer_max_session_timeout_ms
        return self._of_group(group_id, "consumer.session.timeout.ms", config.consumer_session_timeout_ms, low, high)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """How often members are told to send a heartbeat."""
        config = self.config
        low, high = config.consumer_min_heartbeat_interval_ms, config.consumer_max_heartbeat_interval_ms
        default = config.consumer_heartbeat_interval_ms
        return self._of_group(group_id, "consumer.heartbeat.interval.ms", default, low, high)

    def assignment_interval_ms(self, group_id: str) -> int:
        """How long a target stands at least before another is computed."""
        config = self.config
        low, high = config.consumer_min_assignment_interval_ms, config.consumer_max_assignment_interval_ms
        default = self.assignment_interval_default_ms
        return self._of_group(group_id, "consumer.assignment.interval.ms", default, low, high)

    def _of_group(self, group_id: str, name: str, default: int, low: int, high: int) -> int:
        text = self._topics.state.group_configs.get(group_id, {}).get(name)
        return default if text is None else min(max(int(text), low), high)
