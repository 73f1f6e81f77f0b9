"""Pages of a schema registry: subjects, versions, checks before registering, and records decoded by their schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest

from kbroker import Acl, Broker
from kbroker.admin.schemas import SchemaRegistry
from tests.console.browser import Browser
from tests.console.conftest import served
from tests.console.test_browser import judged
from tests.console.visitor import Visitor

ODD = "a/b ü <b>"
LONG = [{"name": "id", "type": "long"}]


def order(*more: Mapping[str, object]) -> str:
    return json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": [*LONG, *more]})


NOTE = {"name": "note", "type": ["null", "string"], "default": None}
FIRST, SECOND = order(), order(NOTE)
WRONG = order({"name": "must", "type": "string"})
PERSON = 'syntax = "proto3"; package shop; message Person { string name = 1; }'


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(registry=True) as broker:
        broker.topics.create("orders")
        registry = SchemaRegistry(str(broker.registry_url))
        for text in (FIRST, SECOND):
            registry.ask("POST", "subjects", "orders-value", "versions", body={"schema": text})
        registry.ask("POST", "subjects", ODD, "versions", body={"schema": PERSON, "schemaType": "PROTOBUF"})
        refers = {"name": "shop.Order", "subject": "orders-value", "version": 1}
        body = {"schema": '["shop.Order", "null"]', "references": [refers]}
        registry.ask("POST", "subjects", "either", "versions", body=body)
        yield broker


@pytest.fixture(scope="module")
def visited(broker: Broker) -> Iterator[Visitor]:
    registry = SchemaRegistry(str(broker.registry_url))
    with served(broker.bootstrap_servers, registry=registry) as server:
        yield Visitor(server.url)


def test_subjects_are_listed_and_searched(visited: Visitor) -> None:
    words = visited.page("/subjects").words
    assert "3 subjects of the registry at" in words
    assert "the global level is BACKWARD" in words
    assert f"{ODD} 1" in words
    assert "orders-value 2" in words
    found = visited.page("/subjects?q=ORDERS").words
    assert "orders-value" in found
    assert "either" not in found
    assert "No subject matches." in visited.page("/subjects?q=none").words
    assert 'href="/subjects"' in visited.page("/").text


def test_a_version_is_shown_with_what_changed(visited: Visitor) -> None:
    page = visited.page("/subject?name=orders-value")
    assert "Version 2 of 2 versions" in page.words
    assert "the global level" in page.words
    assert '<a href="/topics/orders">' in page.text
    assert "<ins>+" in page.text
    assert "Used by version 1 of either" in visited.page("/subject?name=orders-value&version=1").words
    assert "is version 1 of orders-value" in visited.page("/subject?name=either").words
    odd = visited.page("/subject?name=a%2Fb+%C3%BC+%3Cb%3E")
    assert "message Person" in odd.words
    assert "<b>" not in odd.text
    assert visited.get("/subject?name=none").status == 404
    assert visited.get("/subject?name=orders-value&version=7").status == 404
    assert visited.get("/subject?name=orders-value&version=x").status == 400


def test_a_version_is_checked_before_it_is_registered(visited: Visitor, broker: Broker) -> None:
    fields = {"name": "orders-value", "type": "AVRO"}
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in visited.refused("subject-check", **fields, schema=WRONG)
    assert "READER_FIELD_MISSING" in visited.refused("subject-register", **fields, schema=WRONG)
    assert "(42201)" in visited.refused("subject-register", **fields, schema="{")
    later = order(NOTE, {"name": "x", "type": "int", "default": 1})
    checked = visited.send(
        "/do/subject-check", {"token": visited.token(), **fields, "schema": later}, hx_request="true"
    )
    assert "may be the next version. Nothing is registered yet." in checked.words
    assert "Version 2 of 2" in visited.page("/subject?name=orders-value").words
    assert "has the id" in visited.do("subject-register", **fields, schema=later).words
    assert "Version 3 of 3" in visited.page("/subject?name=orders-value").words


def test_a_new_subject_its_level_and_its_end(visited: Visitor) -> None:
    fields = {"name": "people-value", "type": "AVRO", "references": "shop.Order=orders-value:1"}
    assert "a reference is NAME=SUBJECT:VERSION" in visited.refused(
        "subject-register", **{**fields, "references": "x"}, schema="1"
    )
    assert "has the id" in visited.do("subject-register", **fields, schema='["shop.Order", "int"]').words
    assert "The level of people-value is FULL." in visited.do("subject-level", name="people-value", level="FULL").words
    assert "FULL of this subject" in visited.page("/subject?name=people-value").words
    for _ in range(2):
        assert "The global level applies" in visited.do("subject-level", name="people-value", level="").words
    assert "level is one of" in visited.refused("subject-level", name="people-value", level="HIGH")
    named = {"name": "people-value", "confirm": "people-value"}
    assert "type people-value to confirm" in visited.refused("subject-delete", name="people-value", confirm="x")
    assert "(40405)" in visited.refused("subject-delete", **named, permanent="1")
    assert "1 version of people-value is deleted." in visited.do("subject-delete", **named).words
    assert "people-value" not in visited.page("/subjects").words
    assert "people-value" in visited.page("/subjects?deleted=1").words
    gone = visited.page("/subject?name=people-value").words
    assert "1 version, deleted" in gone
    assert "is deleted for good." in visited.do("subject-delete", **named, permanent="1").words
    assert visited.get("/subject?name=people-value").status == 404


def test_records_are_written_and_shown_by_their_schemas(visited: Visitor, broker: Broker) -> None:
    sent = {"topic": "orders", "subject": "orders-value", "value": '{"id": 7, "note": "seven"}'}
    assert "The record is at offset 0" in visited.do("produce", **sent).words
    assert "the value does not match the Avro schema: value.id is no long" in visited.refused(
        "produce", **{**sent, "value": '{"id": "x"}'}
    )
    assert "(40401)" in visited.refused("produce", **{**sent, "subject": "none"})
    (record,) = broker.topics["orders"].records()
    assert record.value is not None
    assert record.value[:1] == b"\0"
    broker.topics["orders"].produce(b"\0\0\0\x27\x0f{broken")
    words = visited.page("/topics/orders/messages").words
    assert '{"id": 7, "note": "seven"' in words
    one = visited.page("/topics/orders/records/0/0").words
    assert "Confluent's framing, schema id" in one
    assert "shop.Order" in one
    assert "Schema 9999 not found" in visited.page("/topics/orders/records/0/1").words
    assert '{"id": 7' in visited.page("/topics/orders/messages?where=.id+%3D%3D+7").words
    assert '{"id": 7' in visited.page("/topics/orders/messages?where=value.id+%3D+7").words
    assert '{"id": 7' not in visited.page("/topics/orders/messages?where=value.id+%3D+8").words


def test_without_a_registry_the_pages_say_how_to_name_one(broker: Broker) -> None:
    with served(broker.bootstrap_servers) as server:
        visitor = Visitor(server.url)
        assert "kbroker console --registry URL" in visitor.get("/subjects").words
        assert visitor.get("/subjects").status == 404
        assert 'href="/schemas"' in visitor.page("/").text


def test_a_login_with_few_rights_sees_what_it_may(broker: Broker) -> None:
    """Compatibility levels need DescribeConfigs, a schema needs Read, and the name of a subject needs Describe."""
    users = {"root": "secret", "reader": "secret"}
    acls = [
        Acl(allow_principal="User:reader", operation="Read", topic="orders"),
        Acl(allow_principal="User:reader", operation="Describe", topic="names"),
    ]
    with Broker({"super.users": "User:root"}, registry=True, registry_auth=True, users=users, acls=acls) as secured:
        urls = {user: str(secured.registry_url).replace("//", f"//{user}:secret@") for user in users}
        root = SchemaRegistry(urls["root"])
        for subject in ("orders-value", "names-value", "hidden-value"):
            root.ask("POST", "subjects", subject, "versions", body={"schema": FIRST})
        refers = {"name": "shop.Order", "subject": "orders-value", "version": 1}
        body = {"schema": '["shop.Order", "null"]', "references": [refers]}
        root.ask("POST", "subjects", "hidden-value", "versions", body=body)
        with served(broker.bootstrap_servers, registry=SchemaRegistry(urls["reader"])) as server:
            visitor = Visitor(server.url)
            listed = visitor.page("/subjects").words
            assert "2 subjects of the registry" in listed
            assert "the global level" not in listed
            shown = visitor.page("/subject?name=orders-value").words
            assert "Compatibility – no right to see it" in shown
            assert '"name": "Order"' in shown


def test_a_registry_that_does_not_answer_is_named(broker: Broker) -> None:
    with served(broker.bootstrap_servers, registry=SchemaRegistry("http://127.0.0.1:1")) as server:
        visitor = Visitor(server.url)
        answer = visitor.get("/subjects")
        assert (answer.status, "no registry answers at http://127.0.0.1:1" in answer.words) == (503, True)
        broker.topics.create("framed").produce(b"\0\0\0\0\x01x")
        assert "no registry answers" in visitor.page("/topics/framed/records/0/0").words


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_the_pages_are_for_everybody(visited: Visitor, page: Browser, axe: str, width: int, dark: bool) -> None:
    page.size(width)
    page.dark(dark)
    for path in ("/subjects", "/subject?name=orders-value", "/schemas"):
        page.driver.get(f"{visited.url}{path}")
        assert judged(page, axe) == [], path
        wide = page.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, path


@pytest.mark.browser
def test_a_check_leaves_what_was_typed(visited: Visitor, page: Browser) -> None:
    page.driver.get(f"{visited.url}/subject?name=either")
    field = page.find("#next-text")
    field.clear()
    field.send_keys('"string"')
    page.find("[formaction='/do/subject-check']").click()
    page.until(lambda: "cannot be the next version" in page.find(".refused").text, "the reasons are not shown")
    assert page.find("#next-text").get_attribute("value") == '"string"'
    page.driver.get(f"{visited.url}/subject?name=orders-value")
    page.find("[formaction='/do/subject-check']").click()
    page.until(lambda: "Nothing is registered yet" in page.find(".refused").text, "no answer is shown")
