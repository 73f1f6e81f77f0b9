"""The log of a Delta table: the newest note of an archive among the commits of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline.archive.tables.delta import DeltaLog
from kbroker.pipeline.errors import PipelineError
from tests.pipeline.local_session import local_files


def log(folder: Path, *commits: dict[str, Any] | None) -> DeltaLog:
    """Return a log with these commits; None is one that was deleted."""
    (folder / "_delta_log").mkdir()
    for version, commit in enumerate(commits):
        if commit is not None:
            lines = [{"protocol": {}}, {"commitInfo": commit}, {"add": {"path": '"commitInfo"'}}]
            text = "\n".join(map(json.dumps, lines))
            (folder / "_delta_log" / f"{version:020d}.json").write_text(text)
    for other in ("00000000000000000000.crc", "00000000000000000001.checkpoint.parquet", "_last_checkpoint", "x.json"):
        (folder / "_delta_log" / other).write_text("{")
    return DeltaLog(local_files(folder))


def later(text: str) -> dict[str, Any]:
    return {"operation": "WRITE", "userMetadata": json.dumps({"kbroker.archive": text}, separators=(",", ":"))}


def test_newest_note_is_found_below_commits_of_others(tmp_path: Path) -> None:
    others = [{"operation": "OPTIMIZE"}, {"operation": "WRITE", "userMetadata": "{"}, {"userMetadata": 7}]
    assert log(tmp_path, later("old"), later("new"), *others).note() == "new"


def test_restored_table_has_the_note_of_the_version_that_it_restored(tmp_path: Path) -> None:
    restored = {"operation": "RESTORE", "operationParameters": {"version": "1", "timestamp": None}}
    found = log(tmp_path, later("0"), later("1"), later("2"), restored, {"operation": "OPTIMIZE"})
    assert found.versions() == {0, 1, 2, 3, 4}
    assert found.note() == "1"


def test_table_of_somebody_else_has_no_note(tmp_path: Path) -> None:
    assert log(tmp_path, {"operation": "CREATE TABLE"}, {}).note() is None


@pytest.mark.parametrize(
    ("commits", "why"),
    [
        ((None, None, {"operation": "WRITE"}), "no longer in its log"),
        ((later("0"), {"operation": "RESTORE", "operationParameters": {"version": None}}), "was restored to a time"),
        ((None, later("1"), {"operation": "RESTORE", "operationParameters": {"version": "0"}}), "no longer in its log"),
    ],
)
def test_log_without_the_notes_is_refused(tmp_path: Path, commits: tuple[Any, ...], why: str) -> None:
    with pytest.raises(PipelineError, match=f"does not say what was archived: .*{why}; archive to another place"):
        log(tmp_path, *commits).note()


def test_damaged_commit_is_told_in_a_line(tmp_path: Path) -> None:
    found = log(tmp_path, later("0"))
    (tmp_path / "_delta_log" / f"{1:020d}.json").write_text('{"commitInfo": {')
    with pytest.raises(PipelineError, match=r"00000000000000000001\.json is damaged: [^\n]*$"):
        found.note()
