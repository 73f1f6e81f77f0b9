"""The docs page is what the table says."""

from __future__ import annotations

from pathlib import Path

from kbroker.config.docs import render
from kbroker.config.table import BROKER, GROUP, TOPIC

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `make docs`"


def test_every_key_is_documented_in_a_sentence() -> None:
    for table in (TOPIC, BROKER, GROUP):
        for key in table.values():
            assert key.doc[0].isupper(), key.name
            assert key.doc.endswith("."), key.name
            assert f"`{key.name}`" in render()
