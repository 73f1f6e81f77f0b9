"""Handles brokers that start, fail, register again under another epoch, or change their addresses.

Owns the consequences for partitions: elections, in-sync replicas, and the requests to brokers, in this order
(KafkaController.onBrokerStartup, onBrokerFailure). Each registration counts as another broker. The broker epoch of a
registration is the number of the transaction that created its znode.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from kbroker.controller.cluster import deletion, reassignment
from kbroker.controller.cluster.context import LiveBroker, Partition
from kbroker.controller.cluster.features import supported_by
from kbroker.controller.cluster.partitions import bring_online, mark_leaderless, take_out
from kbroker.controller.cluster.term import Term
from kbroker.controller.features import unsupported
from kbroker.controller.pacing import all_of, paced
from kbroker.controller.tree.znode import Znode
from kbroker.controller.znodes import BROKER_IDS, Registration, Unreadable, read

log = logging.getLogger(__name__)


async def read_brokers(term: Term) -> dict[int, LiveBroker]:
    """Return the registered brokers, and watch for new, failed and changed ones."""
    names = await term.tree.children(BROKER_IDS, lambda: term.put("brokers", lambda: check(term)))
    numbers = [int(name) for name in names if name.isdecimal()]
    term.context.lacking.intersection_update(numbers)
    found = await all_of(numbers, lambda number: _usable(term, number))
    return {number: broker for number, broker in zip(numbers, found, strict=True) if broker is not None}


async def _get(term: Term, number: int) -> Znode | None:
    """Read a broker's znode, and set only one watch: every further watch would remain until it fires."""
    path, watched = f"{BROKER_IDS}/{number}", term.context.watched_brokers
    if number in watched:
        return await term.tree.get(path)

    def changed() -> None:
        watched.discard(number)
        term.put(("broker", number), lambda: _again(term, number))

    watched.add(number)
    try:
        return await term.tree.get(path, changed)
    except BaseException:
        watched.discard(number)
        raise


async def _usable(term: Term, number: int) -> LiveBroker | None:
    """Return a registered broker.

    Return None if the registration is unreadable, or if the broker does not support the finalized features.
    """
    path = f"{BROKER_IDS}/{number}"
    found = await _get(term, number)
    if found is None:
        return None
    try:
        broker = LiveBroker(found.stat.created, read(path, found.data, Registration.decode))
    except Unreadable as error:
        log.error("%s: the broker is taken for dead", error)
        return None
    lacks = unsupported(term.context.features, supported_by(broker.registration))
    if lacks is not None:
        term.context.lacking.add(number)
        log.error("Broker %d does not support %s, and is taken for dead", number, lacks)
        return None
    term.context.lacking.discard(number)
    return broker


async def check_lacking(term: Term) -> None:
    """Count brokers as live again if they now support all finalized features."""
    found = {number: await _usable(term, number) for number in sorted(term.context.lacking)}
    started = {number: broker for number, broker in found.items() if broker is not None}
    if started:
        log.info("Brokers that support the finalized features by now: %s", sorted(started))
        await _started(term, started)


async def check(term: Term) -> None:
    """Find new and failed brokers."""
    known = dict(term.context.brokers)
    live = await read_brokers(term)
    new = {number: broker for number, broker in live.items() if number not in known}
    dead = [number for number in known if number not in live]
    again = {number: live[number] for number in known.keys() & live if live[number].epoch > known[number].epoch}
    if not new and not dead and not again:
        return
    log.info("Brokers started: %s, failed: %s, restarted: %s", sorted(new), sorted(dead), sorted(again))
    for number in (*dead, *again):
        term.channels.close(number)
    if new:
        await _started(term, new)
    if again:
        for number in again:
            del term.context.brokers[number]
        await _failed(term, again)
        for number in again:
            await _get(term, number)
        await _started(term, again)
    if dead:
        for number in dead:
            del term.context.brokers[number]
        await _failed(term, dead)


def open_channel(term: Term, number: int) -> None:
    """Open the channel to a broker."""
    config = term.config
    listeners = config.controller_listener, config.inter_broker_listener
    term.channels.open(number, term.context.brokers[number], listeners, config.socket_timeout_ms)


async def _started(term: Term, started: dict[int, LiveBroker]) -> None:
    """Announce new brokers to the other brokers.

    Send the new brokers the complete state, and elect leaders for offline partitions.
    """
    context = term.context
    others = list(context.brokers)
    context.brokers.update(started)
    for number in started:
        context.failed_dirs.pop(number, None)
        open_channel(term, number)
    await term.notify(brokers=others)
    known = [partition async for partition in paced(list(context.states)) if not context.is_deleted(partition[0])]
    await term.notify(known, started)
    batch = term.batch()
    hosted: dict[str, None] = {}
    for number in started:
        async for partition in paced(list(context.on_broker(number))):
            hosted[partition[0]] = None
            if partition in context.states and not context.is_deleted(partition[0]):
                batch.leadership((number,), partition)
    await batch.send()
    await bring_online(term)
    for number in started:
        await reassignment.resume(term, target_on=number)
    await deletion.resume(term, hosted)


async def _failed(term: Term, dead: Collection[int]) -> None:
    context = term.context
    for number in dead:
        context.failed_dirs.pop(number, None)
        context.leaving.discard(number)
    await replicas_offline(term, {number: list(context.on_broker(number)) for number in dead})


async def replicas_offline(term: Term, replicas: dict[int, list[Partition]]) -> None:
    """Handle lost replicas, by broker: elect other leaders, and remove the lost replicas from the in-sync replicas."""
    context = term.context
    await mark_leaderless(term, context.states)
    elected = await bring_online(term)
    notified = bool(elected)
    for number, partitions in replicas.items():
        await deletion.on_broker_failure(term, number, partitions)
        kept = [partition async for partition in paced(partitions) if not context.is_deleted(partition[0])]
        batch = term.batch()
        await take_out(term, number, kept, batch)
        await batch.send()
        notified = notified or bool(kept)
    if not notified:
        await term.notify()


async def _again(term: Term, number: int) -> None:
    """Apply changed addresses of a broker."""
    known = term.context.brokers.get(number)
    if known is None:
        await check(term)  # the broker's znode may be readable now
        return
    path = f"{BROKER_IDS}/{number}"
    found = await _get(term, number)
    if found is None or found.stat.created != known.epoch:
        return  # the broker is failing, or has registered again: the watch on /brokers/ids handles both
    try:
        registration = read(path, found.data, Registration.decode)
    except Unreadable as error:
        log.error("%s: the broker's last readable registration is kept", error)
        return
    changed = LiveBroker(known.epoch, registration)
    if changed == known:
        return
    term.context.brokers[number] = changed
    listener = term.config.controller_listener
    if changed.at(listener) != known.at(listener):
        term.channels.move(number, changed, listener)
    await term.notify()
