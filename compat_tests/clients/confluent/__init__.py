"""Scenarios of confluent-kafka, which is librdkafka."""

from compat_tests.harness.scenarios import Scenarios

scenarios = Scenarios("confluent-kafka")
