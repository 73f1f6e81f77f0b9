"""The first page: the faults and the content of the cluster.

Owns the page's content. The page shows the sampler's results, so that it appears immediately in any state of the
cluster.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from kbroker.console.console import Console
from kbroker.console.health import findings
from kbroker.console.page_and_action import Action, Facts, Page
from kbroker.console.values import Values

_BUSIEST: Final = 8


async def find(console: Console, values: Values) -> Facts:
    """Return the facts of the overview."""
    del values
    view = await console.view()
    samples = console.sampler.samples
    partitions = [each for _, each in view.partitions()]
    leads = Counter(each.leader_id for each in partitions)
    has = Counter(broker for each in partitions for broker in each.replica_nodes)
    late = Counter(broker for each in partitions for broker in each.replica_nodes if broker not in each.isr_nodes)
    used = Counter({each.broker: 0 for each in samples.dirs})
    for each in samples.dirs:
        used[each.broker] += each.used
    rates = [(name, samples.topics.get(name).last or 0.0) for name in view.topics]
    busy = sorted((each for each in rates if each[1] > 0), key=lambda each: -each[1])[:_BUSIEST]
    behind = [(name, samples.lags.get(name)) for name in samples.groups]
    lagging = sorted((each for each in behind if each[1].last), key=lambda each: -(each[1].last or 0))[:_BUSIEST]
    return {
        "view": view,
        "findings": findings(samples) if samples.rounds else [],
        "looked": bool(samples.rounds) and samples.failure is None,
        "samples": samples,
        "age_s": time.time() - samples.looked_at,
        "partitions": len(partitions),
        "replicas": sum(has.values()),
        "leads": leads,
        "has": has,
        "late": late,
        "used": used,
        "size": sum(samples.sizes.values()),
        "busy": busy,
        "lagging": lagging,
        "groups": len(samples.groups),
        "states": Counter(state or "unknown" for state in samples.groups.values()),
        "internal": sum(topic.internal for topic in view.topics.values()),
        "missing": view.missing_brokers(),
    }


PAGES: Final = (Page("/", "overview.html", find),)
ACTIONS: Final[tuple[Action, ...]] = ()
