"""Which form of archive is at a path, and what is said of one that was begun in another form."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.pipeline.archive.opening import kind_at, new_place
from kbroker.pipeline.errors import PipelineError
from tests.pipeline.local_session import LocalSession

SIGNS = {"parquet": "_manifest/x.json", "iceberg": "metadata/version-hint.text", "delta": "_delta_log/0.json"}


@pytest.mark.parametrize("kind", SIGNS)
def test_a_form_is_known_by_its_files(tmp_path: Path, kind: str) -> None:
    assert kind_at(lambda name: (tmp_path / name).exists()) is None
    (tmp_path / SIGNS[kind]).parent.mkdir()
    (tmp_path / SIGNS[kind]).write_text("")
    assert kind_at(lambda name: (tmp_path / name).exists()) == kind
    other = next(each for each in SIGNS if each != kind)
    with pytest.raises(PipelineError, match=f"is in the format {kind}: archive with --format {kind}, or to another"):
        new_place(LocalSession(), str(tmp_path), other)
