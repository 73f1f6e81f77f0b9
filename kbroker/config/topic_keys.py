"""Topic configs: every key of Apache Kafka 4.3, with the broker keys that give their defaults, and ours.

Owns these declarations: names, types, defaults and limits are Kafka's, sentences are ours. Never parses or checks.
"""

from __future__ import annotations

from typing import Final

from kbroker.config.model import HOUR_MS, MINUTE_MS, ConfigKey, ConfigType, Synonym, topic
from kbroker.config.validators import GZIP_LEVEL, THROTTLED_REPLICAS, at_least, between, list_of, one_of

BOOLEAN: Final = ConfigType.BOOLEAN
DOUBLE: Final = ConfigType.DOUBLE
INT: Final = ConfigType.INT
LIST: Final = ConfigType.LIST
LONG: Final = ConfigType.LONG
STRING: Final = ConfigType.STRING
LONG_MAX: Final = 2**63 - 1

# Two lines a key read as a table.
# fmt: off
TOPIC_KEYS: Final[tuple[ConfigKey, ...]] = (
    topic("segment.bytes", INT, 1_073_741_824, at_least(1_048_576),
      "Size in bytes at which the log starts a new segment. Retention and compaction work on whole closed "
      "segments, so smaller segments free space sooner.",
      Synonym("log.segment.bytes")),
    topic("segment.ms", LONG, 604_800_000, at_least(1),
      "Age in ms at which the log starts a new segment even if it is not full.",
      Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
    topic("segment.jitter.ms", LONG, 0, at_least(0),
      "Largest random time in ms subtracted from segment.ms, so that many partitions do not roll at the same moment.",
      Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
    topic("segment.index.bytes", INT, 10_485_760, at_least(4),
      "Space in bytes reserved for each index file of a segment; a full index rolls the segment.",
      Synonym("log.index.size.max.bytes")),
    topic("flush.messages", LONG, LONG_MAX, at_least(1),
      "Number of records after which the log is forced to disk with fsync.",
      Synonym("log.flush.interval.messages")),
    topic("flush.ms", LONG, LONG_MAX, at_least(0),
      "Time in ms after which unforced records are forced to disk with fsync.",
      Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    topic("retention.bytes", LONG, -1, None,
      "Size in bytes above which a partition's oldest segments are deleted; -1 keeps everything.",
      Synonym("log.retention.bytes")),
    topic("retention.ms", LONG, 604_800_000, at_least(-1),
      "Age in ms after which segments are deleted; -1 keeps everything.",
      Synonym("log.retention.ms"), Synonym("log.retention.minutes", MINUTE_MS),
      Synonym("log.retention.hours", HOUR_MS)),
    topic("max.message.bytes", INT, 1_048_588, at_least(0),
      "Largest record batch in bytes, after compression, that the topic accepts.",
      Synonym("message.max.bytes")),
    topic("index.interval.bytes", INT, 4096, at_least(0),
      "Bytes of records between two entries of the offset index.",
      Synonym("log.index.interval.bytes")),
    topic("delete.retention.ms", LONG, 86_400_000, at_least(0),
      "Time in ms that the tombstones of a compacted topic remain readable after compaction.",
      Synonym("log.cleaner.delete.retention.ms")),
    topic("min.compaction.lag.ms", LONG, 0, at_least(0),
      "Time in ms that a record is safe from compaction.",
      Synonym("log.cleaner.min.compaction.lag.ms")),
    topic("max.compaction.lag.ms", LONG, LONG_MAX, at_least(1),
      "Time in ms after which a record must be compacted; the log starts a new segment for that if need be.",
      Synonym("log.cleaner.max.compaction.lag.ms")),
    topic("file.delete.delay.ms", LONG, 60000, at_least(0),
      "Time in ms between giving up a file and removing it from the disk.",
      Synonym("log.segment.delete.delay.ms")),
    topic("min.cleanable.dirty.ratio", DOUBLE, 0.5, between(0, 1),
      "Share of a compacted log that must be uncompacted before compaction starts.",
      Synonym("log.cleaner.min.cleanable.ratio")),
    topic("cleanup.policy", LIST, ("delete",), list_of("compact", "delete"),
      "What happens to old segments: delete by age and size, compact by key, or both. An empty list keeps everything.",
      Synonym("log.cleanup.policy")),
    topic("unclean.leader.election.enable", BOOLEAN, False, None,
      "Whether a replica outside the in-sync set may lead when no other is left, at the price of losing records.",
      Synonym("unclean.leader.election.enable"), effect=False),
    topic("min.insync.replicas", INT, 1, at_least(1),
      "In-sync replicas needed for a write with acks=all to be accepted.",
      Synonym("min.insync.replicas")),
    topic("compression.type", STRING, "producer", one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
      "Codec in which the log stores batches; producer keeps what the producer chose.",
      Synonym("compression.type")),
    topic("compression.gzip.level", INT, -1, GZIP_LEVEL,
      "Level of gzip where the broker compresses; -1 is the codec's own default.",
      Synonym("compression.gzip.level")),
    topic("compression.lz4.level", INT, 9, between(1, 17),
      "Level of lz4 where the broker compresses.",
      Synonym("compression.lz4.level")),
    topic("compression.zstd.level", INT, 3, between(-131_072, 22),
      "Level of zstd where the broker compresses.",
      Synonym("compression.zstd.level")),
    topic("preallocate", BOOLEAN, False, None,
      "Whether a new segment's file is allocated at its full size.",
      Synonym("log.preallocate"), effect=False),
    topic("message.timestamp.type", STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"),
      "Whether records keep the time that the producer gave them or get the time of their append.",
      Synonym("log.message.timestamp.type")),
    topic("message.timestamp.before.max.ms", LONG, LONG_MAX, at_least(0),
      "How far in ms a record's time may lie before the broker's clock; ignored with LogAppendTime.",
      Synonym("log.message.timestamp.before.max.ms")),
    topic("message.timestamp.after.max.ms", LONG, 3_600_000, at_least(0),
      "How far in ms a record's time may lie after the broker's clock; ignored with LogAppendTime.",
      Synonym("log.message.timestamp.after.max.ms")),
    topic("leader.replication.throttled.replicas", LIST, (), THROTTLED_REPLICAS,
      "Replicas whose outgoing replication is throttled, as partition:broker pairs, or * for all.",
      effect=False),
    topic("follower.replication.throttled.replicas", LIST, (), THROTTLED_REPLICAS,
      "Replicas whose incoming replication is throttled, as partition:broker pairs, or * for all.",
      effect=False),
    topic("remote.storage.enable", BOOLEAN, False, None,
      "Whether closed segments are copied to remote storage.",
      effect=False),
    topic("local.retention.ms", LONG, -2, at_least(-2),
      "Age in ms after which segments that have a remote copy leave the local disk; -2 means retention.ms.",
      Synonym("log.local.retention.ms"), effect=False),
    topic("local.retention.bytes", LONG, -2, at_least(-2),
      "Local size in bytes above which segments that have a remote copy leave the local disk; -2 means "
      "retention.bytes.",
      Synonym("log.local.retention.bytes"), effect=False),
    topic("remote.log.copy.disable", BOOLEAN, False, None,
      "Whether copying to remote storage stops while what is there stays readable.",
      effect=False),
    topic("remote.log.delete.on.disable", BOOLEAN, False, None,
      "Whether remote data is deleted when remote storage is switched off.",
      effect=False),
    topic("internal.segment.bytes", INT, None, None,
      "A segment size in bytes without lower bound, for tests.",
      effect=False, internal=True),
    topic("record.validation", STRING, "header", one_of("header", "full"),
      "How much of a batch is checked before it is appended: header and CRC only, or every record too.",
      Synonym("record.validation")),
)
# fmt: on
