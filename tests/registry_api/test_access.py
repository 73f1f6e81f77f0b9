"""ACLs at a broker's registry: the rights that each operation needs, filtered lists, and failing detours."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker import Acl, Broker, Cluster
from kbroker.registry_api.access import topic_of
from kbroker.registry_api.endpoints import ENDPOINTS
from tests.registry_api.conftest import AVRO_TYPE

ROOT, ANY = "root", '"string"'
USERS = ("root", "reader", "writer", "deleter", "admin", "lister", "denied", "cluster", "stranger")


def acls() -> list[Acl]:
    return [
        Acl(allow_principal="User:reader", operation="Read", topic="orders"),
        Acl(allow_principal="User:writer", operation="Write", topic="orders"),
        Acl(allow_principal="User:deleter", operation="Delete", topic="orders"),
        Acl(allow_principal="User:admin", operation=["AlterConfigs", "Write"], topic="orders"),
        Acl(allow_principal="User:lister", operation="Describe", topic="ord", resource_pattern_type="prefixed"),
        Acl(allow_principal="User:denied", operation="All", topic="*"),
        Acl(deny_principal="User:denied", operation="All", topic="orders"),
        Acl(allow_principal="User:cluster", operation=["DescribeConfigs", "AlterConfigs"], cluster=True),
    ]


class Users:
    """Sends requests to a registry as a given user."""

    def __init__(self, url: str) -> None:
        self.address = url.removeprefix("http://")

    def ask(self, user: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.address, timeout=20)
        login = base64.b64encode(f"{user}:of-{user}".encode()).decode()
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"content-type": AVRO_TYPE, "authorization": f"Basic {login}"})
            answer = connection.getresponse()
            read = answer.read()
            return answer.status, json.loads(read) if read else None
        finally:
            connection.close()

    def ok(self, user: str, method: str, path: str, body: Any = None) -> Any:
        status, told = self.ask(user, method, path, body)
        assert status in (200, 204), told
        return told

    def denied(self, user: str, method: str, path: str, body: Any = None) -> str:
        status, told = self.ask(user, method, path, body)
        assert (status, told["error_code"]) == (403, 40301), told
        assert told["message"].startswith("User is denied operation ")
        return str(told["message"])


@pytest.fixture(scope="module")
def of_all() -> Iterator[tuple[Broker, Users]]:
    config = {"super.users": "User:root"}
    users = {name: f"of-{name}" for name in USERS}
    with Broker(config, registry=True, registry_auth=True, users=users, acls=acls()) as broker:
        yield broker, Users(broker.registry_url)


@pytest.fixture
def users(of_all: tuple[Broker, Users]) -> Users:
    """Yield a registry with the subjects orders-value, which has two versions, and secret-value."""
    of_all[0].reset()
    users = of_all[1]
    for subject, schema in (("orders-value", ANY), ("secret-value", SECRET), ("secret-key", ANY)):
        users.ok(ROOT, "POST", f"/subjects/{subject}/versions", {"schema": schema})
    return users


SECRET = '{"type": "record", "name": "Secret", "fields": []}'
SCHEMA = {"schema": ANY}


@pytest.mark.parametrize(
    ("subject", "topic"),
    [
        ("orders-value", "orders"),
        ("orders-key", "orders"),
        ("orders", "orders"),
        ("orders-key-value", "orders-key"),
        ("-value", "-value"),
        ("com.example.Order", "com.example.Order"),
        (":.blue:orders-value", "orders"),
        (":*:orders-value", "orders"),
        (":.blue:", ""),
        (":.__GLOBAL:", ""),
        (":.:", ""),
        ("", ""),
    ],
)
def test_the_topic_of_a_subject(subject: str, topic: str) -> None:
    assert topic_of(subject) == topic


@pytest.mark.parametrize(
    ("method", "path", "body", "who"),
    [
        ("GET", "/subjects/orders-value/versions", None, {"reader", "writer", "deleter", "lister", "admin"}),
        ("GET", "/subjects/orders-value/versions/1", None, {"reader"}),
        ("GET", "/subjects/orders-value/versions/latest/schema", None, {"reader"}),
        ("GET", "/subjects/orders-value/versions/1/referencedby", None, {"reader"}),
        ("POST", "/subjects/orders-value", SCHEMA, {"reader", "writer", "admin"}),
        ("POST", "/subjects/orders-value/versions", SCHEMA, {"writer", "admin"}),
        ("POST", "/compatibility/subjects/orders-value/versions", SCHEMA, {"writer", "admin"}),
        ("POST", "/compatibility/subjects/orders-value/versions/1", SCHEMA, {"writer", "admin"}),
        ("PUT", "/config/orders-value", {"compatibility": "NONE"}, {"admin"}),
        ("GET", "/config/orders-value?defaultToGlobal=true", None, {"admin"}),
        ("PUT", "/mode/orders-value", {"mode": "READONLY"}, {"admin"}),
        ("GET", "/mode/orders-value?defaultToGlobal=true", None, {"admin"}),
        ("DELETE", "/subjects/orders-value/versions/1", None, {"deleter"}),
        ("DELETE", "/subjects/orders-value", None, {"deleter"}),
        ("GET", "/config", None, {"cluster"}),
        ("PUT", "/config", {"compatibility": "FULL"}, {"cluster"}),
        ("DELETE", "/config", None, {"cluster"}),
        ("GET", "/mode", None, {"cluster"}),
        ("PUT", "/mode", {"mode": "READWRITE"}, {"cluster"}),
        ("GET", "/contexts", None, {"cluster"}),
        ("PUT", "/config/:.blue:", {"compatibility": "FULL"}, {"cluster"}),
        ("GET", "/schemas/ids/1", None, {"reader"}),
        ("GET", "/schemas/ids/1/schema", None, {"reader"}),
        ("GET", "/schemas/types", None, set(USERS)),
        ("GET", "/", None, set(USERS)),
    ],
)
def test_who_may(of_all: tuple[Broker, Users], method: str, path: str, body: Any, who: set[str]) -> None:
    for user in sorted(set(USERS) - who - {ROOT} - ({"denied"} if "ids" in path else set())):
        prepare(of_all).denied(user, method, path, body)
    for user in sorted(who | {ROOT}):
        prepare(of_all).ok(user, method, path, body)


def prepare(of_all: tuple[Broker, Users]) -> Users:
    of_all[0].reset()
    of_all[1].ok(ROOT, "POST", "/subjects/orders-value/versions", SCHEMA)
    return of_all[1]


def test_every_endpoint_of_a_subject_needs_a_right() -> None:
    for method, path, _, needs in ENDPOINTS:
        assert bool(needs) == ("{subject}" in path or path.startswith(("/config", "/mode", "/contexts"))), (
            method,
            path,
        )


def test_lists_show_what_may_be_described_or_read(users: Users) -> None:
    assert users.ok(ROOT, "GET", "/subjects") == ["orders-value", "secret-key", "secret-value"]
    assert users.ok("lister", "GET", "/subjects") == ["orders-value"]
    assert users.ok("denied", "GET", "/subjects?limit=1") == ["secret-key"]
    assert users.ok("stranger", "GET", "/subjects") == []
    assert [each["subject"] for each in users.ok("reader", "GET", "/schemas")] == ["orders-value"]
    assert users.ok("lister", "GET", "/schemas") == []
    assert users.ok("reader", "GET", "/schemas/ids/1/subjects") == ["orders-value"]
    assert users.ok("denied", "GET", "/schemas/ids/1/versions") == [{"subject": "secret-key", "version": 1}]
    users.denied("reader", "GET", "/schemas/ids/2/subjects")


def test_an_id_is_read_by_whoever_reads_one_of_its_subjects(users: Users) -> None:
    assert users.ok("reader", "GET", "/schemas/ids/1")["subject"] == "orders-value"
    assert users.ok("denied", "GET", "/schemas/ids/1")["subject"] == "secret-key"
    assert "this server" in users.denied("reader", "GET", "/schemas/ids/2")
    guid = users.ok(ROOT, "GET", "/subjects/secret-value/versions/1")["guid"]
    for path in (f"/schemas/guids/{guid}", f"/schemas/guids/{guid}/ids"):
        users.denied("reader", "GET", path)
        users.ok("denied", "GET", path)


def test_a_reference_needs_the_right_to_read(users: Users) -> None:
    reference = {"name": "Secret", "subject": "secret-value", "version": 1}
    body = {"schema": '"Secret"', "references": [reference]}
    for path in ("/subjects/orders-value/versions", "/compatibility/subjects/orders-value/versions"):
        assert "Subject: secret-value" in users.denied("writer", "POST", path, body)
    users.denied("reader", "POST", "/subjects/orders-value", body)
    own = {"schema": ANY, "references": [{**reference, "name": "Own", "subject": "orders-value"}]}
    users.denied("writer", "POST", "/subjects/orders-value/versions", own)


def test_an_alias_is_no_way_to_another_subject(users: Users) -> None:
    users.denied("admin", "PUT", "/config/orders-value", {"alias": "secret-value"})
    users.ok(ROOT, "PUT", "/config/orders-value", {"alias": "secret-value"})
    assert "secret-value" in users.denied("reader", "GET", "/subjects/orders-value/versions/1")
    assert "secret-value" in users.denied("writer", "POST", "/subjects/orders-value/versions", {"schema": SECRET})
    users.ok(ROOT, "GET", "/subjects/orders-value/versions/1")
    listed = users.ok("reader", "GET", "/schemas?aliases=true")
    assert [each["subject"] for each in listed] == ["orders-value"]
    assert all("aliases" not in each for each in listed)


def test_a_context_is_no_way_to_another_subject(users: Users) -> None:
    users.denied("reader", "GET", "/contexts/.blue/subjects/secret-value/versions/1")
    users.denied("reader", "GET", "/subjects/:.blue:secret-value/versions/1")
    users.denied("reader", "PUT", "/contexts/.blue/config", {"compatibility": "FULL"})
    users.denied("reader", "DELETE", "/contexts/.blue")
    assert users.ok("reader", "GET", "/contexts/.blue/subjects") == []
    assert users.ok("reader", "GET", "/subjects?subjectPrefix=:*:") == ["orders-value"]


def test_head_needs_what_get_does(users: Users) -> None:
    assert users.ask("stranger", "HEAD", "/subjects/orders-value/versions/1") == (403, None)


@pytest.mark.long
def test_a_long_list_is_filtered(of_all: tuple[Broker, Users]) -> None:
    users = prepare(of_all)
    for number in range(500):
        users.ok(ROOT, "POST", f"/subjects/{'ord' if number % 2 else 'x'}{number:03}-value/versions", SCHEMA)
    assert len(users.ok("lister", "GET", "/subjects")) == 251
    assert len(users.ok("lister", "GET", "/subjects?limit=100&offset=200")) == 51
    assert len(users.ok("lister", "GET", "/schemas/ids/1/subjects")) == 251
    assert users.ok("reader", "GET", "/schemas/ids/1")["subject"] == "orders-value"


def test_changed_acls_count_at_once(users: Users, of_all: tuple[Broker, Users]) -> None:
    del users
    found = of_all[0].node.services.authorizer
    assert found is not None
    before = found.acls
    try:
        users_ = of_all[1]
        users_.denied("stranger", "GET", "/subjects/secret-value/versions/1")
        (entry,) = Acl(allow_principal="User:stranger", operation="Read", topic="secret").entries
        found.replace({**before, entry[0]: frozenset({entry[1]})})
        users_.ok("stranger", "GET", "/subjects/secret-value/versions/1")
    finally:
        found.replace(before)
    users_.denied("stranger", "GET", "/subjects/secret-value/versions/1")


def test_without_a_login_it_is_user_anonymous() -> None:
    allowed = [Acl(allow_principal="User:ANONYMOUS", operation="Read", topic="orders")]
    with Broker(registry=True, acls=allowed, users={"a": "b"}) as broker:
        users = Users(broker.registry_url)
        assert users.ask("x", "GET", "/subjects/orders-value/versions/1")[0] == 404
        users.denied("x", "GET", "/subjects/secret-value/versions/1")


def test_in_a_cluster_the_leader_decides() -> None:
    settings = {"super.users": "User:root"}
    names = {name: f"of-{name}" for name in USERS}
    with Cluster(2, settings, registry=True, registry_auth=True, users=names, acls=acls()) as cluster:
        for broker in cluster.brokers.values():
            users = Users(broker.registry_url)
            users.ok("writer", "POST", "/subjects/orders-value/versions", SCHEMA)
            users.denied("reader", "POST", "/subjects/orders-value/versions", SCHEMA)
            assert users.ok("reader", "GET", "/schemas/ids/1")["schema"] == ANY
            users.denied("stranger", "GET", "/schemas/ids/1")
