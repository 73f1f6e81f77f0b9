"""The topic `_schemas`, in which a registry in this broker stores its schemas.

Owns its creation: one partition, compacted, with three replicas if there are enough brokers, as Confluent's registry
creates it. Also refuses an existing topic that would lose schemas or has several partitions, like Confluent's registry.
"""

from __future__ import annotations

import logging
from typing import Final

from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.replicas import Replicas
from kbroker.schema_registry.errors import Refusal
from kbroker.schema_registry.records import SCHEMAS_TOPIC

log = logging.getLogger(__name__)

_REPLICAS: Final = 3
_CONFIGS: Final = {"cleanup.policy": "compact"}


async def provide_schemas_topic(metadata: ClusterMetadata, replicas: Replicas) -> None:
    """Create the topic if it is missing. Raises RegistryError if an existing topic cannot store schemas.

    A failure of the creation is only logged. The registry then cannot serve, and retries.
    """
    if SCHEMAS_TOPIC in metadata.decided.topics:
        _check(metadata, replicas)
        return
    try:
        copies = max(min(_REPLICAS, len(metadata.state.brokers)), 1)
        plan = metadata.plan_topic(SCHEMAS_TOPIC, 1, copies, None, _CONFIGS)
        refused = (await metadata.put_in_pieces([plan])).get(SCHEMAS_TOPIC)
        if refused is not None and refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise refused
        if (published := metadata.published()) is not None:
            await published
    except (ApiError, OSError) as error:
        log.warning("the topic %s cannot be created: %s", SCHEMAS_TOPIC, error)


def _check(metadata: ClusterMetadata, replicas: Replicas) -> None:
    count = len(metadata.decided.topics[SCHEMAS_TOPIC].partitions)
    if count != 1:
        raise Refusal.STORE_FAILED(f"The topic {SCHEMAS_TOPIC} has {count} partitions; it must have one")
    try:
        config = replicas.leader(SCHEMAS_TOPIC, 0).log.config
    except ApiError:
        return  # the leader of the topic checks the config
    if not config.compact or config.delete:
        raise Refusal.STORE_FAILED(
            f"The topic {SCHEMAS_TOPIC} would lose schemas: its cleanup.policy must be compact, without delete"
        )
