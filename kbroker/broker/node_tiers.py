"""The composition of tiered storage on a node: the store, the records about segments, and the tiered partitions.

Owns the connections between these parts, and the reading of a topic's use of remote storage from ZooKeeper. Never
copies or reads a segment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from kbroker.broker.segment_records import SegmentRecords
from kbroker.clock import Clock
from kbroker.cluster_state import REMOTE_LOG_METADATA_TOPIC, ClusterState
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.tree.znode import Denied, MetadataTree, Unreachable
from kbroker.controller.znodes import CONFIG, Assignment, Unreadable, decode_configs, read, topic_path
from kbroker.log.directories.log_manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.remote.store import open_store
from kbroker.remote.store_errors import StoreSettingError
from kbroker.replicas import Replicas
from kbroker.tiers.followed_metadata import RemoteMetadata
from kbroker.tiers.metadata import Owner
from kbroker.tiers.service import Tiers
from kbroker.tiers.settings import tier_settings, uses_remote_storage
from kbroker.tiers.shared import Shared, Use

_REMOTE_CHUNKS: Final = ".remote-chunks"
"""The directory for the parts of remote segments that were fetched, including parts that were read ahead."""


def new_tiers(
    config: BrokerConfig,
    logs: LogManager,
    replicas: Replicas,
    records: SegmentRecords,
    use_of: Callable[[Owner], Awaitable[Use]],
    clock: Clock,
) -> Tiers | None:
    """Return the parts that keep segments in remote storage; None if remote storage is off. Raises ConfigError."""
    settings = tier_settings(config)
    if settings is None:
        return None
    try:
        store = open_store(settings.url, settings.options)
    except StoreSettingError as error:
        raise ConfigError(str(error)) from None

    async def sync(index: int) -> None:
        partition = replicas.get((REMOTE_LOG_METADATA_TOPIC, index))
        if partition is not None:
            await synced(partition.log, clock.now_ms())

    shared = Shared(
        config.node_id,
        settings,
        store,
        "",
        RemoteMetadata(config.node_id, records, clock),
        clock,
        lambda partition: replicas.get(partition.key) is partition,
        logs.save_log_starts,
        sync,
        use_of,
        config.get_int("log.segment.delete.delay.ms") if config.in_cluster else 0,
        asyncio.Semaphore(settings.copies_at_once),
        asyncio.Semaphore(settings.deletes_at_once),
    )
    return Tiers(shared, f"{logs.directory}/{_REMOTE_CHUNKS}")


async def synced(partition_log: PartitionLog, now_ms: int) -> None:
    """Flush a log, on a thread. Raises OSError."""
    task = partition_log.begin_flush(snapshots=False)
    if task is None:
        return
    await asyncio.get_running_loop().run_in_executor(None, task.run)
    partition_log.end_flush(task, now_ms)
    if task.error is not None:
        raise task.error


def use_in(state: ClusterState, owner: Owner) -> Use:
    """Return how a partition uses remote storage according to a cluster's state."""
    topic = state.topics.get(state.topic_names.get(owner.topic_id, ""))
    if topic is None:
        return Use.DELETED
    return _use_by(topic.configs)


def _use_by(configs: Mapping[str, str]) -> Use:
    """Return the use by a topic's own configs. Segments are deleted only if the configs say so."""
    if uses_remote_storage(configs):
        return Use.ON
    return Use.OFF if configs.get("remote.log.delete.on.disable", "").strip().lower() == "true" else Use.ON


async def use_in_tree(tree: MetadataTree, state: ClusterState, owner: Owner) -> Use:
    """Return how a partition uses remote storage according to ZooKeeper. Raises ApiError.

    A broker's state can lack a topic or a config that it does not know yet, and segments must not be deleted for that.
    """
    if use_in(state, owner) is Use.ON:
        return Use.ON
    path, configs_path = topic_path(owner.topic), f"{CONFIG}/topics/{owner.topic}"
    try:
        topic, configs = await tree.get(path), await tree.get(configs_path)
        known = None if topic is None else read(path, topic.data, Assignment.decode)
        if known is None or known.topic_id not in (owner.topic_id, None):
            return Use.DELETED
        own = {} if configs is None else read(configs_path, configs.data, decode_configs)
    except (Unreachable, Denied, Unreadable) as error:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"ZooKeeper does not return {path}: {error}") from None
    return _use_by(own)


def check_tiers(config: BrokerConfig, configs: Mapping[str, Mapping[str, str]]) -> None:
    """Raise ConfigError if a topic has records in remote storage although tiered storage is off.

    `configs` are the configs of all topics.
    """
    tiered = [name for name, own in configs.items() if uses_remote_storage(own)]
    if tiered and tier_settings(config) is None:
        raise ConfigError(
            f"remote.log.storage.system.enable=false, but topics such as {tiered[0]} use remote storage: set it to "
            "true, or delete these topics before"
        )
