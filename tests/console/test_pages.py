"""Pages as who reads them without a browser gets them: complete, and bounded."""

from __future__ import annotations

import logging
import re
import threading

import pytest

from kbroker.console.page_urls import place
from kbroker.console.pages import PAGES
from tests.console import world
from tests.console.walk import WALK
from tests.console.world import HOSTILE


def test_the_walk_goes_to_every_page():
    for each in PAGES:
        pattern = re.sub(r"{[^}]*}", "[^/?]+", each.path)
        assert any(re.fullmatch(pattern + r"(\?.*)?", path) for path in WALK), each.path


@pytest.mark.parametrize("path", WALK)
def test_every_page_is_there_and_is_whole(web, path):
    found = web.page(path)
    assert found.text.count("<main") == found.text.count("</main>") == 1
    assert "<h1>" in found.text
    assert " style=" not in found.text, "which the policy forbids"
    assert not re.search(r"<script(?![^>]*\bsrc=)", found.text), "a script stands in the page"
    assert not re.search(r"<[^>]*\son[a-z]+=", found.text), "a handler stands in the page"


def test_a_mistake_of_the_consoles_own_is_in_its_log(web, monkeypatch):
    noted = threading.Event()

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and isinstance(record.exc_info[1], ZeroDivisionError):
                noted.set()

    monkeypatch.setattr("kbroker.console.pages.topics.has_words", lambda *_: 1 / 0)
    handler = Noting()
    logging.getLogger().addHandler(handler)
    try:
        assert web.get("/topics").status == 500
        assert noted.wait(10)
    finally:
        logging.getLogger().removeHandler(handler)


def test_the_overview_says_what_there_is(web, cluster):
    words = web.page("/").words
    assert "Nothing is wrong" in words
    assert cluster.bootstrap_servers in words
    assert "controller" in words


def test_topics_are_searched_sorted_and_paged(web):
    words = web.page("/topics").words
    assert "orders" in words
    assert "__consumer_offsets" not in words
    assert "__consumer_offsets" in web.page("/topics?internal=1").words
    found = web.page("/topics?q=ord+avro", x_part="list")
    assert "orders-avro" in found.words
    assert "<nav" not in found.text, "a part is a part"
    assert "payments" not in found.words
    assert "No topic is like that" in web.page("/topics?health=min-isr").words
    rows = re.findall(r'<td class="name"><a href="/topics/([^"]+)"', web.page("/topics?sort=partitions").text)
    assert rows[0] == "clicks"
    rows = re.findall(r'<td class="name"><a href="/topics/([^"]+)"', web.page("/topics?sort=name&dir=desc").text)
    assert rows == sorted(rows, reverse=True)


def test_a_topic_shows_its_partitions_and_configs(web):
    words = web.page("/topics/orders").words
    assert "6 1 replica each" in words
    found = web.page("/topics/orders/configs?own=1", x_part="list")
    assert "retention.ms" in found.words
    assert "604800000" in found.words
    assert "cleanup.policy" not in found.words
    assert "cleanup.policy" in web.page("/topics/orders/configs").words


def test_what_is_not_there_is_said(web):
    assert web.get("/nothing").status == 404
    missing = web.get("/topics/nothing")
    assert missing.status == 400
    assert "there is no topic nothing" in missing.words


def test_what_is_in_records_is_never_markup(web):
    for path in ("/topics/hostile/messages", "/topics/hostile/records/0/0", "/topics/hostile/records/0/1"):
        found = web.page(path)
        assert HOSTILE not in found.text
        assert "<img" not in found.text.replace('<img src="/static', "")
        assert "&lt;script&gt;" in found.text


def test_a_large_value_is_cut_and_downloaded_whole(web):
    found = web.page("/topics/hostile/records/0/3")
    assert len(found.text) < 120_000
    assert "It is cut here" in found.words
    got = web.page("/topics/hostile/records/0/3/download?part=value")
    assert got.body == b"x" * 200_000
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["content-disposition"].startswith("attachment")


def test_names_are_never_markup(web, cluster):
    world.commit(cluster.bootstrap_servers, HOSTILE, "customers")
    web.do("schema-add", name=HOSTILE[:60], kind="avro", text='"string"')
    web.do("quota-set", user=HOSTILE, key="producer_byte_rate", value="1")
    rule = {"principal": f"User:{HOSTILE}", "operation": "Read", "resource": "Topic", "resource_name": HOSTILE}
    web.do("acl-add", **rule)
    try:
        for path in (
            "/groups", "/", place("/group", name=HOSTILE), place("/group/reset", name=HOSTILE, to="earliest"),
            "/schemas", "/quotas", "/acls", place("/topics", q=HOSTILE), place("/group", name=f"{HOSTILE}no"),
            "/topics/customers",
            place("/topics/orders/messages", value=HOSTILE, where=HOSTILE), place("/transaction", id=HOSTILE),
        ):  # fmt: skip
            found = web.get(path).text
            assert HOSTILE[:30] not in found, path
            assert "&lt;script&gt;" in found or path == "/", path
    finally:
        web.do("schema-remove", name=HOSTILE[:60])
        web.do("quota-remove", user=HOSTILE, key="producer_byte_rate")
        web.do("acl-remove", **rule, confirm=rule["principal"])
        web.do("group-delete", name=HOSTILE, confirm=HOSTILE)
