"""Offsets that expire together are removed, however small the largest batch of their log."""

from __future__ import annotations

import pytest

from kbroker.group_coordinator.config import GroupConfig
from kbroker.protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup
from kbroker.protocol.records import iter_batches, read_records

from .test_handlers import Node, commit_request


@pytest.mark.parametrize("max_bytes", [200, 1 << 20])
def test_all_that_has_expired_goes(max_bytes: int) -> None:
    node = Node(GroupConfig())
    groups = [f"group-{n}" for n in range(40)]
    for group in groups:
        node.ask(commit_request(("t", bytes(16), (0, 1)), group=group), 9)
    node.writer.max_bytes = max_bytes
    config = node.groups.config
    node.clock.ms += config.offsets_retention_ms + config.offsets_retention_check_interval_ms
    node.groups.tick()
    for group in groups:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
        assert node.ask(request, 8).groups[0].topics == []
    last: dict[bytes | None, bytes | None] = {}
    for batch in node.writer.batches:
        for _, header in iter_batches(batch):
            last.update((r.key, r.value) for r in read_records(batch[: header.size], max_bytes=1 << 20))
    assert len(last) >= 2 * len(groups)
    assert set(last.values()) == {None}
