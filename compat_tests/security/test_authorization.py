"""The table of rights on both brokers: each API without a right, with all, with one less, with one denied.

Both have StandardAuthorizer. Nobody authenticates, so everybody is User:ANONYMOUS, and is told apart by his address:
the administrator, who may everything, comes from 127.0.0.1 as the broker itself does, the one whom rights are given
and taken from 127.0.0.2.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from compat_tests.harness import report
from compat_tests.harness.brokers import ApacheKafka, BrokerProcess, KBroker
from compat_tests.harness.jvm import run_java
from compat_tests.wire.client import DEADLINE_SECONDS, WireClient
from compat_tests.wire.plain import Plain, differences
from compat_tests.wire.session import Wire
from kbroker.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from kbroker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kbroker.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kbroker.protocol.messages.describe_acls import DescribeAclsRequest
from kbroker.security.authorizer.acls import OPERATIONS, Operation, PatternType, Permission, ResourceType
from tests.security.authorizer.cases import CASES, CODES, DOOMED, TOPIC, Case, Right
from tests.security.authorizer.served import codes

pytestmark = pytest.mark.java

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
ANONYMOUS, OWN, OTHER = "User:ANONYMOUS", "127.0.0.1", "127.0.0.2"
ALLOW, DENY = Permission.ALLOW, Permission.DENY
REFUSALS = {int(code) for code in CODES.values()}
Transcript = dict[str, Any]
_NEEDS = re.compile(r"^(Request .*|This request )(?=needs \w+ permission)")


class Subject(WireClient):
    """A connection from the other address."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._sock.close()
        host, _, port = address.rpartition(":")
        self._sock = socket.create_connection((host, int(port)), DEADLINE_SECONDS, source_address=(OTHER, 0))


class Guarded:
    """A broker with an authorizer, its administrator and its subject."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.wire = Wire(broker.bootstrap, broker.name)
        kinds = [kind for kind in OPERATIONS if kind is not ResourceType.CLUSTER]
        own = [(kind, "*") for kind in kinds] + [(ResourceType.CLUSTER, "kafka-cluster")]
        self._create([self._creation(kind, name, OWN, Operation.ALL, ALLOW) for kind, name in own])
        self._topic(TOPIC)

    def close(self) -> None:
        self.wire.close()

    @staticmethod
    def _creation(kind: int, name: str, host: str, operation: int, permission: int) -> AclCreation:
        return AclCreation(kind, name, PatternType.LITERAL, ANONYMOUS, host, operation, permission)

    def _create(self, creations: list[AclCreation]) -> None:
        answer = self.wire.quiet(CreateAclsRequest(creations=creations), 3)
        assert codes(answer) <= {0}, answer

    def _topic(self, name: str) -> None:
        self.wire.quiet(CreateTopicsRequest([CreatableTopic(name, 1, 1)], timeout_ms=10_000), 4)
        self.wire.until(lambda: self.wire._led(name, 1), f"{name} has a leader")

    def rights(self, wanted: Mapping[Right, Permission]) -> None:
        """Give the subject these rights and no others, and wait until the broker goes by them."""
        gone = DeleteAclsFilter(1, None, PatternType.ANY, None, OTHER, Operation.ANY, Permission.ANY)
        assert codes(self.wire.quiet(DeleteAclsRequest([gone]), 3)) <= {0}
        acls = [self._creation(r.kind, r.name, OTHER, r.operation, permission) for r, permission in wanted.items()]
        if acls:
            self._create(acls)
        expected = {(r.kind, r.name, r.operation, permission) for r, permission in wanted.items()}
        self.wire.until(lambda: self._known() == expected, "ACLs to be known")

    def _known(self) -> set[tuple[int, str, int, int]]:
        asked = DescribeAclsRequest(1, None, PatternType.ANY, None, OTHER, Operation.ANY, Permission.ANY)
        answer = self.wire.quiet(asked, 3)
        return {
            (each.resource_type, each.resource_name, acl.operation, acl.permission_type)
            for each in answer.resources
            for acl in each.acls
        }

    def ask(self, case: Case) -> Any:
        if case.api == "DeleteTopics":
            self._topic(DOOMED)
        with Subject(self.broker.bootstrap) as subject:
            return subject.ask(case.request, case.version)


@pytest.fixture(scope="module")
def guarded(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Guarded]]:
    directory = tmp_path_factory.mktemp("guarded")
    with (
        ApacheKafka(kafka_libs, directory / "apache", SETTINGS) as apache,
        KBroker(directory / "kbroker", SETTINGS) as ours,
    ):
        both = {"apache": Guarded(apache), "kbroker": Guarded(ours)}
        yield both
        for each in both.values():
            each.close()


def _bare(value: Any) -> Any:
    """Leave out of texts how Java prints a request."""
    if isinstance(value, dict):
        return {name: _bare(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_bare(each) for each in value]
    return _NEEDS.sub("<request> ", value) if isinstance(value, str) else value


def transcript(broker: Guarded, case: Case) -> Transcript:
    """Return what is answered where something is refused, else only that nothing is: the rest is other tests'."""
    found: Transcript = {}
    plain = Plain()

    def note(state: str, wanted: Mapping[Right, Permission]) -> None:
        broker.rights(wanted)
        answer = broker.ask(case)
        if isinstance(answer, str):
            found[state] = answer
            return
        refused = codes(answer) & REFUSALS
        found[state] = _bare(plain.of(answer)) if refused else "nothing is refused"

    note("none", {})
    for number in range(max(len(each) for each in case.rights)):
        rights = [each[min(number, len(each) - 1)] for each in case.rights]
        note(f"exactly {number}", dict.fromkeys(rights, ALLOW))
        for right in rights:
            others = [each for each in rights if each is not right]
            named = f"{right.kind.name}:{right.operation.name}"
            note(f"without {named}", dict.fromkeys(others, ALLOW))
            note(f"{named} denied", {**dict.fromkeys(others, ALLOW), right: DENY})
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.api}-v{case.version}")
def test_both_refuse_alike(guarded: dict[str, Guarded], case: Case) -> None:
    theirs = transcript(guarded["apache"], case)
    ours = transcript(guarded["kbroker"], case)
    report.count_exchanges("authorization", len(ours))
    assert ours["none"] != "nothing is refused"
    assert ours["exactly 0"] == "nothing is refused"
    found = [f"{state}{line}" for state in ours for line in differences(ours[state], theirs[state])]
    assert not found, "\n".join(found[:50])


