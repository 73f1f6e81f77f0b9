"""The short form of `python -m tests.crash.many_segments`: more segments than descriptors."""

from __future__ import annotations

from pathlib import Path

from tests.crash.many_segments import ManySegments
from tests.figures import figure

SEGMENTS, PARTITIONS, LIMIT = 2000, 4, 256


def test_more_segments_than_descriptors(tmp_path: Path) -> None:
    work = ManySegments(tmp_path, SEGMENTS, PARTITIONS, LIMIT)
    try:
        work.run()
    finally:
        work.broker.end(clean=False)
    figure(f"{SEGMENTS} segments with {LIMIT} descriptors", "; ".join(work.figures))
