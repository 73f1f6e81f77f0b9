"""Random faults that Kafka permits. In a cluster with failures they can happen to any request.

Owns the list of faults that are legal for each API, and the default share of requests with a fault. Never decides which
requests meet a fault: faults.py does.
"""

from __future__ import annotations

import random
from typing import Final

from kbroker.protocol.errors import ErrorCode as E
from kbroker.testing.filters import When

USUAL_RATE: Final = 0.05
"""The default share of requests that a storm affects."""
_LOADS: Final = (E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE)
_TRANSACTION: Final = (*_LOADS, E.CONCURRENT_TRANSACTIONS)
ERRORS: Final[dict[str, tuple[E, ...]]] = {
    "Produce": (E.NOT_LEADER_OR_FOLLOWER, E.NOT_ENOUGH_REPLICAS, E.KAFKA_STORAGE_ERROR),
    "Fetch": (E.NOT_LEADER_OR_FOLLOWER, E.KAFKA_STORAGE_ERROR, E.FETCH_SESSION_ID_NOT_FOUND),
    "ListOffsets": (E.NOT_LEADER_OR_FOLLOWER, E.LEADER_NOT_AVAILABLE),
    "Metadata": (E.LEADER_NOT_AVAILABLE,),
    "FindCoordinator": (E.COORDINATOR_NOT_AVAILABLE,),
    "JoinGroup": (*_LOADS, E.UNKNOWN_MEMBER_ID),
    "SyncGroup": (*_LOADS, E.REBALANCE_IN_PROGRESS),
    "Heartbeat": (*_LOADS, E.REBALANCE_IN_PROGRESS),
    "ConsumerGroupHeartbeat": _LOADS,
    "OffsetCommit": _LOADS,
    # Kafka's coordinator errors are omitted: librdkafka returns them to its application and does not retry.
    "OffsetFetch": (E.UNSTABLE_OFFSET_COMMIT,),
    "InitProducerId": _TRANSACTION,
    "AddPartitionsToTxn": _TRANSACTION,
    "AddOffsetsToTxn": _TRANSACTION,
    "TxnOffsetCommit": _LOADS,
    "EndTxn": _TRANSACTION,
}
"""The errors after which a client must retry, by API. Requests of other APIs are delayed, or lose their connection."""
_LONGEST_DELAY_MS: Final = 200
Squall = tuple[str, float | When | E]


def squall(api: str, version: int, chance: random.Random) -> Squall:
    """Return the outcome of one request, as ("delay", ms), ("disconnect", When) or ("fail", error)."""
    kind = chance.choice(("delay", "disconnect", "fail", "fail"))
    errors = [each for each in ERRORS.get(api, ()) if not (each == E.FETCH_SESSION_ID_NOT_FOUND and version < 7)]
    if kind == "fail" and errors:
        return "fail", chance.choice(errors)
    if kind == "disconnect":
        return "disconnect", chance.choice(list(When))
    return "delay", chance.random() * _LONGEST_DELAY_MS
