"""The configs of share groups, within the broker's bounds, for the share partitions that this broker leads.

Parses share.auto.offset.reset. A changed config applies from the next use of the config on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kbroker.broker.dead_letters import TOPIC_NAME
from kbroker.clock import Clock
from kbroker.cluster_state import ClusterState
from kbroker.config.limits import duration_ms
from kbroker.config.model import ConfigType
from kbroker.config.server_config import BrokerConfig
from kbroker.config.values import parse_text
from kbroker.controller.features import DEAD_LETTERS_SINCE, SHARE_VERSION
from kbroker.share_partition.persister import EARLIEST, LATEST
from kbroker.share_partition.states import Limits

_MOST_KNOWN: Final = 1_000
"""The maximum number of groups whose limits are cached, because a client may name groups that do not exist."""
_RESETS: Final = {"latest": LATEST, "earliest": EARLIEST}


class ShareSettings:
    """The settings of all share groups (`GroupSettings` of kbroker.share_partition)."""

    def __init__(self, config: BrokerConfig, clock: Clock, state: Callable[[], ClusterState]) -> None:
        self._clock = clock
        self._state = state
        number = config.get_int
        self._bounds = {
            "share.delivery.count.limit": (
                number("group.share.delivery.count.limit"),
                number("group.share.min.delivery.count.limit"),
                number("group.share.max.delivery.count.limit"),
            ),
            "share.record.lock.duration.ms": (
                number("group.share.record.lock.duration.ms"),
                number("group.share.min.record.lock.duration.ms"),
                number("group.share.max.record.lock.duration.ms"),
            ),
            "share.partition.max.record.locks": (
                number("group.share.partition.max.record.locks"),
                number("group.share.min.partition.max.record.locks"),
                number("group.share.max.partition.max.record.locks"),
            ),
        }
        """By a group's config key: the broker's setting, and the minimum and the maximum of the group's setting."""
        self._known: dict[str, Limits] = {}
        self._known_of: ClusterState | None = None

    def limits(self, group: str) -> Limits:
        """Return a group's current limits. Each ShareFetch calls this several times."""
        state = self._state()
        if state is not self._known_of or len(self._known) > _MOST_KNOWN:
            self._known, self._known_of = {}, state
        limits = self._known.get(group)
        if limits is None:
            limits = self._known[group] = self._read(state, group)
        return limits

    def _read(self, state: ClusterState, group: str) -> Limits:
        own = state.group_configs.get(group, {})
        has_letters = bool(_text(own, TOPIC_NAME, "")) and state.features.get(SHARE_VERSION, 0) >= DEAD_LETTERS_SINCE
        limits = Limits(
            self._bounded(own, "share.delivery.count.limit"),
            self._bounded(own, "share.record.lock.duration.ms"),
            self._bounded(own, "share.partition.max.record.locks"),
            _text(own, "share.renew.acknowledge.enable", "true").lower() == "true",
            has_letters,
        )
        if "share.release.backoff.ms" not in own:
            return limits
        return limits._replace(
            backoff_ms=int(own["share.release.backoff.ms"]),
            backoff_max_ms=int(own.get("share.release.backoff.max.ms", limits.backoff_max_ms)),
            backoff_multiplier=_number(own, "share.release.backoff.multiplier", limits.backoff_multiplier),
        )

    def reads_committed(self, group: str) -> bool:
        """Whether share.isolation.level is read_committed."""
        return _text(self._configs(group), "share.isolation.level", "") == "read_committed"

    def auto_offset_reset(self, group: str) -> int:
        """Return LATEST, EARLIEST, or the time in ms since 1970 at which the group begins."""
        text = _text(self._configs(group), "share.auto.offset.reset", "latest")
        if text in _RESETS:
            return _RESETS[text]
        return int(self._clock.now_ms()) - duration_ms(text.partition(":")[2])

    def _configs(self, group: str) -> Mapping[str, str]:
        return self._state().group_configs.get(group, {})

    def _bounded(self, own: Mapping[str, str], name: str) -> int:
        default, low, high = self._bounds[name]
        text = own.get(name)
        return default if text is None else min(max(int(text), low), high)


def _text(configs: Mapping[str, str], name: str, default: str) -> str:
    """Return a config without surrounding spaces, which are valid and are stored with the config."""
    return configs.get(name, default).strip()


def _number(configs: Mapping[str, str], name: str, default: float) -> float:
    """Return a config as a number of Java's type double."""
    value = parse_text(name, ConfigType.DOUBLE, configs[name]) if name in configs else default
    assert isinstance(value, float)
    return value
