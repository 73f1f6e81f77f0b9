"""The replay for verbs and the console, compared with the index of the broker, over random logs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.schedules.language import Every
from kbroker.schedules.marks import Begin, Done, Due, Intent
from kbroker.schedules.pending import PendingRecords
from kbroker.scheduling.index import IN_MEMORY, Cancel, Event, Index, Lane, Marked, NewLane, Positions, Put, open_index

NOW = 1_750_000_000_000
LANE = 0

STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "every", "cancel", "intend", "done", "fail", "split"]), st.integers(0, 5)),
    max_size=60,
)


class Both:
    """A log that is written step by step, and replayed by both."""

    def __init__(self) -> None:
        self.pending = PendingRecords("target")
        self.pending.mark(0, Begin("target"))
        self.index: Index = open_index(IN_MEMORY, "boot")
        self.apply(NewLane(LANE, Lane("target", 0)))
        self.offset = 1
        self.intents: dict[int, Intent] = {}
        self.repeats: dict[int, Every] = {}

    def apply(self, event: Event) -> None:
        self.index.apply([event], Positions())

    def mark(self, mark: Intent | Done) -> None:
        self.pending.mark(self.offset, mark)
        self.apply(Marked(self.offset, mark))

    def step(self, what: str, number: int) -> None:
        key = None if number == 5 else b"key-%d" % number
        if what in ("put", "every"):
            repeats = what == "every" and key is not None
            header = ("x-schedule", b"@every 5s") if repeats else ("x-delay", b"1000")
            due_ms = NOW + self.offset + (5000 if repeats else 1000)
            self.pending.take(self.offset, NOW + self.offset, key, b"v", (header,))
            self.apply(Put(self.offset, LANE, due_ms, None if key is None else number))
            if repeats:
                self.repeats[self.offset] = Every(due_ms, 5000)
        elif what == "cancel" and key is not None:
            self.pending.take(self.offset, NOW, key, None, ())
            self.apply(Cancel(number))
        elif what == "intend":
            rows = self.index.due(LANE, NOW + 10**9, number + 1)
            if rows:
                dues = tuple(Due(row.offset, row.due_ms) for row in rows)
                self.intents[self.offset] = intent = Intent(7, 0, 0, b"\0" * 16, "target", 0, dues)
                self.mark(intent)
        elif what in ("done", "fail", "split") and self.intents:
            at = sorted(self.intents)[number % len(self.intents)]
            dues = self.intents.pop(at).records
            if what == "done":
                following = tuple(
                    Due(due.offset, self.repeats[due.offset].next_after(due.due_ms) or 0)
                    for due in dues
                    if due.offset in self.repeats
                )
                self.mark(Done(at, following=following))
            else:
                self.mark(Done(at, error_code=10, retry_ms=NOW if what == "fail" else -1, message="no"))
        self.offset += 1

    def of_index(self) -> dict[int, int]:
        return {row.offset: row.due_ms for row in self.index.due(LANE, NOW + 10**12, 10**6)}


@given(STEPS)
def test_both_know_the_same(steps: list[tuple[str, int]]) -> None:
    both = Both()
    try:
        for what, number in steps:
            both.step(what, number)
            assert both.pending.due == both.of_index(), (what, number)
            assert set(both.pending.delivering) == {
                due.offset for intent in both.index.outstanding.values() for due in intent.mark.records
            }
    finally:
        both.index.close()
