"""Pages as a reader without a browser gets them: complete, and bounded."""

from __future__ import annotations

import logging
import re
import threading

import pytest

from kbroker.admin.cluster_view import is_misled
from kbroker.console import console as consoles
from kbroker.console.configs_shown import meaning
from kbroker.console.listing import place
from kbroker.console.number_text import span
from kbroker.console.pages import PAGES, subjects
from kbroker.console.render import breakable
from kbroker.console.sampler import Sampler
from kbroker.protocol.messages.cluster import MetadataResponsePartition
from tests.console import world
from tests.console.walk import WALK
from tests.console.world import HOSTILE


def test_the_walk_goes_to_every_page():
    for each in (page for page in PAGES if page not in subjects.PAGES):  # which need a registry: test_subjects.py
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
    assert "No topic matches" in web.page("/topics?health=min-isr").words
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
    assert "Not found" in missing.words
    assert 'href="/topics">To the topics<' in missing.text
    assert missing.status == 404
    assert "there is no topic nothing" in missing.words


def part(leader: int, replicas: list[int], isr: list[int]) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        error_code=0, partition_index=0, leader_id=leader, replica_nodes=replicas, isr_nodes=isr, offline_replicas=[]
    )


def test_a_preferred_leader_is_elected_only_where_it_can_be():
    assert is_misled(part(2, [1, 2], [1, 2]))
    assert not is_misled(part(2, [1, 2], [2])), "the first replica is gone, or not in sync"
    assert not is_misled(part(1, [1, 2], [1, 2]))
    assert not is_misled(part(-1, [1, 2], [1])), "nobody leads it"
    assert not is_misled(part(-1, [], []))


def test_records_are_shown_although_a_partition_has_no_leader(web, monkeypatch):
    look = consoles.view_with

    def without_a_leader(admin, names=None):
        view = look(admin, names)
        view.topics["orders"].partitions[2].leader_id = -1
        return view

    monkeypatch.setattr(consoles, "view_with", without_a_leader)
    found = web.page("/topics/orders/messages")
    assert "Partition 2 has no leader" in found.words
    shown = set(re.findall(r"/topics/orders/records/([0-9])/", found.text))
    assert shown == {"0", "1", "3", "4", "5"}
    found = web.page("/topics/orders/messages?partition=2")
    assert "Partition 2 has no leader" in found.words
    assert "/topics/orders/records/" not in found.text
    assert "has no leader" not in web.page("/topics/orders/messages?partition=1").words


def test_a_topic_below_min_insync_replicas_says_so(web, console, monkeypatch):
    monkeypatch.setattr(Sampler, "_under_min_isr", lambda *_: {("orders", 0), ("orders", 1), ("clicks", 0)})
    assert console.console.sampler.wait_for_rounds(console.console.sampler.samples.rounds + 2, 30)
    assert "2 below min.insync.replicas" in web.page("/topics/orders").words


def test_a_drain_that_cannot_be_says_why(web):
    words = web.page("/cluster/drain?broker=1").words
    assert "The broker cannot be drained" in words
    assert re.search(r" and \d+ other partitions\. Add a broker first", words)


def test_fields_that_are_out_of_sight_are_seen_where_they_are_set(web):
    assert "<details>" in web.page("/topics/orders/messages?from=oldest&since=0&limit=50&vform=auto").text
    for query in ("vform=hex", "limit=20", "where=.id"):
        assert "<details open>" in web.page(f"/topics/orders/messages?{query}").text, query


def test_values_are_said_in_units_that_people_read(web):
    assert "604800000 7 d set here" in web.page("/topics/orders/configs?own=1").words
    assert meaning("retention.ms", "131400000") == "1 d 12 h 30 min"
    assert meaning("segment.bytes", "1073741824") == "1.1 GB"
    for key, value in (("retention.ms", "-1"), ("flush.ms", "9223372036854775807"), ("min.insync.replicas", "20000"),
                       ("linger.ms", "5"), ("segment.ms", ""), ("max.message.bytes", "100")):  # fmt: skip
        assert meaning(key, value) == "", (key, value)
    assert (span(0), span(1001)) == ("0 ms", "1 s 1 ms")


def test_names_are_broken_between_their_parts():
    assert breakable("com.example-v2") == "com.<wbr>example-<wbr>v2"
    assert breakable("__a<b>&c.") == "__<wbr>a&lt;b&gt;&amp;c."


def test_what_is_in_records_is_never_markup(web):
    for path in ("/topics/hostile/messages", "/topics/hostile/records/0/0", "/topics/hostile/records/0/1"):
        found = web.page(path)
        assert HOSTILE not in found.text
        assert "<img" not in found.text.replace('<img src="/static', "")
        assert "&lt;script&gt;" in found.text


def test_a_large_value_is_cut_and_downloaded_whole(web):
    found = web.page("/topics/hostile/records/0/3")
    assert len(found.text) < 120_000
    assert "The text is truncated here" in found.words
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
        web.do("group-delete", group=HOSTILE, confirm=HOSTILE)


def test_a_view_names_its_source_and_offers_no_writes(web, cluster):
    orders = cluster.topics["orders"]
    config = {"view.source": "orders", "view.filter": "header.region = '<b>EU'"}
    topic = cluster.topics.create("orders-eu", orders.partitions, config=config)
    try:
        found = web.page("/topics/orders-eu")
        assert "A view of orders" in found.words
        assert "header.region = '<b>EU'" in found.words
        assert 'data-dialog="grow"' not in found.text
        assert 'data-dialog="truncate"' not in found.text
        assert "A view of" not in web.page("/topics/orders").words
        found = web.page("/topics/orders-eu/messages")
        assert found.status == 200
        assert 'data-dialog="produce"' not in found.text
        assert 'data-dialog="produce"' in web.page("/topics/orders/messages").text
    finally:
        topic.delete()


def test_a_view_without_its_source_is_shown_and_can_be_deleted(web, cluster):
    cluster.topics.create("short-lived", 1)
    view = cluster.topics.create("left-over", 1, config={"view.source": "short-lived", "view.filter": "*"})
    gone = False
    try:
        assert web.do("topic-delete", topic="short-lived", confirm="short-lived").status == 200
        row = web.page("/topics?q=left-over")
        assert re.search(r'href="/topics/left-over".*without its source', row.text, re.DOTALL), row.words
        assert "The source does not exist any longer" in web.page("/topics/left-over").words
        assert web.page("/topics/left-over/messages").status == 200
        assert web.page("/topics/left-over/configs").status == 200
        assert web.do("topic-delete", topic="left-over", confirm="left-over").status == 200
        gone = True
        assert web.get("/topics/left-over").status == 404
    finally:
        if not gone:
            view.delete()
