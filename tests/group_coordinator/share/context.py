"""Share groups on a shard with a manual clock, and a share coordinator that the test controls."""

from __future__ import annotations

from typing import Any

from kbroker.coordination.shard import Outcome
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.groups.share_group import ShareGroup
from kbroker.group_coordinator.shard import GroupShard
from kbroker.group_coordinator.share.heartbeat import Heartbeat, validate
from kbroker.group_coordinator.share.state_partitions import Initialization
from kbroker.protocol.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from tests.group_coordinator.consumer_context import ConsumerContext

EAGER = GroupConfig(share_assignment_interval_ms=0)
"""A new target for every change immediately: only the heartbeats then determine what happens."""


class ShareContext(ConsumerContext):
    """A shard, the topics that it sees, and share members' heartbeats to it.

    `wanted` collects what the share coordinator must initialise; `initialise` reports that it has done so.
    """

    def __init__(self, config: GroupConfig | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(config or EAGER, *args, **kwargs)
        self.wanted: list[Initialization] = []

    def share_group(self, group_id: str = "g") -> ShareGroup:
        found = self.shard.groups.share(group_id)
        assert found is not None
        return found

    def share_beat(
        self,
        member_id: str,
        epoch: int,
        *topics: str,
        group: str = "g",
        rack: str | None = None,
        subscribes: bool = True,
    ) -> ShareGroupHeartbeatResponse:
        """Send a heartbeat; a failure becomes the coordinator's error response."""
        names = list(topics) if topics or not subscribes else None
        request = ShareGroupHeartbeatRequest(
            group_id=group, member_id=member_id, member_epoch=epoch, rack_id=rack, subscribed_topic_names=names
        )

        def decide(shard: GroupShard, now_ms: int) -> Outcome:
            validate(request)
            return shard.at(now_ms).share_heartbeats.heartbeat(request, "client", "/127.0.0.1", now_ms)

        reply = self.ask(
            decide, lambda code, message: ShareGroupHeartbeatResponse(error_code=code, error_message=message)
        )
        if not isinstance(reply, Heartbeat):
            response: ShareGroupHeartbeatResponse = reply
            return response
        if reply.initialization is not None:
            self.wanted.append(reply.initialization)
        return reply.response

    def share_state(self, decide: Any) -> Any:
        return self.ask(lambda shard, now: decide(shard.at(now).share_state))

    def initialise(self) -> None:
        """Report that the share coordinator has initialised everything in `wanted`."""
        for each in self.wanted:
            topics = {topic_id: list(offsets) for topic_id, offsets in each.offsets.items()}
            self.share_state(lambda state, each=each, topics=topics: state.initialized(each.group_id, topics))
        self.wanted.clear()

    def held(self, member_id: str, group: str = "g") -> dict[bytes, set[int]]:
        member = self.share_group(group).members[member_id]
        return {topic_id: set(indexes) for topic_id, indexes in member.assigned.items() if indexes}
