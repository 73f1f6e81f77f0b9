"""Random lives of a group: members join, vanish, sync, commit, bounce; the coordinator moves; appends fail.

Checked at every step: G1 each partition has one owner in a generation, G2 requests of an old generation are refused, G3
committed offsets survive a replay, G5 a rebalance always ends, G6 a static bounce keeps generation and assignment, G7
group.max.size, G8 offsets of a group with members do not expire.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.groups.classic_group import COMPLETING, DEAD, EMPTY, PREPARING, STABLE
from kbroker.protocol.errors import ErrorCode
from tests.coordination.still import Asked
from tests.group_coordinator.context import Context
from tests.tries import tries

MAX_SIZE = 4
SESSION_MS = 10_000
REBALANCE_MS = 20_000
ACCEPTABLE_JOIN_ERRORS = {
    ErrorCode.NONE,
    ErrorCode.MEMBER_ID_REQUIRED,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


class Client:
    """One consumer, with its own view of its state."""

    def __init__(self, instance: str | None) -> None:
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.parked: Asked | None = None
        self.leads = False


class GroupLife(RuleBasedStateMachine):
    clients = Bundle("clients")

    @initialize()
    def begin(self) -> None:
        self.c = Context(GroupConfig(max_size=MAX_SIZE))
        self.members: list[Client] = []
        self.committed: dict[int, int] = {}
        self.owners: dict[tuple[int, bytes], str] = {}
        self.instances: dict[str, Client] = {}

    # -- clients

    @rule(target=clients, instances=st.lists(st.sampled_from([None, None, None, "i", "j"]), min_size=1, max_size=3))
    def new_clients(self, instances: list[str | None]) -> Any:
        made = [Client(instance) for instance in instances]
        self.members += made
        return multiple(*made)

    @rule(client=clients)
    def join(self, client: Client) -> None:
        if client.parked is not None and client.parked.answer is None:
            return
        client.parked = self.c.join(
            client.member_id, instance=client.instance, session=SESSION_MS, rebalance=REBALANCE_MS
        )
        self.hear(client)

    def hear(self, client: Client) -> None:
        """Let a client process its JoinGroup response, if there is one."""
        if client.parked is None or client.parked.answer is None:
            return
        answer, client.parked = client.parked.answer, None
        code = ErrorCode(answer.error_code)
        assert code in ACCEPTABLE_JOIN_ERRORS
        if code is ErrorCode.NONE:
            client.member_id, client.generation = answer.member_id, answer.generation_id
            client.leads = bool(answer.members) and not answer.skip_assignment
            assert client.leads is (answer.leader == answer.member_id) or answer.skip_assignment
        elif code is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
        else:
            client.member_id, client.generation = "", -1

    @rule(client=clients)
    def sync(self, client: Client) -> None:
        self.hear(client)
        if client.parked is not None:
            return
        members = list(self.c.group().members) if "g" in self.c.classic_groups else []
        assigned = {m: f"part-{i}".encode() for i, m in enumerate(members)} if client.leads else {}
        generation = client.generation
        parked = self.c.sync(client.member_id, generation, assigned, instance=client.instance)
        group = self.c.classic_groups.get("g")
        if group is None or generation != group.generation:
            if parked.answer is None:  # it may refer to state that the log has not committed yet
                assert self.c.lag
                self.c.catch_up()
            assert parked.answer.error_code != ErrorCode.NONE  # G2

    @rule(missing=st.integers(0, 3))
    def settle(self, missing: int) -> None:
        """Let all clients except some behave correctly: join until they are members, then sync."""
        busy = self.members[missing:]
        for _ in range(2):
            for client in busy:
                self.join(client)
        self.c.advance(SESSION_MS - 1)
        for client in busy:
            self.hear(client)
        for client in sorted(busy, key=lambda client: client.leads):
            self.sync(client)

    @rule(client=clients)
    def heartbeat(self, client: Client) -> None:
        self.hear(client)
        code = self.c.heartbeat(client.member_id, client.generation, instance=client.instance)
        group = self.c.classic_groups.get("g")
        if code is ErrorCode.NONE:
            assert group is not None
            assert group.generation == client.generation
            assert group.state in (COMPLETING, STABLE)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            assert group is not None
            assert group.state is PREPARING
            assert client.member_id in group.members  # G10

    @rule(client=clients, partition=st.integers(0, 3), offset=st.integers(0, 1000))
    def commit(self, client: Client, partition: int, offset: int) -> None:
        self.hear(client)
        group = self.c.classic_groups.get("g")
        current = group is not None and client.generation == group.generation and client.member_id in group.members
        before = self.c.fetch(partition=partition)[0]
        code = self.c.commit(
            offset,
            member_id=client.member_id,
            generation=client.generation,
            instance=client.instance,
            partition=partition,
        )
        nobody = client.generation < 0 and (group is None or group.state is EMPTY)
        if code is ErrorCode.NONE:
            assert current or nobody  # G2
            self.committed[partition] = offset
        else:
            assert self.c.fetch(partition=partition)[0] == before  # G2

    @rule(client=consumes(clients))
    def vanish(self, client: Client) -> None:
        """Vanish without LeaveGroup."""
        self.members.remove(client)

    @rule(client=consumes(clients))
    def leave(self, client: Client) -> None:
        self.hear(client)
        self.members.remove(client)
        if "g" in self.c.classic_groups and client.member_id:
            self.c.leave((client.member_id, client.instance))

    @rule(target=clients, client=consumes(clients))
    def bounce(self, client: Client) -> Any:
        """Restart a static member without its member id (G6)."""
        self.hear(client)
        self.members.remove(client)
        if client.instance is None or client.parked is not None:
            return multiple()
        back = Client(client.instance)
        self.members.append(back)
        group = self.c.classic_groups.get("g")
        held = group is not None and group.static_members.get(client.instance) == client.member_id
        # A full group refuses even its own static members if they send no id, as Kafka's does.
        stable = group is not None and group.state is STABLE and len(group.members) < MAX_SIZE
        assignment = group.members[client.member_id].assignment if group is not None and held else b""
        generation = group.generation if group is not None else -1
        self.join(back)
        if held and stable and self.c.fail_with is ErrorCode.NONE and not self.c.lag:
            assert back.generation == generation
            synced = self.c.sync(back.member_id, generation, instance=back.instance).answer
            assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, assignment)
            assert (
                self.c.heartbeat(client.member_id, generation, instance=client.instance) is ErrorCode.FENCED_INSTANCE_ID
            )
        return back

    # -- the world

    @rule(ms=st.sampled_from([1, 1_000, 3_000, 9_999, 20_000]))
    def time_passes(self, ms: int) -> None:
        self.c.advance(ms)
        for client in self.members:
            self.hear(client)

    @rule(fails=st.booleans())
    def log_fails(self, fails: bool) -> None:
        self.c.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS if fails else ErrorCode.NONE

    @rule(lags=st.booleans())
    def followers_lag(self, lags: bool) -> None:
        """Let the high watermark lag, or follow every append."""
        self.c.lag = lags
        if not lags:
            self.c.catch_up()

    @rule(code=st.sampled_from([ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT]))
    def high_watermark_moves(self, code: ErrorCode) -> None:
        self.c.catch_up(code)

    @rule()
    def coordinator_moves(self) -> None:
        """Move the coordinator (G3, G4, G6): only the log remains; parked requests are redirected."""
        old = self.c
        old.catch_up(ErrorCode.NOT_COORDINATOR)
        old.unload()
        for client in self.members:
            if client.parked is not None:
                assert client.parked.answer is not None
                client.parked = None
                client.member_id, client.generation = "", -1
        self.c = old.restarted()

    @rule()
    def everybody_stops(self) -> None:
        """Let all members fall silent (G5): whatever is in progress ends."""
        self.c.fail_with, self.c.lag = ErrorCode.NONE, False
        self.c.catch_up()
        self.c.advance(5 * 60_000 + 2 * (SESSION_MS + REBALANCE_MS) + 10_000)
        for client in self.members:
            self.hear(client)
        group = self.c.classic_groups.get("g")
        assert group is None or group.state is EMPTY
        assert all(client.parked is None for client in self.members)

    # -- always

    @invariant()
    def size_is_limited(self) -> None:
        """Check that the group does not exceed its maximum size (G7)."""
        group = self.c.classic_groups.get("g")
        if group is not None and group.state in (COMPLETING, STABLE):
            assert len(group.members) <= MAX_SIZE

    @invariant()
    def one_owner(self) -> None:
        """Check that each partition has one owner (G1); a static member passes its part only to its own successor."""
        group = self.c.classic_groups.get("g")
        if group is not None and group.state is STABLE:
            parts = [m.assignment for m in group.members.values() if m.assignment]
            assert len(parts) == len(set(parts))

    @invariant()
    def offsets_stay(self) -> None:
        """Check that committed offsets stay (G3, G8)."""
        for partition, offset in self.committed.items():
            assert self.c.fetch(partition=partition)[0] == offset

    @invariant()
    def a_rebalance_has_an_end(self) -> None:
        """Check that a rebalance ends (G5): each phase that waits for others has a timer."""
        group = self.c.classic_groups.get("g")
        if group is None:
            return
        if group.state is PREPARING:
            assert ("join", "g") in self.c.timers
        if group.state is COMPLETING:
            assert ("sync", "g") in self.c.timers or not group.pending_syncs
        if group.state is not DEAD:
            for member in group.members.values():
                alive = member.awaiting_join is not None or member.awaiting_sync is not None
                assert ("session", "g", member.member_id) in self.c.timers or alive

    @invariant()
    def counts_are_right(self) -> None:
        group = self.c.classic_groups.get("g")
        if group is None or group.state is DEAD:
            return
        assert set(group.static_members.values()) == {m.member_id for m in group.members.values() if m.instance_id}
        assert group.leader_id is None or group.leader_id in group.members
        assert group.pending_syncs <= set(group.members)
        supported = {name: count for name, count in group._supported.items() if count}
        assert supported == ({"range": len(group.members)} if group.members else {})


TestGroupLife = GroupLife.TestCase
TestGroupLife.settings = settings(
    max_examples=tries(150), stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
