"""Runs every sequence of exchanges on both brokers and compares the transcripts.

kbroker runs each twice: with its defaults, where it checks every record as Kafka does, and with
record.validation=header. Sequences marked `needs_walk` make sense only with the defaults; those of share and streams
groups do not depend on the setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compat_tests.harness import report
from compat_tests.harness.brokers import BrokerProcess, KBroker
from compat_tests.wire.declared import DECLARED
from compat_tests.wire.exchanges import load_all
from compat_tests.wire.plain import differences
from compat_tests.wire.session import Wire
from tests.tries import FORM

SEQUENCES = load_all()
BY_THREADS = {"share-group-life", "share-limits", "share-records"}
"""Sequences in which Apache Kafka's threads rarely lead to another answer: only with KBROKER_TESTS=long."""
CASES = [
    (name, validation)
    for name, function in sorted(SEQUENCES.items())
    for validation in ("header", "full")
    if validation == "full" or not (getattr(function, "needs_walk", False) or name.startswith(("share-", "streams-")))
    if name not in BY_THREADS or FORM == "long"
]

pytestmark = pytest.mark.java

Transcript = dict[str, Any]


@pytest.fixture(scope="module")
def trusting_kbroker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KBroker]:
    """Kbroker with record.validation=header."""
    with KBroker(tmp_path_factory.mktemp("trusting"), {"record.validation": "header"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def kafkas_transcript(brokers: dict[str, BrokerProcess]) -> Callable[[str], Transcript]:
    """Return Kafka's transcript of a sequence, which runs only once."""
    known: dict[str, Transcript] = {}

    def of(name: str) -> Transcript:
        if name not in known:
            known[name] = transcript_of(name, brokers["apache"])
        return known[name]

    return of


def transcript_of(name: str, broker: BrokerProcess) -> Transcript:
    wire = Wire(broker.bootstrap, name)
    try:
        SEQUENCES[name](wire)
    finally:
        wire.close()
    return wire.transcript


@pytest.mark.parametrize(("name", "validation"), CASES)
def test_both_brokers_answer_alike(
    name: str,
    validation: str,
    kafkas_transcript: Callable[[str], Transcript],
    brokers: dict[str, BrokerProcess],
    trusting_kbroker: KBroker,
) -> None:
    theirs = kafkas_transcript(name)
    ours = transcript_of(name, trusting_kbroker if validation == "header" else brokers["kbroker"])
    report.count_exchanges(f"wire, validation {validation}", len(ours))
    found = [
        f"{exchange}{line}"
        for exchange in {**ours, **theirs}
        for line in differences(ours.get(exchange, "<not asked>"), theirs.get(exchange, "<not asked>"))
    ]
    declared = [d for d in DECLARED if d.sequence == name]
    unexplained = [line for line in found if not any(d.covers(name, line) for d in declared)]
    assert not unexplained, f"{len(unexplained)} differences\n" + "\n".join(unexplained[:200])
    stale = [d for d in declared if not any(d.covers(name, line) for line in found)]
    assert not stale, f"no longer different: {stale}"
