"""The search for records that stop groups gives way to other work, however many groups there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.broker.stuck_groups import StuckGroups
from kbroker.long_work import step

GROUPS = 200


class Shard:
    """The groups of a shard, of which all have an offset in each of some partitions."""

    def __init__(self, partitions: int, members: dict[str, Any]) -> None:
        self.looked = 0
        self.offsets = SimpleNamespace(
            newest=7,
            groups=lambda: [f"group{number}" for number in range(GROUPS)],
            of_group=lambda _group: ({"topic": dict.fromkeys(range(partitions), (7, SimpleNamespace(offset=3)))}, {}),
        )
        self.groups = SimpleNamespace(get=self._get)
        self._members = members

    def _get(self, _group: str) -> Any:
        self.looked += 1
        return SimpleNamespace(members=self._members)

    def partition(self, _key: object) -> Any:
        self.looked += 1
        return SimpleNamespace(log=SimpleNamespace(high_watermark=3))


@pytest.mark.parametrize(
    ("partitions", "members"), [(1, {}), (100, {"m": None})], ids=["no members", "many partitions"]
)
def test_a_search_gives_way_after_each_group_and_partition(partitions: int, members: dict[str, Any]) -> None:
    shard = Shard(partitions, members)
    state: Any = SimpleNamespace(brokers={1: None, 2: None}, topics={})
    any_of: Any = SimpleNamespace
    search = StuckGroups(
        1, any_of(loaded=lambda: [shard]), any_of(get=shard.partition), any_of(), any_of(), lambda: state,
        any_of(monotonic_ms=lambda: 0.0), any_of(),
    )  # fmt: skip
    for _ in range(2):  # the second look knows the offsets
        looking = search._hosts_where_offsets_stand()
        before = shard.looked
        while not step(looking):
            assert shard.looked <= before + 2
            before = shard.looked
        assert shard.looked <= before + 2
    assert shard.looked >= 2 * GROUPS
