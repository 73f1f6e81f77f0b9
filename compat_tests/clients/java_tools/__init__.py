"""Kafka's own command-line tools, run as processes against both brokers."""

from __future__ import annotations

from compat_tests.harness.scenarios import Scenarios

scenarios = Scenarios("java-tools")
