"""A key that is said to have an effect is read somewhere; the docs page rests on that."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from kbroker.config.table import BROKER, TOPIC
from kbroker.log.log_config import LogConfig

PACKAGE = Path(__file__).parents[2] / "kbroker"
READERS = [p for p in PACKAGE.rglob("*.py") if p.parent.name != "config" or p.name in ("server_config.py", "alter.py")]
SOURCE = "\n".join(path.read_text() for path in READERS)


def test_topic_keys() -> None:
    in_log = {field.name.replace("_", ".") for field in fields(LogConfig)}
    unread = [n for n, k in TOPIC.items() if k.effect and n not in in_log and f'"{n}"' not in SOURCE]
    assert unread == []


def test_broker_keys() -> None:
    defaults = {synonym.name for key in TOPIC.values() if key.effect for synonym in key.synonyms}
    unread = [n for n, k in BROKER.items() if k.effect and n not in defaults and f'"{n}"' not in SOURCE]
    assert unread == []
