"""Feature levels of the cluster (KIP-584): which there are, and what may be changed to what.

Owns the table of features that this broker has, and the rules of UpdateFeatures. Never stores: the controller does.

transaction.version: 0 and 1 let every producer speak the first generation of the protocol, 1 with newer records in
`__transaction_state`; 2 lets producers that can (Java since 4.0) speak the second, in which each end of a transaction
begins a new epoch (KIP-890).

group.version: 1 has the consumer groups of KIP-848, 0 has not.

metadata.version and kraft.version are what Kafka's tools look for. They say what its own metadata log holds, which
kbroker does not have, so neither changes anything: metadata.version stays at that of Apache Kafka 4.3 (30).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kbroker.protocol.errors import ApiError, ErrorCode

TRANSACTION_VERSION: Final = "transaction.version"

GROUP_VERSION: Final = "group.version"

METADATA_VERSION: Final = "metadata.version"

KRAFT_VERSION: Final = "kraft.version"

SUPPORTED: Final[Mapping[str, tuple[int, int]]] = {
    GROUP_VERSION: (0, 1),
    KRAFT_VERSION: (0, 1),
    METADATA_VERSION: (7, 30),
    TRANSACTION_VERSION: (0, 2),
}
"""Lowest and highest level by feature."""

BOOTSTRAP: Final[Mapping[str, int]] = {GROUP_VERSION: 1, METADATA_VERSION: 30, TRANSACTION_VERSION: 2}
"""The levels of a new cluster, as Apache Kafka 4.3 sets them."""

UPGRADE: Final = 1
_DOWNGRADES: Final = frozenset({2, 3})
_NO_DOWNGRADE: Final = {
    2: "Refusing to perform the requested downgrade because it might delete metadata information.",
    3: "Unsafe metadata downgrade is not supported in this version.",
}


class FeatureUpdate(NamedTuple):
    """One entry of UpdateFeatures; `upgrade_type` is 1 upgrade, 2 safe downgrade, 3 unsafe downgrade."""

    feature: str
    level: int
    upgrade_type: int


def updated(levels: Mapping[str, int], updates: Sequence[FeatureUpdate], node_id: int) -> dict[str, int]:
    """Return the levels after all updates; raises ApiError for the first that may not be, and then none is made."""
    result = dict(levels)
    for update in updates:
        fault = _fault(result.get(update.feature, 0), update, node_id)
        if fault is not None:
            raise _failed(f"Invalid update version {update.level} for feature {update.feature}. {fault}")
        if update.feature == METADATA_VERSION and update.level < result[METADATA_VERSION]:
            why = _NO_DOWNGRADE[update.upgrade_type]
            raise _failed(
                f"Unsupported metadata.version downgrade from {result[METADATA_VERSION]} to {update.level}. {why}"
            )
        result[update.feature] = update.level
    return result


def _failed(text: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"The update failed for all features since the following feature had an error: {text}",
    )


def _fault(current: int, update: FeatureUpdate, node_id: int) -> str | None:
    """Return why a feature may not have this level, in Kafka's words (FeatureControlManager)."""
    if update.upgrade_type != UPGRADE and update.upgrade_type not in _DOWNGRADES:
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    known = SUPPORTED.get(update.feature)
    if known is None:
        if update.level == 0:
            return f"Feature {update.feature} not found."
        return f"Local controller {node_id} does not support this feature."
    if not known[0] <= update.level <= known[1]:
        return f"Local controller {node_id} only supports versions {known[0]}-{known[1]}"
    if update.level < current and update.upgrade_type == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if update.level > current and update.upgrade_type != UPGRADE:
        return "Can't downgrade to a newer version."
    return None
