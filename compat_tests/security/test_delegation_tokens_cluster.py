"""kbroker and Apache Kafka 3.9.1 on one ZooKeeper: a token that one broker created is valid on both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from compat_tests.harness import report
from compat_tests.harness.brokers import BrokerProcess
from compat_tests.harness.zookeeper import Kafka39, ZooKeeper
from compat_tests.security.test_sasl_cluster import MECHANISM, SETTINGS, Member
from compat_tests.security.token_clients import by_token, create, describe, log_in
from kbroker.protocol.messages.access import ExpireDelegationTokenRequest, RenewDelegationTokenRequest

pytestmark = [pytest.mark.java, pytest.mark.long]

PATIENCE_S: Final = 60.0
TOKENS: Final = {
    **SETTINGS,
    "delegation.token.secret.key": "what all brokers know",
    "delegation.token.expiry.check.interval.ms": "500",
}


@pytest.fixture(scope="module")
def both(kafka39_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerProcess]]:
    directory = tmp_path_factory.mktemp("token-cluster")
    with ZooKeeper(kafka39_libs, directory / "zookeeper") as zookeeper:
        java = Kafka39(kafka39_libs, directory / "java", zookeeper, {**TOKENS, "node.id": "1"})
        java.own = {"listeners": f"SASL_PLAINTEXT://127.0.0.1:{java.port}"}
        ours = Member(directory / "kbroker", TOKENS)
        ours.zookeeper = zookeeper.bootstrap
        with java, ours:
            yield {"apache": java, "kbroker": ours}


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def lets_in(broker: BrokerProcess, token: Any) -> bool:
    client, answer = by_token(broker.bootstrap, token, MECHANISM)
    client.close()
    return bool(answer.error_code == 0)


def shown(broker: BrokerProcess) -> dict[str, tuple[Any, ...]]:
    with log_in(broker.bootstrap, "broker", "between", MECHANISM) as client:
        return {
            each.token_id: (
                each.principal_name,
                each.token_requester_principal_name,
                [one.principal_name for one in each.renewers],
                each.issue_timestamp,
                each.expiry_timestamp,
                each.max_timestamp,
                bytes(each.hmac),
            )
            for each in describe(client).tokens
        }


@pytest.mark.parametrize(("here", "there"), [("apache", "kbroker"), ("kbroker", "apache")])
def test_a_token_of_either_is_good_on_both(both: dict[str, BrokerProcess], here: str, there: str) -> None:
    one, two = both[here], both[there]
    with (
        log_in(one.bootstrap, "broker", "between", MECHANISM) as client,
        log_in(two.bootstrap, "broker", "between", MECHANISM) as other,
    ):
        token = create(client, renewers=(("User", "a,b=c ü/*~"),), owner=("User", "broker"))
        assert token.error_code == 0
        until(lambda: token.token_id in shown(two))
        assert shown(one) == shown(two)
        assert lets_in(one, token)
        until(lambda: lets_in(two, token))
        assert other.ask(RenewDelegationTokenRequest(token.hmac, 3_600_000), 2).error_code == 0
        until(lambda: shown(one) == shown(two))
        assert other.ask(ExpireDelegationTokenRequest(token.hmac, -1), 2).error_code == 0
        until(lambda: token.token_id not in shown(one))
        assert not lets_in(one, token)
        assert not lets_in(two, token)
        short = create(client, lifetime_ms=1000)
        assert short.error_code == 0
        until(lambda: not (shown(one) | shown(two)).keys() & {short.token_id})
    report.count("delegation tokens on ZooKeeper", "both")
