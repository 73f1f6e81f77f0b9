"""The transactional ids of a broker whose content was restored, and the producers that use them.

Owns what happens to each. A transaction that was open in the snapshot is aborted. A producer without an open
transaction, neither then nor at the restore, keeps its id and epoch and goes on. Every other producer is fenced. Never
writes a record itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kbroker.clock import Clock
from kbroker.long_work import awaited
from kbroker.testing.waiting import until
from kbroker.txn.coordinator import TransactionCoordinator
from kbroker.txn.transaction import AT_REST, LAST_CLIENT_EPOCH, NO_EPOCH, ONGOING, Transaction


def known_now(coordinator: TransactionCoordinator) -> dict[str, Transaction]:
    """Return the state of each transactional id, before it is replaced."""
    return {each.transactional_id: each for each in coordinator.all()}


async def settle(coordinator: TransactionCoordinator, before: Mapping[str, Transaction], clock: Clock) -> None:
    """Reconcile the restored transactional ids with the producers that exist now."""
    opened = {each.transactional_id for each in coordinator.all() if each.state is ONGOING}
    for name in opened:
        await awaited(coordinator.abandon(name))
    await until(lambda: all(each.state in AT_REST for each in coordinator.all()), "transactions have not ended")
    for restored in coordinator.all():
        known = before.get(restored.transactional_id)
        if known is None or known.producer_id != restored.producer_id:
            continue  # its producer has to initialize again
        wanted = _wanted(restored, known, clock.now_ms(), was_open=restored.transactional_id in opened)
        if wanted != restored:
            await awaited(coordinator.adopt(wanted))


def _wanted(restored: Transaction, known: Transaction, now_ms: int, *, was_open: bool) -> Transaction:
    if known.is_prepared:
        known = known.completed(now_ms)
    if known.state in AT_REST and not was_open:
        return known
    epoch = min(max(restored.producer_epoch, known.producer_epoch) + 1, LAST_CLIENT_EPOCH)
    return replace(restored, producer_epoch=epoch, last_epoch=NO_EPOCH)
