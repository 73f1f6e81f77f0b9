"""The broker-wide settings of compaction.

Owns the values that the cleaner reads at each turn, so that they may change while it runs. Never knows a topic's
settings, which are in its LogConfig.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.config.server_config import BrokerConfig


@dataclass(slots=True)
class CleanerSettings:
    """The `log.cleaner.*` keys of a broker; sizes in bytes, times in ms."""

    enable: bool = True
    threads: int = 1
    """Worker processes, each with one partition at a time."""
    io_max_bytes_per_second: float = float("inf")
    """Bytes read and written per second, all workers together."""
    dedupe_buffer_size: int = 128 * 1024 * 1024
    """Memory for the tables of keys, all workers together."""
    io_buffer_size: int = 512 * 1024
    """Memory for reading and writing, all workers together."""
    backoff_ms: int = 15_000
    """How long to wait before the next search if there was nothing to do."""


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    """Return the cleaner's settings from a broker's config."""
    return CleanerSettings(
        enable=config.get_bool("log.cleaner.enable"),
        threads=config.get_int("log.cleaner.threads"),
        io_max_bytes_per_second=config.get_float("log.cleaner.io.max.bytes.per.second"),
        dedupe_buffer_size=config.get_int("log.cleaner.dedupe.buffer.size"),
        io_buffer_size=config.get_int("log.cleaner.io.buffer.size"),
        backoff_ms=config.get_int("log.cleaner.backoff.ms"),
    )
