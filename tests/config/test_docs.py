"""The docs page matches the table."""

from __future__ import annotations

import re
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


def test_a_key_has_an_effect_if_and_only_if_the_code_reads_it() -> None:
    package = Path(__file__).parents[2] / "kbroker"
    # The command line and the pipeline use settings of clients.
    others = ("config", "cli", "pipeline")
    outside = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in others]
    code = "".join(path.read_text(encoding="utf-8") for path in outside)
    code += (package / "config" / "server_config.py").read_text(encoding="utf-8")
    # The log reads a topic's settings as fields named like their keys.
    fields = "".join(path.read_text(encoding="utf-8") for path in outside if path.name != "log_config.py")
    fields += "".join((package / "log" / "log_config.py").read_text(encoding="utf-8").partition("@property")[1:])
    topics = {name for name in TOPIC if f'"{name}"' in fields or re.search(rf"\.{name.replace('.', '_')}\b", fields)}
    brokers = {name for name in BROKER if f'"{name}"' in code}
    brokers |= {synonym.name for name in topics for synonym in TOPIC[name].synonyms}
    topics.add("internal.segment.bytes")  # which replaces segment.bytes
    topics.add("unclean.leader.election.enable")  # which the controller reads from ZooKeeper
    assert {name for name, key in TOPIC.items() if key.effect} == topics
    # The names of KRaft's controller are read only to leave its listeners out.
    assert {name for name, key in BROKER.items() if key.effect} == brokers - {"controller.listener.names"}
