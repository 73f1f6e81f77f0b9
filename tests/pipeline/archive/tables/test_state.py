"""The note in a table's commits: it says what the manifest says, and a damaged one is told in a line."""

from __future__ import annotations

import json

import pytest

from kbroker.pipeline.archive.manifest import Entry, Manifest
from kbroker.pipeline.archive.tables.state import decode, encode
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ranges import Partition, Range, Sums

T0, T1 = Partition("t", 0), Partition("t.1", 1)
FIRST = Entry(
    "a",
    "archive",
    "x",
    (Range(T0, 0, 5, Sums(4, (1 << 64) - 1)), Range(T1, 0, 3)),
    (),
    queries={"q": 7},
    topics={"t": "id"},
)
SECOND = Entry("b", "archive", "y", (Range(T0, 5, 9, Sums(4, 3)),), (Range(T0, 5, 6),), queries={"q": 8, "r": 0})


def test_note_says_what_the_manifest_says() -> None:
    before = Manifest([FIRST, SECOND])
    text = encode(before, "date,hour", "z")
    entry, partition_by = decode(text, "here")
    after = Manifest([entry])
    assert partition_by == "date,hour"
    assert after.ranges == {T0: [Range(T0, 0, 9, Sums(8, 2))], T1: [Range(T1, 0, 3)]}
    assert (after.gaps, after.queries, after.topics) == (before.gaps, {"q": 8, "r": 0}, {"t": "id"})
    assert encode(after, partition_by, "z") == text
    assert entry.name != decode(encode(before, "date", "z"), "here")[0].name


def test_note_of_a_new_table_is_empty() -> None:
    entry, _ = decode(encode(Manifest(()), "date", "z"), "here")
    assert Manifest([entry]).ends() == {}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", '{"format": 1}', encode(Manifest([FIRST]), "date", "z").replace('"ranges":{', '"ranges":[{')],
)
def test_damaged_note_is_refused(text: str) -> None:
    with pytest.raises(PipelineError, match="the note of the archived offsets in here is damaged"):
        decode(text, "here")


def test_note_of_a_later_version_is_refused() -> None:
    fields = json.loads(encode(Manifest([FIRST]), "date", "z"))
    with pytest.raises(PipelineError, match="too new for this"):
        decode(json.dumps({**fields, "format": 2}), "here")
