"""UpdateFeatures (key 57), versions 0-2: finalized feature levels are changed (KIP-584, `kafka-features.sh`).

Behaviour: all updates or none; the rules stand in controller/features.py. So does the table of features. In a cluster
the controller asks what the other brokers support, and answers once its own broker knows of the change.
Version notes: v0-1 answer for each feature as well; v0 knows no upgrade type and only upgrades, as in Kafka's
controller.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.controller.features import UPGRADE, FeatureUpdate
from kbroker.divided import Divided
from kbroker.handlers.in_effect import in_effect
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.messages.cluster import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_LAST_WITH_RESULTS = 1


@handles(UpdateFeaturesRequest, UpdateFeaturesResponse, "0-2")
def update_features(
    ctx: RequestContext, request: UpdateFeaturesRequest
) -> Divided[UpdateFeaturesResponse | Awaitable[UpdateFeaturesResponse]]:
    """Change levels; of a feature that is named again the last update counts, as in Kafka's controller."""
    by_name: dict[str, FeatureUpdate] = {}
    for asked in request.feature_updates:
        kind = asked.upgrade_type if ctx.version else UPGRADE
        by_name[asked.feature] = FeatureUpdate(asked.feature, asked.max_version_level, kind)
        yield
    services = ctx.services
    # Without one fault there are no more of them than features, and the first fault ends it.
    yield from services.controller.update_features(
        list(by_name.values()),
        services.node_id,
        validate_only=request.validate_only,
        _timeout_ms=request.timeout_ms,
    )
    results: list[UpdatableFeatureResult] = []
    if ctx.version <= _LAST_WITH_RESULTS:
        results = [UpdatableFeatureResult(name, 0, "NONE") for name in by_name]
    return in_effect(ctx, UpdateFeaturesResponse(error_message=None, results=results))
