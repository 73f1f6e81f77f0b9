"""Kafka's tools come to the same in a JVM that stays as in one of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from compat_tests.harness.jvm import run_java

pytestmark = pytest.mark.java
_TOOLS = "org.apache.kafka.tools"
NOWHERE = ("--bootstrap-server", "127.0.0.1:1")


@pytest.mark.parametrize(
    "arguments",
    [
        (f"{_TOOLS}.ConfigCommand", "--help"),
        (f"{_TOOLS}.consumer.ConsoleConsumer", "--version"),
        (f"{_TOOLS}.NoTool",),
        ("kafka.tools.StorageTool", "random-uuid", "--no-such-option"),
    ],
    ids=["it exits amid its work", "it exits well", "there is none", "it exits with an error"],
)
def test_a_tool_comes_to_the_same(
    arguments: tuple[str, ...], kafka_libs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBROKER_TESTS", "usual")
    kept = [run_java(kafka_libs, *arguments) for _ in range(2)]
    monkeypatch.setenv("KBROKER_TESTS", "long")
    assert kept == [run_java(kafka_libs, *arguments)] * 2


def test_a_tool_that_takes_too_long_is_killed(kafka_libs: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_java(kafka_libs, f"{_TOOLS}.TopicCommand", "--list", *NOWHERE, timeout_s=0.3)
    assert run_java(kafka_libs, f"{_TOOLS}.NoTool")[0] == 1
