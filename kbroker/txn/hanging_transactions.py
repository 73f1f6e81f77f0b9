"""Transactions that are open in a partition's log, but that no coordinator knows.

Owns the search, its time, and the warning about its results. Such transactions never end by themselves, and
read_committed consumers wait for them. They exist because the end of `__transaction_state` was lost (a power failure, a
repair), or because kbroker uses a data directory that lacks this topic. Never ends such a transaction: a broker cannot
know whether its records should become visible.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kbroker.log.producers.producer_state import ProducerState
from kbroker.long_work import turn
from kbroker.txn.coordinator import TransactionCoordinator
from kbroker.txn.transaction import ONGOING, PREPARED, TopicPartition, Transaction

log = logging.getLogger(__name__)

_CHECKED_AT_ONCE = 1_000
NAMED = 20
"""The maximum number of hanging transactions that the log lists individually."""


class Hanging(NamedTuple):
    """An open transaction and its position in a log."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int


class HangingSearch:
    """Searches once, when all known transactions are loaded.

    This makes sense only for a broker that knows all transactions. `led` returns the partitions that this broker leads,
    with their producers. `bootstrap_servers` returns the address for the commands in a warning.
    """

    def __init__(
        self,
        transactions: TransactionCoordinator,
        led: Callable[[], Iterable[tuple[TopicPartition, ProducerState]]],
        bootstrap_servers: Callable[[], str],
    ) -> None:
        self._transactions = transactions
        self._led = led
        self._bootstrap_servers = bootstrap_servers
        self.done = False

    async def when_due(self) -> None:
        """Search if the search is due, and warn about the results."""
        if not self.done and self._transactions.is_loaded:
            found = await find_hanging(self._led(), self._transactions.all)
            self.done = True
            warn_of(found, self._bootstrap_servers())


async def find_hanging(
    led: Iterable[tuple[TopicPartition, ProducerState]], known: Callable[[], Iterable[Transaction]]
) -> list[Hanging]:
    """Return the open transactions, in the partitions `led` by this broker, whose producers are not `known`.

    Candidates are collected in pieces. Then all candidates are checked again in one step.
    """
    seem_open = []
    for partition, producers in led:
        if producers.first_unstable >= 0:
            for count, entry in enumerate(list(producers.entries.values())):
                if entry.current_txn_first_offset >= 0:
                    seem_open.append((partition, producers, entry.producer_id))
                if count % _CHECKED_AT_ONCE == 0:
                    await turn
        await turn
    if not seem_open:
        return []
    ids = {producer_id for _, _, producer_id in seem_open}
    open_in = {
        (txn.producer_id, partition)
        for txn in known()
        if txn.producer_id in ids and (txn.state is ONGOING or txn.state in PREPARED)
        for partition in txn.partitions
    }
    return [
        Hanging(*partition, now.producer_id, now.producer_epoch, now.current_txn_first_offset)
        for partition, producers, producer_id in seem_open
        if (now := producers.entries.get(producer_id)) is not None
        and now.current_txn_first_offset >= 0
        and (producer_id, partition) not in open_in
    ]


def warn_of(hanging: list[Hanging], bootstrap_servers: str) -> None:
    """Log the offsets at which consumers will wait, and the command that ends the wait."""
    verb, where = "kbroker transaction", f"--bootstrap {bootstrap_servers}"
    for each in hanging[:NAMED]:
        log.warning(
            "%s-%d: no coordinator knows the transaction of producer %d (epoch %d) open since offset %d; "
            "readers of committed records stop there until it is aborted: %s abort %s %s %d --start-offset %d",
            each.topic,
            each.partition,
            each.producer_id,
            each.producer_epoch,
            each.first_offset,
            verb,
            where,
            each.topic,
            each.partition,
            each.first_offset,
        )
    if len(hanging) > NAMED:
        log.warning("%d more transactions hang; `%s hanging %s` lists them all", len(hanging) - NAMED, verb, where)
