"""The topic settings of a log.

Owns the names, defaults and parsing of the topic configurations that the log reads. Never knows the broker's defaults:
the creator of a log passes a LogConfig that already contains them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

_LONG_MAX = 2**63 - 1
_SEGMENT_BYTES_OF_TESTS: Final = "internal.segment.bytes"  # overrides segment.bytes, but without its limits
_WEEK_MS = 7 * 24 * 3600 * 1000
_AS_RETENTION: Final = -2  # of local.retention.*
_COMPACT = "compact"
_DELETE = "delete"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """One topic's log settings; the names are Kafka's with `_` for `.`; sizes in bytes, times in ms."""

    cleanup_policy: tuple[str, ...] = (_DELETE,)
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    confluent_key_schema_validation: bool = False
    confluent_key_subject_name_strategy: str = "io.confluent.kafka.serializers.subject.TopicNameStrategy"
    confluent_value_schema_validation: bool = False
    confluent_value_subject_name_strategy: str = "io.confluent.kafka.serializers.subject.TopicNameStrategy"
    delete_retention_ms: int = 24 * 3600 * 1000
    delivery_delay_ms: int = 0
    file_delete_delay_ms: int = 60000
    filter_index_headers: tuple[str, ...] = ()
    flush_messages: int = _LONG_MAX
    flush_ms: int = _LONG_MAX
    index_interval_bytes: int = 4096
    kbroker_schema_validation_deadletter_topic: str = ""
    kbroker_schema_validation_level: str = "id"
    local_retention_bytes: int = -2
    local_retention_ms: int = -2
    max_compaction_lag_ms: int = _LONG_MAX
    max_decompressed_message_bytes: int = 2**31 - 9
    max_message_bytes: int = 1048588
    message_timestamp_after_max_ms: int = 3600000
    message_timestamp_before_max_ms: int = _LONG_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    record_validation: str = "full"
    remote_copy_lag_bytes: int = -1
    remote_copy_lag_ms: int = 0
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    remote_storage_enable: bool = False
    retention_bytes: int = -1
    retention_ms: int = _WEEK_MS
    schedule_enable: bool = False
    schedule_target_topic: str = ""
    segment_bytes: int = 1024 * 1024 * 1024
    segment_index_bytes: int = 10 * 1024 * 1024
    segment_jitter_ms: int = 0
    segment_ms: int = _WEEK_MS
    unclean_leader_election_enable: bool = False

    @classmethod
    def from_map(cls, configs: Mapping[str, str]) -> LogConfig:
        """Parse Kafka's own names and values; ignore names that the log does not use.

        For a value of the wrong type, raise ValueError with the key.
        """
        values: dict[str, Any] = {}
        for field in fields(cls):
            key = field.name.replace("_", ".")
            if key in configs:
                values[field.name] = _parse(key, configs[key], field.default)
        if _SEGMENT_BYTES_OF_TESTS in configs:
            values["segment_bytes"] = _parse(_SEGMENT_BYTES_OF_TESTS, configs[_SEGMENT_BYTES_OF_TESTS], 0)
        return cls(**values)

    @property
    def compact(self) -> bool:
        return _COMPACT in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return _DELETE in self.cleanup_policy

    @property
    def copies(self) -> bool:
        """Whether closed segments are copied to remote storage (KIP-405)."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def kept_locally_ms(self) -> int:
        """The age in ms after which a copied segment leaves the local disk; -1 for never."""
        return self.retention_ms if self.local_retention_ms == _AS_RETENTION else self.local_retention_ms

    @property
    def kept_locally_bytes(self) -> int:
        """The local size in bytes above which copied segments leave the local disk; -1 for no limit."""
        return self.retention_bytes if self.local_retention_bytes == _AS_RETENTION else self.local_retention_bytes

    @property
    def checks_schemas(self) -> bool:
        """Whether keys or values of produced records are checked with a schema registry."""
        return self.confluent_key_schema_validation or self.confluent_value_schema_validation

    @property
    def judges_records(self) -> bool:
        """Whether produced records must pass the topic's own check (record_check.py)."""
        return self.checks_schemas or self.schedule_enable

    @property
    def log_append_time(self) -> bool:
        """Whether records get the time of their append.

        Delays and schedules need this time even after the broker's default changes.
        """
        return self.message_timestamp_type == "LogAppendTime" or self.delivery_delay_ms > 0 or self.schedule_enable

    def random_jitter_ms(self) -> int:
        """Return a random number of ms, by which a segment is rolled earlier than segment.ms requires."""
        most = min(self.segment_jitter_ms, self.segment_ms)
        return random.randrange(most) if most else 0

    def level_of(self, codec_name: str) -> int | None:
        """Return the compression level of a codec; None for a codec without levels."""
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(codec_name)


def _parse(key: str, text: str, default: object) -> object:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.strip().lower()]
        if isinstance(default, tuple):
            return tuple(part.strip() for part in text.split(",") if part.strip())
        return type(default)(text.strip()) if isinstance(default, int | float) else text.strip()
    except (ValueError, KeyError) as error:
        raise ValueError(f"{key}: {text!r} is not a valid value") from error
