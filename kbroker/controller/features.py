"""Feature levels of the cluster (KIP-584): the supported levels, and the allowed changes.

Owns the tables of features that this broker supports, on a single node and in a cluster, and the rules of
UpdateFeatures. Never stores: the controllers do.

transaction.version: with 0 and 1 every producer uses the first transaction protocol; level 1 writes
`__transaction_state` in a newer record version. With 2, producers that support it (Java since 4.0) use the second
protocol, in which each end of a transaction bumps the producer epoch (KIP-890).

group.version: 1 enables the consumer groups of KIP-848, 0 disables them.

streams.version: 1 enables the streams groups of KIP-1071, 0 disables them.

share.version: 1 enables the share groups of KIP-932, 0 disables them; 2 also enables their dead letter topics
(KIP-1191).

Kafka's tools read metadata.version and kraft.version, which describe Kafka's own metadata log. kbroker does not have
this log. So kraft.version has no effect. metadata.version begins at Apache Kafka 4.4's level (33); its only effect is
to allow ACLs for ranges of addresses. A node of a cluster has neither feature: a cluster on ZooKeeper has no metadata
log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from kbroker.protocol.errors import ApiError, ErrorCode

TRANSACTION_VERSION: Final = "transaction.version"

GROUP_VERSION: Final = "group.version"

STREAMS_VERSION: Final = "streams.version"

SHARE_VERSION: Final = "share.version"

DEAD_LETTERS_SINCE: Final = 2
"""The level of share.version since which share groups may have dead letter topics."""

METADATA_VERSION: Final = "metadata.version"

RANGES_OF_HOSTS_SINCE: Final = 32
"""The level of metadata.version since which ACLs may have ranges of addresses (4.4-IV1)."""

KRAFT_VERSION: Final = "kraft.version"

SUPPORTED: Final[Mapping[str, tuple[int, int]]] = {
    GROUP_VERSION: (0, 1),
    KRAFT_VERSION: (0, 1),
    METADATA_VERSION: (7, 33),
    SHARE_VERSION: (0, 2),
    STREAMS_VERSION: (0, 1),
    TRANSACTION_VERSION: (0, 2),
}
"""The lowest and highest level of each feature."""

BOOTSTRAP: Final[Mapping[str, int]] = {
    GROUP_VERSION: 1,
    METADATA_VERSION: 33,
    SHARE_VERSION: 2,
    STREAMS_VERSION: 1,
    TRANSACTION_VERSION: 2,
}
"""The levels of a new single node, as Apache Kafka 4.4 sets them."""

UNRECORDED: Final[Mapping[str, int]] = {GROUP_VERSION: 1, METADATA_VERSION: 30, TRANSACTION_VERSION: 2}
"""The levels of a data directory that records no levels.

They are those of kbroker 0.2, which recorded only changes.
"""

SUPPORTED_IN_CLUSTER: Final[Mapping[str, tuple[int, int]]] = {
    name: SUPPORTED[name] for name in (GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION, TRANSACTION_VERSION)
}
"""The lowest and highest level of each feature, for a node of a cluster."""

NEW_CLUSTER: Final[Mapping[str, int]] = {
    GROUP_VERSION: 1,
    SHARE_VERSION: 2,
    STREAMS_VERSION: 1,
    TRANSACTION_VERSION: 2,
}
"""The levels of a new cluster on ZooKeeper if all its brokers support them. Level 0 is never listed there."""

REGISTERED: Final[Mapping[str, Mapping[str, int]]] = {
    name: {"min_version": max(low, 1), "max_version": high} for name, (low, high) in SUPPORTED_IN_CLUSTER.items()
}
"""The features that a node of a cluster registers. In ZooKeeper, a feature at level 0 is absent."""

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


Supported = Mapping[str, tuple[int, int]]


class Others(NamedTuple):
    """The limits that the other brokers of a cluster set on its feature levels."""

    supported: Mapping[int, Supported]
    """The supported features of registered brokers, by id."""
    missing: Collection[int] = ()
    """The brokers whose features are unknown, because they have replicas but no readable registration."""


NO_OTHERS: Final = Others({})


def updated(
    levels: Mapping[str, int],
    updates: Sequence[FeatureUpdate],
    node_id: int,
    supported: Supported = SUPPORTED,
    others: Others = NO_OTHERS,
) -> dict[str, int]:
    """Return the levels after all updates.

    If an update is invalid, apply no update, and raise ApiError for the first invalid update. `supported` lists the
    features of the controller `node_id`.
    """
    result = dict(levels)
    for update in updates:
        current = result.get(update.feature, 0)
        fault = _fault(current, update, node_id, supported) or _fault_of_others(current, update, others)
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


def _fault(current: int, update: FeatureUpdate, node_id: int, supported: Supported) -> str | None:
    """Return the reason for which a feature must not have this level, in Kafka's words (FeatureControlManager)."""
    if update.upgrade_type != UPGRADE and update.upgrade_type not in _DOWNGRADES:
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    known = supported.get(update.feature)
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


def _fault_of_others(current: int, update: FeatureUpdate, others: Others) -> str | None:
    """Return an error text that names another broker without support for this level; None if all brokers support it."""
    for number, supported in sorted(others.supported.items()):
        if unsupported({update.feature: update.level}, supported):
            known = supported.get(update.feature)
            if known is None:
                return f"Broker {number} does not support this feature."
            return f"Broker {number} only supports versions {known[0]}-{known[1]}"
    if update.level > current and others.missing:
        return f"The features of broker {min(others.missing)} are not known: it has replicas, but does not run."
    return None


def unsupported(levels: Mapping[str, int], supported: Supported) -> str | None:
    """Return the unsupported finalized levels, or None if all are supported (BrokerFeatures.incompatibleFeatures)."""
    found = [
        f"{name} {level}"
        for name, level in sorted(levels.items())
        if level > 0 and not (name in supported and supported[name][0] <= level <= supported[name][1])
    ]
    return ", ".join(found) or None
