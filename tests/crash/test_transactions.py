"""The short form of tests.crash.transactions: the broker ends at each step of a commit; no transaction is torn."""

from __future__ import annotations

from pathlib import Path

from tests.crash.transactions import STEPS, Transactions
from tests.figures import figure

SEED = 20261121
KILLS = 16


def test_t5_t12_no_transaction_is_torn_by_any_end(tmp_path: Path) -> None:
    print(f"seed {SEED}, {KILLS} kills")
    work = Transactions(tmp_path, SEED)
    try:
        work.run(KILLS)
    finally:
        work.broker.kill()
    figure(f"kills at the steps of transactions, seed {SEED}", work.summary())
    for step in STEPS:
        assert any(name.startswith(f"kills at {step}") for name in work.counts), f"{step} was never passed"
    assert work.counts["kills at a moment"] > 0
    assert work.counts["checks"] == KILLS + 2
    assert all(worker.committed for worker in work.workers)
