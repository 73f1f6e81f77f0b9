"""UpdateFeatures (key 57), versions 0-2: finalized feature levels are changed (KIP-584, `kafka-features.sh`).

Behaviour: all updates or none; the rules stand in controller/features.py. So does the table of features.
Version notes: v0-1 answer for each feature as well; v0 knows no upgrade type and only upgrades, as in Kafka's
controller.
"""

from __future__ import annotations

from kbroker.controller.features import UPGRADE, FeatureUpdate
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_LAST_WITH_RESULTS = 1


@handles(UpdateFeaturesRequest, UpdateFeaturesResponse, "0-2")
def update_features(ctx: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Change levels."""
    updates = [
        FeatureUpdate(each.feature, each.max_version_level, each.upgrade_type if ctx.version else UPGRADE)
        for each in request.feature_updates
    ]
    services = ctx.services
    services.controller.update_features(updates, services.node_id, validate_only=request.validate_only)
    results = [UpdatableFeatureResult(each.feature, 0, "NONE") for each in updates]
    return UpdateFeaturesResponse(error_message=None, results=results if ctx.version <= _LAST_WITH_RESULTS else [])
