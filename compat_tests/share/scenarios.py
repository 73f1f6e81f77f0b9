"""What an application with KafkaShareConsumer sees; it is the same on both brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from compat_tests.harness.jvm import run_java
from compat_tests.harness.parts import fetch
from compat_tests.harness.scenarios import Scenarios

scenarios = Scenarios("java-share")

SOURCE: Final = Path(__file__).with_name("Shares.java")


@scenarios.add
def share_consumer(bootstrap: str, unique: str) -> object:
    """Acknowledgements of each type and mode, the delivery limit, locks, transactions, two consumers."""
    status, out, err = run_java(fetch("kafka"), str(SOURCE), bootstrap, unique, timeout_s=280)
    assert status == 0, out + err[-3000:]
    seen: dict[str, list[str]] = {}
    for line in out.splitlines():
        step, _, fact = line.partition("\t")
        seen.setdefault(step, []).append(fact)
    return seen
