"""The broker's settings of tiered storage, and the options with which a store is opened.

Owns their meaning and their check at the start. Never opens a store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig

ENABLE: Final = "remote.log.storage.system.enable"
URL: Final = "remote.storage.url"
OPTIONS: Final = "remote.storage.options"


@dataclass(frozen=True, slots=True)
class TierSettings:
    """The settings of tiered storage. Sizes are in bytes, rates in bytes per second, times in ms."""

    url: str
    options: dict[str, str]
    interval_ms: int
    copies_at_once: int
    deletes_at_once: int
    copy_rate: int
    reads_at_once: int
    reads_waiting: int
    retry_ms: int
    longest_retry_ms: int
    index_bytes: int
    cache_bytes: int
    state_interval_ms: int


def uses_remote_storage(configs: Mapping[str, str]) -> bool:
    """Whether a topic's own configs enable remote storage."""
    return configs.get("remote.storage.enable", "false").strip().lower() == "true"


def tier_settings(config: BrokerConfig) -> TierSettings | None:
    """Return the settings; None if tiered storage is off. Raises ConfigError."""
    if not config.get_bool(ENABLE):
        return None
    if len(config.log_dirs) > 1:
        raise ConfigError(f"{ENABLE}=true: several log.dirs are not supported together with tiered storage")
    url = config.get_str(URL)
    if not url:
        raise ConfigError(f"{ENABLE}=true needs {URL}, for example s3://bucket/prefix or file:///directory")
    return TierSettings(
        url,
        _options(config.get_optional_str(OPTIONS) or ""),
        config.get_int("remote.log.manager.task.interval.ms"),
        config.get_int("remote.log.manager.copier.thread.pool.size"),
        config.get_int("remote.log.manager.expiration.thread.pool.size"),
        config.get_int("remote.log.manager.copy.max.bytes.per.second"),
        config.get_int("remote.log.reader.threads"),
        config.get_int("remote.log.reader.max.pending.tasks"),
        config.get_int("remote.log.manager.task.retry.backoff.ms"),
        config.get_int("remote.log.manager.task.retry.backoff.max.ms"),
        config.get_int("remote.log.index.file.cache.total.size.bytes"),
        config.get_int("remote.storage.cache.bytes"),
        config.get_int("remote.storage.state.interval.ms"),
    )


def _options(text: str) -> dict[str, str]:
    """Return the options in a text like `endpoint=http://...,access_key_id=...`. Raises ConfigError."""
    found = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, sign, value = part.partition("=")
        if not sign:
            raise ConfigError(f"{OPTIONS} has the form name=value,name=value; a part of it has no =")
        found[name.strip()] = value.strip()
    return found
