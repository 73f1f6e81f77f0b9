"""Which records of the coordinators' topics can be read, kind by kind, as Kafka answers it (compat_tests/wire)."""

from __future__ import annotations

import pytest

from compat_tests.wire.test_unreadable_records import GROUPS, TRANSACTIONS
from kbroker.cluster_state import ClusterState
from kbroker.coordination.shard import CoordinatorRecord, Shard
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.shard import GroupShard
from kbroker.group_coordinator.topics import Topics
from kbroker.protocol.errors import Malformed
from kbroker.txn.records import transaction_record
from kbroker.txn.shard import Identity
from kbroker.txn.transaction import Transaction
from tests.txn.context import Context

READ_AS_TRANSACTIONS = frozenset(
    {
        "fine, first",
        "fine, last",
        "bytes left over in the value",
        "topic that is no UTF-8",
        "unknown key version",
        "unknown key version, empty value",
        "id that is no UTF-8",
        "bytes left over in the key",
        "tombstone of an unknown id",
        "tombstone of an unknown key version",
        "id of no bytes",
    }
)
READ_AS_GROUPS = frozenset(
    {
        "fine, first",
        "fine, last",
        "bytes left over in the value",
        "metadata that is no UTF-8",
        "unknown key type",
        "negative key type",
        "group id that is no UTF-8",
        "topic that is no UTF-8",
        "bytes left over in the key",
        "tombstone of an unknown group",
        "group of another kind's id",
        "member of a group that is not there",
        "legacy offset",
    }
)


def reads(shard: Shard, key: bytes, value: bytes | None) -> bool:
    try:
        shard.replay(0, -1, key, value)
    except (Malformed, ValueError):
        return False
    return True


@pytest.mark.parametrize("kind", [kind for kind, (key, _) in TRANSACTIONS.items() if key is not None])
def test_a_record_of_a_transaction(kind: str) -> None:
    key, value = TRANSACTIONS[kind]
    assert reads(Context().shard, key or b"", value) == (kind in READ_AS_TRANSACTIONS)


def test_ids_around_a_record_that_cannot_be_read_are_served() -> None:
    before, after = (transaction_record(Transaction(name, 7, 5), 1) for name in ("before", "after"))
    key, value = TRANSACTIONS["empty value"]
    context = Context(log=[before, CoordinatorRecord(key or b"", value), after])
    assert set(context.shard.transactions) == {"before", "after"}
    assert context.init(name="after") == Identity(7, 6)


@pytest.mark.parametrize("kind", [kind for kind, (key, _) in GROUPS.items() if key is not None])
def test_a_record_of_a_group(kind: str) -> None:
    key, value = GROUPS[kind]
    shard = GroupShard(GroupConfig(), Topics(ClusterState("c")))
    assert reads(shard, key or b"", value) == (kind in READ_AS_GROUPS)


def test_an_id_that_is_no_utf_8_has_its_replacement() -> None:
    shard = GroupShard(GroupConfig(), Topics(ClusterState("c")))
    key, value = GROUPS["group id that is no UTF-8"]
    shard.replay(0, -1, key or b"", value)
    assert shard.groups.get("\ufffd\ufffd") is not None
