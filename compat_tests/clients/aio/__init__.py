"""Scenarios of aiokafka."""

from compat_tests.harness.scenarios import Scenarios

scenarios = Scenarios("aiokafka")
