"""Fixtures: each broker once per session, and the runner that runs a scenario on both.

Owns when brokers start and stop. For work on scenarios, KBROKER_COMPAT_ONLY=apache (or kbroker) runs one side alone,
and KBROKER_COMPAT_ONLY=apache-twice compares two Apache Kafkas. A pytest plugin, loaded by the root conftest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from compat_tests import differences
from compat_tests.harness import recorded, report
from compat_tests.harness.brokers import ApacheKafka, BrokerProcess, KBroker
from compat_tests.harness.compare import compare, normalise
from compat_tests.harness.compare import report as describe
from compat_tests.harness.running import run_on_all
from compat_tests.harness.scenarios import Scenario

SIDES: Final = ("apache", "kbroker")
# Two Apache Kafkas: a scenario whose observations differ there shows nothing about kbroker.
TWICE: Final = "apache-twice"

SideBySide = Callable[[Scenario], None]


def wanted_sides() -> tuple[str, ...]:
    """Return the sides to run: both, unless KBROKER_COMPAT_ONLY names one."""
    only = os.environ.get("KBROKER_COMPAT_ONLY")
    if not only or only == TWICE:
        return SIDES
    assert only in SIDES, f"KBROKER_COMPAT_ONLY must be apache, kbroker or {TWICE}, not {only!r}"
    return (only,)


@pytest.fixture(scope="session")
def apache_kafka(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """Apache Kafka 4.4.0, running."""
    with ApacheKafka(kafka_libs, tmp_path_factory.mktemp("apache")) as broker:
        yield broker


@pytest.fixture(scope="session")
def second_apache_kafka(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """Another Apache Kafka 4.4.0."""
    with ApacheKafka(kafka_libs, tmp_path_factory.mktemp("apache")) as broker:
        yield broker


@pytest.fixture(scope="session")
def kbroker_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KBroker]:
    """Yield a running kbroker in its own process; it must also shut down cleanly."""
    broker = KBroker(tmp_path_factory.mktemp("kbroker")).start()
    try:
        yield broker
        assert broker.running, f"kbroker ended by itself:\n{broker.log_tail()}"
    finally:
        status = broker.stop()
    assert status == 0, f"kbroker ended with {status}:\n{broker.log_tail()}"


@pytest.fixture(scope="session")
def brokers(request: pytest.FixtureRequest) -> dict[str, BrokerProcess]:
    """Return the running brokers by side; only those that `wanted_sides` names are started."""
    fixtures = {"apache": "apache_kafka", "kbroker": "kbroker_process"}
    if os.environ.get("KBROKER_COMPAT_ONLY") == TWICE:
        fixtures["kbroker"] = "second_apache_kafka"
    return {side: request.getfixturevalue(fixtures[side]) for side in wanted_sides()}


@pytest.fixture
def side_by_side(request: pytest.FixtureRequest, tmp_path: Path) -> SideBySide:
    """Run a scenario on both brokers at the same time, or on kbroker beside a recording, and compare the results."""

    def run(scenario: Scenario) -> None:
        known = None if os.environ.get("KBROKER_COMPAT_ONLY") else recorded.find(scenario.client, scenario.name)
        if known is not None and recorded.mode() == "recorded":
            broker: BrokerProcess = request.getfixturevalue("kbroker_process")
            seen = _seen(scenario, {"kbroker": broker}, tmp_path)
            report.count(scenario.client, "recorded")
            _judge(scenario, known, recorded.shifted(seen["kbroker"]))
            return
        brokers: dict[str, BrokerProcess] = request.getfixturevalue("brokers")
        seen = _seen(scenario, brokers, tmp_path)
        if recorded.mode() == "record" and "apache" in seen:
            recorded.record(scenario.client, scenario.name, recorded.shifted(seen["apache"]))
        if len(seen) < len(SIDES):
            report.count(scenario.client, next(iter(seen)))
            if os.environ.get("KBROKER_COMPAT_SHOW"):
                print(json.dumps(seen, indent=1, sort_keys=True))
            return
        report.count(scenario.client, "both")
        if known is not None and recorded.mode() == "live":
            assert recorded.shifted(seen["apache"]) == known, "Apache Kafka answers otherwise than was recorded"
        _judge(scenario, seen["apache"], seen["kbroker"])

    return run


def _seen(scenario: Scenario, brokers: dict[str, BrokerProcess], tmp_path: Path) -> dict[str, object]:
    """Return what a scenario sees on each side, as plain values."""
    try:
        found = run_on_all(scenario, {side: broker.bootstrap for side, broker in brokers.items()})
    except Exception as error:
        side = getattr(error, "side", None)
        if side is not None:
            error.add_note(f"while running on {side}; the broker's last lines:\n{brokers[side].log_tail(6)}")
        raise
    seen = {side: normalise(value, brokers[side].bootstrap) for side, value in found.items()}
    for side, value in seen.items():
        (tmp_path / f"{side}.json").write_text(json.dumps(value, indent=1, sort_keys=True))
    return seen


def _judge(scenario: Scenario, apache: object, kbroker: object) -> None:
    """Fail on every difference that is not declared, and on every declaration that no longer applies."""
    found = compare(apache, kbroker)
    twice = os.environ.get("KBROKER_COMPAT_ONLY") == TWICE
    for declared in () if twice else differences.DECLARED:
        if not declared.applies(scenario.client, scenario.name):
            continue
        met = [path for path in found if declared.covers(path)]
        for path in met:
            del found[path]
        if met:
            report.declare(f"{'OPEN: ' if declared.open else ''}{declared.path}: {declared.reason}")
        elif "*" not in declared.scenario:
            pytest.fail(f"declared difference {declared.path!r} was not met any more; remove it from differences.py")
    if found:
        pytest.fail(f"{scenario.client}: {scenario.name} saw different things\n{describe(found)}", pytrace=False)
