"""The levels of a cluster's features: reading and changing them (KIP-584). Never prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kbroker.admin.errors import AdminError, check_code
from kbroker.admin.own_request import ask_any, ask_controller
from kbroker.protocol.messages.cluster import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kbroker.protocol.messages.connections import ApiVersionsRequest, ApiVersionsResponse

UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2
UNSAFE_DOWNGRADE: Final = 3
OFF: Final = 0
_WITH_FEATURES: Final = 3
"""The ApiVersions version that includes features."""


def described_features(admin: Any) -> list[dict[str, Any]]:
    """Return the features that a broker supports, with the cluster's finalized levels."""
    request = ApiVersionsRequest(client_software_name="kbroker-cli", client_software_version="1")
    answer = ask_any(admin, request, ApiVersionsResponse, _WITH_FEATURES)
    if answer is None:
        raise AdminError("this broker does not report features (Apache Kafka does since 2.4)")
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    return [
        {
            "feature": each.name,
            "lowest": each.min_version,
            "highest": each.max_version,
            "level": levels.get(each.name, OFF),
        }
        for each in sorted(answer.supported_features, key=lambda each: each.name)
    ]


def change_features(admin: Any, levels: Mapping[str, int], kind: int, *, dry_run: bool) -> None:
    """Change feature levels, all of them or none. Raises AdminError.

    The request is valid in every version of the API, also in version 0 (Apache Kafka 2.7), which has no upgrade types.
    """
    updates = [FeatureUpdateKey(name, level, kind != UPGRADE, kind) for name, level in levels.items()]
    request = UpdateFeaturesRequest(feature_updates=updates, validate_only=dry_run)
    answer = ask_controller(admin, request, UpdateFeaturesResponse, at_least=int(dry_run))
    check_code(answer.error_code, "nothing is changed", answer.error_message)
    for each in answer.results:
        check_code(each.error_code, each.feature, each.error_message)
