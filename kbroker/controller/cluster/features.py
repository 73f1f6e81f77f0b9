"""The feature levels that a cluster's controller finalizes in /feature (KIP-584).

Owns /feature: its creation in a cluster that lacks it, and its change at a client's request. Except in a new cluster,
levels rise only at a client's request: a broker of Apache Kafka 3.9 supports no features, and stops when a feature is
finalized. (KafkaController.enableFeatureVersioning, processFeatureUpdatesWithActiveController.)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kbroker.controller.cluster.term import Term
from kbroker.controller.features import (
    NEW_CLUSTER,
    SUPPORTED_IN_CLUSTER,
    FeatureUpdate,
    Others,
    Supported,
    unsupported,
    updated,
)
from kbroker.controller.znodes import BROKER_IDS, FEATURE, TOPICS, Features, Registration, Unreadable, read
from kbroker.protocol.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)


def supported_by(registration: Registration) -> Supported:
    """Return the features that a broker has registered as supported."""
    return {
        name: (levels.get("min_version", 1), levels.get("max_version", 0))
        for name, levels in registration.features.items()
    }


async def learn(term: Term) -> bool:
    """Read the finalized levels, which live brokers must support; return whether /feature exists.

    With an inter.broker.protocol.version before 2.7, Kafka disables /feature. This method then ignores the levels in
    /feature, and enables /feature. Raises Unreadable.
    """
    while True:
        found = await term.tree.get(FEATURE)
        if found is None:
            term.context.features = {}
            return False
        stands = read(FEATURE, found.data, Features.decode)
        if stands.enabled:
            term.context.features = stands.levels
            return True
        await term.tree.set(FEATURE, Features({}).encode(), found.stat.version)


async def begin(term: Term) -> None:
    """Create /feature if it is missing. It contains levels only in a new cluster whose brokers all support them."""
    if await learn(term):
        return
    is_new = not await term.tree.children(TOPICS)
    levels = initial(await _others(term), is_new=is_new)
    if await term.tree.create(FEATURE, Features(levels).encode()):
        log.info("finalized in this cluster: %s", _named(levels))
    await learn(term)


def initial(brokers: Others, *, is_new: bool) -> Mapping[str, int]:
    """Return the first levels of a cluster without /feature. A cluster `is_new` while it has no topics."""
    if not is_new or brokers.missing or any(unsupported(NEW_CLUSTER, each) for each in brokers.supported.values()):
        return {}
    return NEW_CLUSTER


async def update(term: Term, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> int:
    """Change all of these levels, or none. Return the version of /feature that contains them. Raises ApiError.

    A level is raised only if all live brokers support it, and all brokers with replicas are live.
    """
    while True:
        found = await term.tree.get(FEATURE)
        try:
            known = {} if found is None else read(FEATURE, found.data, Features.decode).levels
        except Unreadable as error:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from None
        levels = updated(known, updates, term.node_id, SUPPORTED_IN_CLUSTER, await _others(term))
        levels = {name: level for name, level in levels.items() if level > 0}
        if found is None:
            if not validate_only:
                await term.tree.create(FEATURE, Features(known).encode())
                continue
            return -1
        if validate_only or levels == known:
            return found.stat.version
        version = await term.tree.set(FEATURE, Features(levels).encode(), found.stat.version)
        if version is not None:
            term.context.features = levels
            log.info("finalized in this cluster: %s", _named(levels))
            return version


async def _others(term: Term) -> Others:
    """Return the supported features of all brokers, including those that the controller counts as dead."""
    context = term.context
    supported = {number: supported_by(each.registration) for number, each in context.brokers.items()}
    missing = context.hosts() - supported.keys()
    for name in await term.tree.children(BROKER_IDS):
        if not name.isdecimal() or int(name) in supported:
            continue
        path = f"{BROKER_IDS}/{name}"
        found = await term.tree.get(path)
        if found is None:
            continue
        try:
            supported[int(name)] = supported_by(read(path, found.data, Registration.decode))
            missing.discard(int(name))
        except Unreadable:
            missing.add(int(name))
    return Others(supported, missing)


def _named(levels: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {level}" for name, level in sorted(levels.items())) or "no features"
