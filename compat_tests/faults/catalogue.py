"""The faults that clients meet, and what each client does meanwhile.

Owns the list, in the order of the table in docs/faults-and-clients.md. Never says what a client sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kbroker import ErrorCode as E
from kbroker import Faults
from kbroker.testing.faults import Fault

PRODUCE: Final = "produce"
PRODUCE_PLAIN: Final = "produce without idempotence"
CONSUME: Final = "consume"
GROUP: Final = "group"
TRANSACT: Final = "transact"
TITLES: Final = {
    PRODUCE: "One record, by an idempotent producer",
    PRODUCE_PLAIN: "One record, by a producer without idempotence (`acks=all`)",
    CONSUME: "A consumer without a group",
    GROUP: "A consumer in a group of the classic protocol, which commits",
    TRANSACT: "A record in a transaction",
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fault, and what the client does meanwhile. With `late_s`, an outcome says whether it took that long."""

    does: str
    text: str
    """How the fault is set, as a line of Python on `broker.faults`."""
    begin: Callable[[Faults], Fault]
    late_s: float | None = None
    count: int = 1
    slow: bool = False
    """Whether some client waits for seconds: the gate skips such a scenario."""


def _scenario(does: str, text: str, *, late_s: float | None = None, count: int = 1, slow: bool = False) -> Scenario:
    def begin(faults: Faults) -> Fault:
        fault: Fault = eval(f"faults.{text}", {"faults": faults, "E": E})
        return fault

    return Scenario(does, text.replace("E.", "ErrorCode."), begin, late_s, count, slow)


def _failing(does: str, api: str, *errors: str, times: int = 2) -> Iterator[Scenario]:
    for error in errors:
        yield _scenario(does, f'fail("{api}", E.{error}, times={times})')


def _refusing(does: str, api: str, *errors: str, slow: bool = False) -> Iterator[Scenario]:
    for error in errors:
        yield _scenario(does, f'fail("{api}", E.{error})', slow=slow)


def _breaking(does: str, api: str) -> Iterator[Scenario]:
    for when in ("request", "before", "middle", "after"):
        yield _scenario(does, f'disconnect("{api}", "{when}", times=1)')


def _all() -> Iterator[Scenario]:
    yield from _failing(
        PRODUCE,
        "Produce",
        "NOT_LEADER_OR_FOLLOWER",
        "NOT_ENOUGH_REPLICAS",
        "REQUEST_TIMED_OUT",
        "KAFKA_STORAGE_ERROR",
        "UNKNOWN_TOPIC_OR_PARTITION",
    )
    yield from _refusing(
        PRODUCE,
        "Produce",
        "MESSAGE_TOO_LARGE",
        "TOPIC_AUTHORIZATION_FAILED",
        "INVALID_RECORD",
        "UNKNOWN_SERVER_ERROR",
        "INVALID_PRODUCER_EPOCH",
        "POLICY_VIOLATION",
    )
    yield from _refusing(PRODUCE, "Produce", "NOT_LEADER_OR_FOLLOWER", slow=True)
    yield from _failing(PRODUCE, "Metadata", "LEADER_NOT_AVAILABLE")
    yield _scenario(PRODUCE, 'delay("Produce", 0.5, times=1)', late_s=0.5)
    yield _scenario(PRODUCE, 'delay("Produce", 2, times=1)', slow=True)
    yield _scenario(PRODUCE, 'drop("Produce", times=1)', slow=True)
    yield from _breaking(PRODUCE, "Produce")
    yield _scenario(PRODUCE, 'throttle(700, "Produce", times=1)', late_s=0.6, count=2)
    yield _scenario(PRODUCE, "full_disk(times=3)")
    yield _scenario(PRODUCE, "full_disk()", slow=True)
    yield _scenario(PRODUCE, "slow_disk(500, times=1)", late_s=0.5)
    yield _scenario(PRODUCE, "refuse_connections()", slow=True)
    yield _scenario(PRODUCE, "storm(seed=7, rate=0.1)", count=25, slow=True)
    yield _scenario(PRODUCE_PLAIN, 'drop("Produce", times=1)', slow=True)
    yield from _breaking(PRODUCE_PLAIN, "Produce")
    yield from _failing(
        CONSUME,
        "Fetch",
        "NOT_LEADER_OR_FOLLOWER",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "OFFSET_OUT_OF_RANGE",
        "KAFKA_STORAGE_ERROR",
        "FENCED_LEADER_EPOCH",
        "FETCH_SESSION_ID_NOT_FOUND",
        "UNKNOWN_SERVER_ERROR",
        "CORRUPT_MESSAGE",
    )
    yield from _refusing(CONSUME, "Fetch", "TOPIC_AUTHORIZATION_FAILED")
    yield _scenario(CONSUME, 'delay("Fetch", 0.5, times=1)', late_s=0.5)
    yield _scenario(CONSUME, 'drop("Fetch", times=1)', slow=True)
    yield from _breaking(CONSUME, "Fetch")
    yield _scenario(CONSUME, 'throttle(500, "Fetch", times=1)')
    yield _scenario(CONSUME, "refuse_connections()", slow=True)
    yield _scenario(CONSUME, "storm(seed=7, rate=0.2)")
    yield from _failing(GROUP, "FindCoordinator", "COORDINATOR_NOT_AVAILABLE")
    yield from _failing(GROUP, "JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "UNKNOWN_MEMBER_ID")
    yield from _refusing(GROUP, "JoinGroup", "GROUP_AUTHORIZATION_FAILED")
    yield from _failing(GROUP, "SyncGroup", "REBALANCE_IN_PROGRESS", times=1)
    yield from _failing(GROUP, "OffsetFetch", "COORDINATOR_LOAD_IN_PROGRESS", "UNSTABLE_OFFSET_COMMIT", times=1)
    yield from _failing(GROUP, "OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", times=1)
    yield from _failing(GROUP, "OffsetCommit", "REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION", times=1)
    yield from _failing(GROUP, "OffsetCommit", "UNKNOWN_MEMBER_ID", "OFFSET_METADATA_TOO_LARGE", times=1)
    yield from _breaking(GROUP, "OffsetCommit")
    yield _scenario(GROUP, "storm(seed=3, rate=0.1)", slow=True)
    yield from _failing(TRANSACT, "InitProducerId", "CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS")
    yield from _refusing(TRANSACT, "InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    yield from _refusing(TRANSACT, "Produce", "TRANSACTION_ABORTABLE", "INVALID_PRODUCER_EPOCH")
    yield from _failing(TRANSACT, "EndTxn", "COORDINATOR_NOT_AVAILABLE", "CONCURRENT_TRANSACTIONS")
    yield from _refusing(TRANSACT, "EndTxn", "PRODUCER_FENCED", "INVALID_TXN_STATE")
    yield from _breaking(TRANSACT, "EndTxn")
    yield _scenario(TRANSACT, "storm(seed=7, rate=0.1)", slow=True)


SCENARIOS: Final = tuple(_all())
