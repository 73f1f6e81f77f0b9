"""Tiered storage: keys accepted so that existing files work.

Owns these declarations: names, types, defaults and limits are Kafka's, sentences are ours. Never parses or checks.
"""

from __future__ import annotations

from typing import Final

from kbroker.config.model import ConfigKey, ConfigType, Mode, accepted
from kbroker.config.validators import NOT_EMPTY, at_least, between

BOOLEAN: Final = ConfigType.BOOLEAN
DOUBLE: Final = ConfigType.DOUBLE
INT: Final = ConfigType.INT
LONG: Final = ConfigType.LONG
STRING: Final = ConfigType.STRING
CLUSTER_WIDE: Final = Mode.CLUSTER_WIDE
READ_ONLY: Final = Mode.READ_ONLY
LONG_MAX: Final = 2**63 - 1

# Two lines a key read as a table.
# fmt: off
KEYS: Final[tuple[ConfigKey, ...]] = (
    accepted("remote.log.storage.system.enable", BOOLEAN, False, None, READ_ONLY,
      "Whether tiered storage runs."),
    accepted("remote.log.storage.manager.impl.prefix", STRING, "rsm.config.", NOT_EMPTY, READ_ONLY,
      "Prefix of keys that go to the remote storage manager."),
    accepted("remote.log.metadata.manager.impl.prefix", STRING, "rlmm.config.", NOT_EMPTY, READ_ONLY,
      "Prefix of keys that go to the remote metadata manager."),
    accepted("remote.log.storage.manager.class.name", STRING, None, NOT_EMPTY, READ_ONLY,
      "Class of the remote storage manager."),
    accepted("remote.log.storage.manager.class.path", STRING, None, None, READ_ONLY,
      "Class path of the remote storage manager."),
    accepted("remote.log.metadata.manager.class.name", STRING,
      "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager", NOT_EMPTY, READ_ONLY,
      "Class of the remote metadata manager."),
    accepted("remote.log.metadata.manager.class.path", STRING, None, None, READ_ONLY,
      "Class path of the remote metadata manager."),
    accepted("remote.log.metadata.manager.listener.name", STRING, None, NOT_EMPTY, READ_ONLY,
      "Listener over which the remote metadata manager connects."),
    accepted("remote.log.metadata.custom.metadata.max.bytes", INT, 128, at_least(0), READ_ONLY,
      "Largest custom metadata of a remote segment in bytes."),
    accepted("remote.log.index.file.cache.total.size.bytes", LONG, 1_073_741_824, at_least(1), CLUSTER_WIDE,
      "Space in bytes for cached indexes of remote segments."),
    accepted("remote.log.index.file.cache.ttl.ms", LONG, 900_000, at_least(-1), READ_ONLY,
      "Time in ms that a cached index of a remote segment lives.", internal=True),
    accepted("remote.log.manager.thread.pool.size", INT, 2, at_least(1), READ_ONLY,
      "Threads of the remote log manager."),
    accepted("remote.log.manager.copier.thread.pool.size", INT, 10, at_least(1), CLUSTER_WIDE,
      "Threads that copy segments to remote storage."),
    accepted("remote.log.manager.expiration.thread.pool.size", INT, 10, at_least(1), CLUSTER_WIDE,
      "Threads that delete remote segments."),
    accepted("remote.log.manager.follower.thread.pool.size", INT, 2, at_least(1), CLUSTER_WIDE,
      "Threads of followers of tiered partitions."),
    accepted("remote.log.manager.task.interval.ms", LONG, 30000, at_least(1), READ_ONLY,
      "Time in ms between two runs of the remote log manager."),
    accepted("remote.log.manager.task.retry.backoff.ms", LONG, 500, at_least(1), READ_ONLY,
      "First pause in ms before a remote task is tried again.", internal=True),
    accepted("remote.log.manager.task.retry.backoff.max.ms", LONG, 30000, at_least(1), READ_ONLY,
      "Longest pause in ms before a remote task is tried again.", internal=True),
    accepted("remote.log.manager.task.retry.jitter", DOUBLE, 0.2, between(0, 0.5), READ_ONLY,
      "Share of the pause before a retry that is random.", internal=True),
    accepted("remote.log.reader.threads", INT, 10, at_least(1), CLUSTER_WIDE,
      "Threads that read from remote storage."),
    accepted("remote.log.reader.max.pending.tasks", INT, 100, at_least(1), READ_ONLY,
      "Reads from remote storage that may wait."),
    accepted("remote.log.manager.copy.max.bytes.per.second", LONG, LONG_MAX, at_least(1), CLUSTER_WIDE,
      "Most bytes per second copied to remote storage."),
    accepted("remote.log.manager.copy.quota.window.num", INT, 11, at_least(1), READ_ONLY,
      "Samples remembered for the copy quota."),
    accepted("remote.log.manager.copy.quota.window.size.seconds", INT, 1, at_least(1), READ_ONLY,
      "Seconds of one sample for the copy quota."),
    accepted("remote.log.manager.fetch.max.bytes.per.second", LONG, LONG_MAX, at_least(1), CLUSTER_WIDE,
      "Most bytes per second read from remote storage."),
    accepted("remote.log.manager.fetch.quota.window.num", INT, 11, at_least(1), READ_ONLY,
      "Samples remembered for the read quota."),
    accepted("remote.log.manager.fetch.quota.window.size.seconds", INT, 1, at_least(1), READ_ONLY,
      "Seconds of one sample for the read quota."),
    accepted("remote.fetch.max.wait.ms", INT, 500, at_least(1), CLUSTER_WIDE,
      "Time in ms that a fetch waits for remote storage."),
    accepted("remote.list.offsets.request.timeout.ms", LONG, 30000, at_least(1), CLUSTER_WIDE,
      "Time in ms that a listing of offsets waits for remote storage."),
    accepted("log.local.retention.ms", LONG, -2, at_least(-2), CLUSTER_WIDE,
      "Default of local.retention.ms."),
    accepted("log.local.retention.bytes", LONG, -2, at_least(-2), CLUSTER_WIDE,
      "Default of local.retention.bytes."),
)
# fmt: on
