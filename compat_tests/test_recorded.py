"""Which parts of an observation depend on the time of the run, and which observations are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compat_tests.harness import recorded
from compat_tests.harness.recorded import HOUR_AGO_MS, shifted


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "DIRECTORY", tmp_path)
    recorded._of.cache_clear()


def test_times_are_told_from_their_bases() -> None:
    seen = {
        "at": [HOUR_AGO_MS, HOUR_AGO_MS + 5],
        f"{HOUR_AGO_MS + 7}": f"{HOUR_AGO_MS - 1}:x",
        "others": [0, -1, 1_700_000_000_000, "2020-01-01", "1700000000000", True, None, 1.5],
    }
    told = shifted(seen)
    assert told == {
        "at": ["hour ago +0 ms", "hour ago +5 ms"],
        "hour ago +7 ms": "hour ago -1 ms:x",
        "others": seen["others"],
    }
    json.dumps(told)


def test_what_is_the_same_in_two_runs_is_used() -> None:
    for _ in range(2):
        recorded.record("client", "same", {"a": [1]})
        recorded._of.cache_clear()
    assert recorded.find("client", "same") == {"a": [1]}
    assert recorded.find("client", "other") is None
    assert recorded.find("stranger", "same") is None


def test_what_changes_and_what_is_large_is_asked_live() -> None:
    for seen in (1, 2, 2):
        recorded.record("client", "changing", seen)
    recorded.record("client", "large", "x" * recorded.MOST_BYTES)
    assert recorded.find("client", "changing") is None
    assert recorded.find("client", "large") is None


def test_a_recording_of_another_version_does_not_count(tmp_path: Path) -> None:
    text = json.dumps({"apache kafka": "4.2.0", "scenarios": {"old": 1}})
    (tmp_path / "client.json").write_text(text)
    assert recorded.find("client", "old") is None


def test_the_way_of_asking_is_one_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBROKER_KAFKA", "sometimes")
    with pytest.raises(AssertionError, match="recorded, live or record"):
        recorded.mode()
