"""Handles log directories that fail while their broker continues to run.

Owns the set of replicas on failed directories. A broker with a failed directory writes a notification. The controller
then sends this broker all its leaderships again, and the response shows which replicas are lost (KAFKA_STORAGE_ERROR)
and which are usable (KafkaController.onBrokerLogDirFailure, processLeaderAndIsrResponseReceived).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kbroker.controller.cluster.brokers import replicas_offline
from kbroker.controller.cluster.context import Partition
from kbroker.controller.cluster.term import Term
from kbroker.controller.pacing import all_of, paced
from kbroker.controller.znodes import ISR_CHANGES, LOG_DIR_EVENTS, Unreadable, decode_log_dir_event, read

log = logging.getLogger(__name__)


async def clear(term: Term) -> None:
    """Remove the notifications of an earlier term: this term sends all brokers their leaderships anyway.

    Notifications of changed in-sync replicas are removed, too; only brokers before 2.7 write them.
    """
    for parent in (LOG_DIR_EVENTS, ISR_CHANGES):
        names = await term.tree.children(parent)
        await all_of([f"{parent}/{name}" for name in names], term.tree.delete)


async def check(term: Term) -> None:
    """Process notifications, and watch for more."""
    names = await term.tree.children(LOG_DIR_EVENTS, lambda: term.put("log dirs", lambda: check(term)))
    paths = [f"{LOG_DIR_EVENTS}/{name}" for name in names]
    brokers = {broker for broker in await all_of(paths, lambda path: _broker(term, path)) if broker is not None}
    batch = term.batch()
    for broker in brokers & term.context.brokers.keys():
        log.info("A log directory of broker %d has failed", broker)
        async for partition in paced(list(term.context.on_broker(broker))):
            if partition in term.context.states:
                batch.leadership((broker,), partition)
    await batch.send()
    await all_of(paths, term.tree.delete)


async def _broker(term: Term, path: str) -> int | None:
    found = await term.tree.get(path)
    if found is None:
        return None
    try:
        return read(path, found.data, decode_log_dir_event)
    except Unreadable as error:
        log.error("%s: it is removed", error)
        return None


async def answered(term: Term, broker: int, usable: Mapping[Partition, bool]) -> None:
    """Record which replicas of a broker can be used."""
    failed = term.context.failed_dirs.setdefault(broker, set())
    offline = []
    async for partition, is_usable in paced(usable.items()):
        if is_usable:
            failed.discard(partition)
        elif partition not in failed and term.context.replicas(partition) is not None:
            failed.add(partition)
            offline.append(partition)
    if not failed:
        del term.context.failed_dirs[broker]
    if offline:
        log.error("%d replicas of broker %d lie on failed log directories", len(offline), broker)
        await replicas_offline(term, {broker: offline})
