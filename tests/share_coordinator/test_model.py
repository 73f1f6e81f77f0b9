"""The share coordinator against a plain model: any sequence of operations, failures, prunings and restarts."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kbroker.protocol.errors import ErrorCode
from kbroker.share_coordinator.share_partition_state import SharePartition
from tests.tries import tries

from .context import OTHER, TOPIC, Context

PLACES = [SharePartition("g", TOPIC, 0), SharePartition("g", TOPIC, 1), SharePartition("h", OTHER, 0)]
EPOCHS = st.integers(0, 3)
BATCHES = st.lists(
    st.builds(
        lambda first, length, state, count: (first, first + length, state, count),
        st.integers(0, 30),
        st.integers(0, 6),
        st.sampled_from([0, 2, 4]),
        st.integers(1, 3),
    ),
    max_size=4,
)


class Model:
    """The known state of a share partition: the strongest state of each offset."""

    def __init__(self, epoch, start):
        self.leader_epoch, self.state_epoch, self.start, self.offsets = 0, epoch, start, {}

    def write(self, start, batches):
        self.start = max(self.start, start)
        for first, last, state, count in batches:
            for offset in range(first, last + 1):
                self.offsets[offset] = max(self.offsets.get(offset, (0, 0)), (count, state))
        self.offsets = {offset: each for offset, each in self.offsets.items() if offset >= self.start}


class Shares(RuleBasedStateMachine):
    """Checks answers, the state of each offset, fences, and that a restart changes no state."""

    def __init__(self):
        super().__init__()
        self.context = Context(updates_per_snapshot=2)
        self.known: dict[SharePartition, Model] = {}
        self.fences: dict[SharePartition, tuple[int, int]] = {}

    def asked(self, fail, ask):
        self.context.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS if fail else ErrorCode.NONE
        answer = ask()
        self.context.fail_with = ErrorCode.NONE
        code = answer if isinstance(answer, ErrorCode) else answer.error_code
        return code, answer

    @rule(place=st.sampled_from(PLACES), epoch=EPOCHS, start=st.integers(-1, 20), fail=st.booleans())
    def initialize(self, place, epoch, start, fail):
        code, _ = self.asked(fail, lambda: self.context.initialize(epoch, start, place))
        leader, state = self.fences.get(place, (0, 0))
        if epoch < state:
            assert code is ErrorCode.FENCED_STATE_EPOCH
        elif fail:
            assert code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            assert code is ErrorCode.NONE
            self.known[place] = Model(epoch, start)
            self.fences[place] = leader, epoch

    @rule(place=st.sampled_from(PLACES), leader_epoch=EPOCHS, fail=st.booleans())
    def read(self, place, leader_epoch, fail):
        code, answer = self.asked(fail, lambda: self.context.read(leader_epoch, place))
        leader, state = self.fences.get(place, (0, 0))
        model = self.known.get(place)
        if model is None:
            assert code is ErrorCode.INVALID_REQUEST
        elif leader_epoch < leader:
            assert code is ErrorCode.FENCED_LEADER_EPOCH
        elif fail and leader_epoch > leader:
            assert code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            assert code is ErrorCode.NONE
            assert answer[1:3] == (model.state_epoch, model.start)
            self.fences[place] = leader_epoch, state

    @rule(
        place=st.sampled_from(PLACES),
        epoch=EPOCHS,
        leader_epoch=EPOCHS,
        start=st.integers(-1, 30),
        batches=BATCHES,
        fail=st.booleans(),
    )
    def write(self, place, epoch, leader_epoch, start, batches, fail):
        code, _ = self.asked(fail, lambda: self.context.write(batches, start, epoch, leader_epoch, place=place))
        leader, state = self.fences.get(place, (0, 0))
        if place not in self.known:
            assert code is ErrorCode.INVALID_REQUEST
        elif leader_epoch < leader:
            assert code is ErrorCode.FENCED_LEADER_EPOCH
        elif epoch < state:
            assert code is ErrorCode.FENCED_STATE_EPOCH
        elif fail:
            assert code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            assert code is ErrorCode.NONE
            self.known[place].write(start, batches)

    @rule(place=st.sampled_from(PLACES), fail=st.booleans())
    def delete(self, place, fail):
        code, _ = self.asked(fail, lambda: self.context.delete(place))
        if place in self.known and fail:
            assert code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            assert code is ErrorCode.NONE
            self.known.pop(place, None)
            self.fences.pop(place, None)

    @rule(ms=st.sampled_from([1_000, 100_000, 400_000]))
    def advance(self, ms):
        self.context.advance(ms)

    @rule(pruned=st.booleans())
    def restart(self, pruned):
        before = self.context.states
        self.context = self.context.restarted(pruned=pruned)
        assert self.context.states == before
        # Fences are as old as the log: those before a later initialisation may be gone with their records.
        for place, held in self.context.states.items():
            leader, state = self.fences[place]
            if pruned:
                self.fences[place] = self.context.shard._held(place).leader_epoch, state
            assert self.context.shard._held(place).leader_epoch <= leader
            assert held.state_epoch == state

    @invariant()
    def states_are_the_models(self):
        states = self.context.states
        assert set(states) == set(self.known)
        for place, model in self.known.items():
            state = states[place]
            assert (state.state_epoch, state.start_offset) == (model.state_epoch, model.start)
            offsets = {}
            for first, last, delivery_state, count in state.batches:
                for offset in range(first, last + 1):
                    assert offset not in offsets
                    offsets[offset] = (count, delivery_state)
            assert offsets == model.offsets


TestShares = Shares.TestCase
TestShares.settings = settings(max_examples=tries(60), stateful_step_count=40)
