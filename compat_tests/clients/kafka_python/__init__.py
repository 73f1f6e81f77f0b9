"""Scenarios of kafka-python 3."""

from compat_tests.harness.scenarios import Scenarios

scenarios = Scenarios("kafka-python")
