"""The log: directories, segments, retention, flushing and compaction.

Owns these declarations: names, types, defaults and limits are Kafka's, sentences are ours. Never parses or checks.
"""

from __future__ import annotations

from typing import Final

from kbroker.config.model import ConfigKey, ConfigType, Mode, accepted, key
from kbroker.config.validators import GZIP_LEVEL, at_least, between, list_of, one_of

BOOLEAN: Final = ConfigType.BOOLEAN
CLASS: Final = ConfigType.CLASS
DOUBLE: Final = ConfigType.DOUBLE
INT: Final = ConfigType.INT
LIST: Final = ConfigType.LIST
LONG: Final = ConfigType.LONG
STRING: Final = ConfigType.STRING
CLUSTER_WIDE: Final = Mode.CLUSTER_WIDE
PER_BROKER: Final = Mode.PER_BROKER
READ_ONLY: Final = Mode.READ_ONLY
DOUBLE_MAX: Final = 1.7976931348623157e308
LONG_MAX: Final = 2**63 - 1

# Two lines a key read as a table.
# fmt: off
KEYS: Final[tuple[ConfigKey, ...]] = (
    key("log.dir", LIST, ("/tmp/kafka-logs",), list_of(empty=False), READ_ONLY,
      "Directory of the log where log.dirs is not set."),
    key("log.dirs", LIST, None, list_of(empty=False, null=True), READ_ONLY,
      "Directories of the log, separated by commas."),
    key("cordoned.log.dirs", LIST, (), list_of(null=True), PER_BROKER,
      "Log directories that get no new replicas; * stands for all."),
    key("num.partitions", INT, 1, at_least(1), READ_ONLY,
      "Partitions of a topic that is created without a number."),
    key("auto.create.topics.enable", BOOLEAN, True, None, READ_ONLY,
      "Whether asking for the metadata of an unknown topic creates it, where the client allows that."),
    key("delete.topic.enable", BOOLEAN, True, None, READ_ONLY,
      "Whether topics can be deleted."),
    key("message.max.bytes", INT, 1_048_588, at_least(0), CLUSTER_WIDE,
      "Largest record batch in bytes, after compression, that topics accept by default."),
    key("compression.type", STRING,
      "producer", one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), CLUSTER_WIDE,
      "Default codec in which logs store batches; producer keeps what the producer chose."),
    key("compression.gzip.level", INT, -1, GZIP_LEVEL, CLUSTER_WIDE,
      "Default level of gzip where the broker compresses; -1 is the codec's own default."),
    key("compression.lz4.level", INT, 9, between(1, 17), CLUSTER_WIDE,
      "Default level of lz4 where the broker compresses."),
    key("compression.zstd.level", INT, 3, between(-131_072, 22), CLUSTER_WIDE,
      "Default level of zstd where the broker compresses."),
    key("log.segment.bytes", INT, 1_073_741_824, at_least(1_048_576), CLUSTER_WIDE,
      "Default size in bytes at which a log starts a new segment."),
    key("log.roll.ms", LONG, None, None, CLUSTER_WIDE,
      "Default age in ms at which a log starts a new segment; wins over log.roll.hours."),
    key("log.roll.hours", INT, 168, at_least(1), READ_ONLY,
      "Default age in hours at which a log starts a new segment."),
    key("log.roll.jitter.ms", LONG, None, None, CLUSTER_WIDE,
      "Default largest random time in ms subtracted from log.roll.ms; wins over log.roll.jitter.hours."),
    key("log.roll.jitter.hours", INT, 0, at_least(0), READ_ONLY,
      "Default largest random time in hours subtracted from log.roll.ms."),
    key("log.retention.ms", LONG, None, None, CLUSTER_WIDE,
      "Default age in ms after which segments are deleted; wins over the minutes and the hours; -1 keeps everything."),
    key("log.retention.minutes", INT, None, None, READ_ONLY,
      "Default age in minutes after which segments are deleted; wins over the hours."),
    key("log.retention.hours", INT, 168, None, READ_ONLY,
      "Default age in hours after which segments are deleted."),
    key("log.retention.bytes", LONG, -1, None, CLUSTER_WIDE,
      "Default size in bytes above which a partition's oldest segments are deleted; -1 keeps everything."),
    key("log.retention.check.interval.ms", LONG, 300_000, at_least(1), READ_ONLY,
      "Time in ms between two looks for segments to delete."),
    key("log.cleanup.policy", LIST, ("delete",), list_of("compact", "delete"), CLUSTER_WIDE,
      "Default of cleanup.policy: delete, compact, or both."),
    key("log.index.size.max.bytes", INT, 10_485_760, at_least(4), CLUSTER_WIDE,
      "Default space in bytes reserved for each index file of a segment."),
    key("log.index.interval.bytes", INT, 4096, at_least(0), CLUSTER_WIDE,
      "Default bytes of records between two entries of the offset index."),
    key("log.flush.interval.messages", LONG, LONG_MAX, at_least(1), CLUSTER_WIDE,
      "Default number of records after which a log is forced to disk."),
    key("log.flush.interval.ms", LONG, None, None, CLUSTER_WIDE,
      "Default time in ms after which unforced records are forced to disk; unset means "
      "log.flush.scheduler.interval.ms."),
    key("log.flush.scheduler.interval.ms", LONG, LONG_MAX, None, READ_ONLY,
      "Time in ms between two looks for logs to force to disk."),
    key("log.flush.offset.checkpoint.interval.ms", INT, 60000, at_least(0), READ_ONLY,
      "Time in ms between two writes of the recovery points."),
    key("log.flush.start.offset.checkpoint.interval.ms", INT, 60000, at_least(0), READ_ONLY,
      "Time in ms between two writes of the log start offsets."),
    key("log.segment.delete.delay.ms", LONG, 60000, at_least(0), CLUSTER_WIDE,
      "Default time in ms between giving up a file and removing it from the disk."),
    accepted("log.preallocate", BOOLEAN, False, None, CLUSTER_WIDE,
      "Default of preallocate."),
    accepted("log.initial.task.delay.ms", LONG, 30000, at_least(0), READ_ONLY,
      "Time in ms after the start before background work on logs begins.", internal=True),
    accepted("log.dir.failure.timeout.ms", LONG, 30000, at_least(1), READ_ONLY,
      "Time in ms to report a failed log directory before the broker stops."),
    key("num.recovery.threads.per.data.dir", INT, 2, at_least(1), CLUSTER_WIDE,
      "Threads per directory that read logs after an unclean stop."),
    accepted("num.replica.alter.log.dirs.threads", INT, None, None, READ_ONLY,
      "Threads that move replicas between log directories."),
    key("min.insync.replicas", INT, 1, at_least(1), CLUSTER_WIDE,
      "Default number of in-sync replicas needed for a write with acks=all."),
    key("log.message.timestamp.type", STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"), CLUSTER_WIDE,
      "Default of message.timestamp.type."),
    key("log.message.timestamp.before.max.ms", LONG, LONG_MAX, at_least(0), CLUSTER_WIDE,
      "Default of message.timestamp.before.max.ms."),
    key("log.message.timestamp.after.max.ms", LONG, 3_600_000, at_least(0), CLUSTER_WIDE,
      "Default of message.timestamp.after.max.ms."),
    key("log.cleaner.enable", BOOLEAN, True, None, READ_ONLY,
      "Whether compaction runs at all."),
    key("log.cleaner.threads", INT, 1, at_least(0), CLUSTER_WIDE,
      "Compactions that run at a time, each in a process of its own."),
    key("log.cleaner.io.max.bytes.per.second", DOUBLE, DOUBLE_MAX, None, CLUSTER_WIDE,
      "Most bytes per second that compaction reads and writes."),
    key("log.cleaner.dedupe.buffer.size", LONG, 134_217_728, None, CLUSTER_WIDE,
      "Memory in bytes for compaction's tables of keys; a log with more keys is compacted piece by piece."),
    key("log.cleaner.io.buffer.size", INT, 524_288, at_least(0), CLUSTER_WIDE,
      "Memory in bytes for compaction's reads and writes."),
    accepted("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, None, CLUSTER_WIDE,
      "Share of compaction's table of keys that may fill."),
    key("log.cleaner.backoff.ms", LONG, 15000, at_least(0), CLUSTER_WIDE,
      "Time in ms until compaction looks again when there was nothing to do."),
    key("log.cleaner.min.cleanable.ratio", DOUBLE, 0.5, between(0, 1), CLUSTER_WIDE,
      "Default share of a compacted log that must be uncompacted before compaction starts."),
    key("log.cleaner.delete.retention.ms", LONG, 86_400_000, at_least(0), CLUSTER_WIDE,
      "Default time in ms that tombstones remain readable after compaction."),
    key("log.cleaner.min.compaction.lag.ms", LONG, 0, at_least(0), CLUSTER_WIDE,
      "Default time in ms that a record is safe from compaction."),
    key("log.cleaner.max.compaction.lag.ms", LONG, LONG_MAX, at_least(1), CLUSTER_WIDE,
      "Default time in ms after which a record must become eligible for compaction."),
    accepted("create.topic.policy.class.name", CLASS, None, None, READ_ONLY,
      "Class that may refuse the creation of topics."),
    accepted("alter.config.policy.class.name", CLASS, None, None, READ_ONLY,
      "Class that may refuse changes of configs."),
    key("record.validation", STRING, "header", one_of("header", "full"), CLUSTER_WIDE,
      "Default of record.validation: check header and CRC of a batch only, or every record too."),
)
# fmt: on
