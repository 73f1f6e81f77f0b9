"""The topic `_schemas`, which a registry in this broker keeps its schemas in.

Owns its creation: one partition, compacted, three replicas where there are so many brokers, as Confluent's registry
creates it; and the refusal of one that exists and would lose schemas, or has several partitions, as Confluent's
registry refuses it.
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
    """Create the topic if it is missing; raises RegistryError if it cannot keep schemas.

    A failure of the creation is only logged: the registry cannot serve, and tries again.
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
        raise Refusal.STORE_FAILED(f"The topic {SCHEMAS_TOPIC} has {count} partitions; it is to have one")
    try:
        config = replicas.leader(SCHEMAS_TOPIC, 0).log.config
    except ApiError:
        return  # its leader checks it
    if not config.compact or config.delete:
        raise Refusal.STORE_FAILED(
            f"The topic {SCHEMAS_TOPIC} would lose schemas: its cleanup.policy is to be compact, and nothing else"
        )
