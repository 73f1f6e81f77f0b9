"""The table of keys against Apache Kafka's own definitions, printed by a small Java program over its jars."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from compat_tests.harness.jvm import BRIEF
from kbroker.config.model import ConfigKey, ConfigType
from kbroker.config.table import BROKER, CLIENT_METRICS, DYNAMIC_ONLY, GROUP, TOPIC
from kbroker.config.values import to_text

pytestmark = pytest.mark.java

OURS = {
    "confluent.key.schema.validation",
    "confluent.key.subject.name.strategy",
    "confluent.value.schema.validation",
    "confluent.value.subject.name.strategy",
    "delivery.delay.ms",
    "inter.broker.apis.from",
    "kbroker.schema.validation.deadletter.topic",
    "kbroker.schema.validation.level",
    "filter.index.headers",
    "remote.storage.cache.bytes",
    "remote.storage.state.interval.ms",
    "remote.storage.options",
    "remote.storage.url",
    "rlmm.config.remote.log.metadata.topic.replication.factor",
    "view.filter",
    "view.source",
    "record.validation",
    "share.filter",
    "schedule.enable",
    "schedule.target.topic",
    "share.release.backoff.ms",
    "share.release.backoff.max.ms",
    "share.release.backoff.multiplier",
}
# Kafka requires a value for these; our broker needs none, or has its own default.
NO_DEFAULT_IN_KAFKA = {"process.roles", "node.id", "controller.listener.names"}
# Our default measured better; docs/configuration.md says so.
OTHER_DEFAULT = {"socket.receive.buffer.bytes"}
# Their values mean nothing here, so any value is accepted.
UNCHECKED = {"controller.quorum.voters", "controller.quorum.bootstrap.servers"}
_TABLES = [("topic", TOPIC), ("broker", BROKER), ("group", GROUP), ("client-metrics", CLIENT_METRICS)]
PROGRAM = Path(__file__).parent / "PrintConfigs.java"


@pytest.fixture(scope="module")
def definitions(kafka_libs: Path) -> list[dict[str, Any]]:
    command = ["java", *BRIEF, "-cp", f"{kafka_libs}/*", str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("kind", "table"), _TABLES)
def test_keys_are_kafkas(definitions: list[dict[str, Any]], kind: str, table: dict[str, ConfigKey]) -> None:
    theirs = {each["name"]: each for each in definitions if each["kind"] == kind}
    assert set(table) - OURS - DYNAMIC_ONLY == set(theirs)
    for name, their in theirs.items():
        our = table[name]
        assert our.type is ConfigType[their["type"]], name
        assert our.internal == their["internal"], name
        if name not in NO_DEFAULT_IN_KAFKA | OTHER_DEFAULT:
            assert to_text(our.default) == their["default"], name
        if name not in UNCHECKED:
            assert (our.validator.text if our.validator else None) == their["validator"], name


def test_order_and_synonyms_of_topic_keys(definitions: list[dict[str, Any]]) -> None:
    theirs = {each["name"]: each["synonyms"] for each in definitions if each["kind"] == "topic"}
    assert [name for name in TOPIC if name not in OURS] == list(theirs)
    for name, synonyms in theirs.items():
        # Kafka's synonyms carry a function; 1 through it gives the factor of those that convert units.
        ours = [[each.name, str(each.factor)] for each in TOPIC[name].synonyms]
        assert ours == synonyms, name


def test_how_broker_keys_can_change(definitions: list[dict[str, Any]]) -> None:
    theirs = {each["name"]: each["mode"] for each in definitions if each["kind"] == "broker"}
    assert {name: BROKER[name].mode.value for name in theirs} == theirs


def test_synonyms_of_group_keys(definitions: list[dict[str, Any]]) -> None:
    theirs = {each["name"]: each["synonyms"] for each in definitions if each["kind"] == "group"}
    assert [name for name in GROUP if name not in OURS] == list(theirs)
    assert {name: [[each.name, "1"] for each in GROUP[name].synonyms] for name in theirs} == theirs
