"""Group configs: every key of Apache Kafka 4.3, with the broker keys that give their defaults.

Owns these declarations: names, types, defaults and limits are Kafka's, sentences are ours. Never parses or checks.
"""

from __future__ import annotations

from typing import Final

from kbroker.config.model import ConfigKey, ConfigType, group
from kbroker.config.validators import SHARE_RESET, at_least, one_of

BOOLEAN: Final = ConfigType.BOOLEAN
INT: Final = ConfigType.INT
STRING: Final = ConfigType.STRING

# Two lines a key read as a table.
# fmt: off
GROUP_KEYS: Final[tuple[ConfigKey, ...]] = (
    group("consumer.session.timeout.ms", INT, 45000, at_least(1), "group.consumer.session.timeout.ms",
      "Time in ms without a heartbeat after which a member of a consumer group is removed.", effect=True),
    group("consumer.heartbeat.interval.ms", INT, 5000, at_least(1), "group.consumer.heartbeat.interval.ms",
      "Time in ms between the heartbeats of a consumer group's members.", effect=True),
    group("consumer.assignment.interval.ms", INT, 1000, at_least(0), "group.consumer.assignment.interval.ms",
      "Least time in ms between two assignments of a consumer group.", effect=True),
    group("share.session.timeout.ms", INT, 45000, at_least(1), "group.share.session.timeout.ms",
      "Time in ms without a heartbeat after which a member of a share group is removed."),
    group("share.heartbeat.interval.ms", INT, 5000, at_least(1), "group.share.heartbeat.interval.ms",
      "Time in ms between the heartbeats of a share group's members."),
    group("share.record.lock.duration.ms", INT, 30000, at_least(1000), "group.share.record.lock.duration.ms",
      "Time in ms that a record stays acquired by one member of a share group."),
    group("share.delivery.count.limit", INT, 5, at_least(2), "group.share.delivery.count.limit",
      "How often a share group delivers a record before it gives up."),
    group("share.partition.max.record.locks", INT, 2000, at_least(100), "group.share.partition.max.record.locks",
      "Most records of one partition that a share group holds acquired."),
    group("share.auto.offset.reset", STRING, "latest", SHARE_RESET, None,
      "Where a share group starts: latest, earliest, or by_duration: and an ISO-8601 duration back from now."),
    group("share.isolation.level", STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted"), None,
      "Whether a share group sees records of open and aborted transactions."),
    group("share.renew.acknowledge.enable", BOOLEAN, True, None, None,
      "Whether members of a share group may renew the lock of a record."),
    group("share.assignment.interval.ms", INT, 1000, at_least(0), "group.share.assignment.interval.ms",
      "Least time in ms between two assignments of a share group."),
    group("streams.session.timeout.ms", INT, 45000, at_least(1), "group.streams.session.timeout.ms",
      "Time in ms without a heartbeat after which a member of a streams group is removed."),
    group("streams.heartbeat.interval.ms", INT, 5000, at_least(1), "group.streams.heartbeat.interval.ms",
      "Time in ms between the heartbeats of a streams group's members."),
    group("streams.num.standby.replicas", INT, 0, at_least(0), "group.streams.num.standby.replicas",
      "Standby copies of each task in a streams group."),
    group("streams.initial.rebalance.delay.ms", INT, 3000, at_least(0), "group.streams.initial.rebalance.delay.ms",
      "Time in ms that a new streams group waits for more members before its first assignment."),
    group("streams.assignment.interval.ms", INT, 1000, at_least(0), "group.streams.assignment.interval.ms",
      "Least time in ms between two assignments of a streams group."),
)
# fmt: on
