"""The harness itself: which failures of a scenario make it run again on both sides."""

from __future__ import annotations

from collections import Counter

import pytest

from compat_tests.harness import report
from compat_tests.harness.running import run_on_all
from compat_tests.harness.scenarios import Scenario

SIDES = {"apache": "a:1", "kbroker": "k:1"}


class Flaky:
    """A scenario that fails a given number of times on a side, and records the names under which it ran."""

    def __init__(self, **failures: int) -> None:
        self.left = Counter(failures)
        self.runs: Counter[str] = Counter()

    def __call__(self, address: str, unique: str) -> object:
        side = {"a:1": "apache", "k:1": "kbroker"}[address]
        self.runs[side] += 1
        if self.left[side]:
            self.left[side] -= 1
            raise AssertionError(f"failed on {side}")
        return unique


@pytest.fixture(autouse=True)
def _own_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "AGAIN", [])


def test_apache_alone_is_asked_again_under_another_name() -> None:
    flaky = Flaky(apache=1)
    assert run_on_all(Scenario("c", "it", flaky), SIDES) == {"apache": "c-it-again", "kbroker": "c-it-again"}
    ((line, whole),) = report.AGAIN
    assert line == "c: it: failed on apache"
    assert whole.startswith("Traceback")


@pytest.mark.parametrize(
    ("failures", "runs"),
    [({"apache": 2}, 2), ({"kbroker": 1}, 1), ({"apache": 1, "kbroker": 1}, 1)],
    ids=["twice", "ours", "both"],
)
def test_every_other_failure_is_one(failures: dict[str, int], runs: int) -> None:
    flaky = Flaky(**failures)
    with pytest.raises(AssertionError, match="failed on") as raised:
        run_on_all(Scenario("c", "it", flaky), SIDES)
    assert raised.value.side in failures  # type: ignore[attr-defined]
    assert flaky.runs == {"apache": runs, "kbroker": runs}


def test_one_side_alone_is_never_asked_again() -> None:
    with pytest.raises(AssertionError):
        run_on_all(Scenario("c", "it", Flaky(apache=1)), {"apache": "a:1"})
    assert report.AGAIN == []