@pytest.fixture
def kafka_acls(kafka_libs: Path) -> Callable[..., list[str]]:
    def run(broker: Guarded, *arguments: str) -> list[str]:
        main = "org.apache.kafka.tools.AclCommand"
        for name in (main, "kafka.admin.AclCommand"):
            status, out, err = run_java(
                kafka_libs, name, "--bootstrap-server", broker.broker.bootstrap, *arguments, "--force"
            )
            if "ClassNotFoundException" not in err:
                break
        lines = [line.strip() for line in out.splitlines() if line.strip()]
        return [str(status), *sorted(lines)]

    return run


def test_kafka_acls(guarded: dict[str, Guarded], kafka_acls: Callable[..., list[str]]) -> None:
    def life(broker: Guarded) -> list[list[str]]:
        broker.rights({})
        return [
            kafka_acls(broker, "--add", "--allow-principal", "User:alice", "--producer", "--topic", "tool"),
            kafka_acls(broker, "--add", "--deny-principal", "User:bob", "--deny-host", "192.0.2.1", "--group", "tool",
                       "--operation", "Read", "--resource-pattern-type", "prefixed"),
            kafka_acls(broker, "--list", "--topic", "tool"),
            kafka_acls(broker, "--list", "--group", "tools", "--resource-pattern-type", "match"),
            kafka_acls(broker, "--remove", "--allow-principal", "User:alice", "--producer", "--topic", "tool"),
            kafka_acls(broker, "--remove", "--group", "tool", "--resource-pattern-type", "prefixed"),
            kafka_acls(broker, "--list", "--topic", "tool"),
        ]  # fmt: skip

    theirs, ours = life(guarded["apache"]), life(guarded["kbroker"])
    report.count("kafka-acls", "both")
    assert ours == theirs
    assert any("alice" in line for line in ours[2])
