"""Both brokers with SASL, shared by all tests of this folder; Kafka's own tool adds the users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from compat_tests.clients.java_tools.tool import run
from compat_tests.harness.brokers import BrokerProcess
from compat_tests.security.sasl_brokers import SASL, both, open_address

CREDENTIALS = ("SCRAM-SHA-256=[iterations=8192,password=secret]", "SCRAM-SHA-512=[password=secret]")


@pytest.fixture(scope="module")
def sasl_brokers(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerProcess]]:
    with ExitStack() as running:
        found: dict[str, BrokerProcess] = {}
        for broker in both(kafka_libs, tmp_path_factory.mktemp("sasl"), SASL):
            running.enter_context(broker)
            for credential in CREDENTIALS:  # of one user one at a time, as the request has it
                entity = ("--entity-type", "users", "--entity-name", "alice")
                added = run("configs", "--alter", "--add-config", credential, *entity, bootstrap=open_address(broker))
                assert added[0] == "exit 0", added
            found[broker.name] = broker
        yield found
