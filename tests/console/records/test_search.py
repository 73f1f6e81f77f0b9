"""How records are searched: every record once, within limits, and continued from the last position."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.admin.cluster_view import cluster_view
from kbroker.admin.connection import Connection
from kbroker.admin.errors import AdminError, WrongInput
from kbroker.console.records import search as searching
from kbroker.console.records.filters import Filter
from kbroker.console.records.search import Cursor, Search, parse_cursor

CITY = '.user.city == "Oslo" and .items[].price > 250'


@pytest.fixture(scope="module")
def many(cluster):
    """Create a topic in which each record contains its number."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    made = client.create_topics([NewTopic("many", 3, 1)])
    made["many"].result(20)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 50})
    for number in range(3_000):
        producer.produce("many", b"%d" % number, timestamp=1_700_000_000_000 + number * 10, partition=number % 3)
    assert producer.flush(20) == 0
    with Connection(cluster.bootstrap_servers, {}).admin() as admin:
        yield admin, cluster_view(admin, ["many"]).topics["many"]


def numbers(step):
    return [int(each.value) for each in step.records]


def walked(admin, search):
    """Search to the end; return the results step by step."""
    found, cursor = [], None
    for _ in range(500):
        step = search.step(admin, cursor)
        found.append(numbers(step))
        cursor = Cursor(search.forward, parse_cursor(str(step.cursor)), step.cursor.read, step.cursor.found)
        if step.over:
            return found
    raise AssertionError("it does not end")


@pytest.mark.long
@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("limit", [1_000, 70])
def test_everything_comes_once_and_in_order(many, forward, limit):
    admin, topic = many
    steps = walked(admin, Search(topic, [0, 1, 2], Filter(), forward=forward, limit=limit))
    found = [each for step in steps for each in step]
    assert found == sorted(range(3_000), reverse=not forward)
    assert all(len(step) <= limit for step in steps)


@pytest.mark.parametrize("forward", [True, False])
def test_what_is_rare_is_found_wherever_it_is(many, forward):
    admin, topic = many
    wanted = Filter((lambda record: int(record.value) % 997 == 1,))
    steps = walked(admin, Search(topic, [0, 1, 2], wanted, forward=forward, limit=50))
    assert sorted(each for step in steps for each in step) == [1, 998, 1995, 2992]


def test_times_and_offsets_bound_it(many):
    admin, topic = many
    since, until = 1_700_000_000_000 + 1_000 * 10, 1_700_000_000_000 + 1_100 * 10
    between = Search(topic, [0, 1, 2], Filter(), forward=True, since_ms=since, until_ms=until, limit=1_000)
    assert [each for step in walked(admin, between) for each in step] == list(range(1_000, 1_100))
    late = Search(topic, [0, 1, 2], Filter(), since_ms=9_999_999_999_999, limit=10)
    assert walked(admin, late) == [[]]
    from_offset = Search(topic, [1], Filter(), forward=True, from_offset=998, limit=10)
    assert walked(admin, from_offset) == [[2_995, 2_998]]


@pytest.mark.long
def test_a_step_is_bounded_in_records_and_goes_on(many, monkeypatch):
    admin, topic = many
    monkeypatch.setattr(searching, "STEP_RECORDS", 100)
    search = Search(topic, [0, 1, 2], Filter((lambda _: False,)), limit=10)
    first = search.step(admin, None)
    assert not first.over
    assert first.cursor.read < 1_000
    assert 0 < first.done < 1
    assert first.reached_ms > 0
    steps = walked(admin, search)
    assert len(steps) > 5
    assert all(not step for step in steps)


def test_a_step_is_bounded_in_time_and_goes_on(many, monkeypatch):
    admin, topic = many
    monkeypatch.setattr(searching, "STEP_S", 0.0)
    steps = walked(admin, Search(topic, [0, 1, 2], Filter(), limit=400))
    assert sorted(each for step in steps for each in step) == list(range(3_000))


def test_large_records_backwards_are_not_all_in_memory(many, monkeypatch):
    admin, topic = many
    monkeypatch.setattr(searching, "_WINDOW_BYTES", 200)
    steps = walked(admin, Search(topic, [0], Filter(), limit=300))
    assert sorted(each for step in steps for each in step) == list(range(0, 3_000, 3))


def test_a_cursor_that_is_nonsense_is_refused(many):
    admin, topic = many
    for text in ("a", "0:", "0:1;", "0:" + "9" * 30):
        with pytest.raises(WrongInput):
            parse_cursor(text)
    step = Search(topic, [0], Filter(), forward=True).step(admin, Cursor(True, {0: 10**15, 7: 1}))
    assert (step.records, step.over) == ([], True)
    with pytest.raises(AdminError, match="has no leader"):
        Search(topic, [9], Filter()).step(admin, None)


def pages(web, path):
    """Follow a search through its pages; yields their texts."""
    for _ in range(50):
        page = web.page(path)
        yield page
        found = re.search(r'href="(/topics/many/messages\?[^"]*\bat=[^"]*)"', page.text)
        if found is None:
            return
        path = found[1].replace("&amp;", "&")


def test_pages_lead_through_a_search(web, many):
    del many
    got = []
    for page in pages(web, "/topics/many/messages?limit=100&value=99&regex=1&from=oldest"):
        got += re.findall(r'<td class="preview">(\d+)</td>', page.text)
    assert sorted(map(int, got)) == [n for n in range(3_000) if "99" in str(n)]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("where=nope+%3D+1", "at character 1: nope is no field"), ("where=.a+nope", "not a keyword"),
        ("value=(&regex=1", "no regular expression"),
        ("partition=9", "has no partition 9"), ("from=offset", "the offset is missing"),
        ("from=time", "the time is missing"),
        ("since=yesterday", "is no time"), ("vform=schema:nope", "no way to show a value"),
        ("from=nowhere", "is one of"),
        ("at=x", "cannot be read"), ("limit=7", "is one of"), ("offset=-1", "whole number"),
    ],
)  # fmt: skip
def test_fields_that_cannot_be_are_said_on_the_page(web, query, said):
    assert said in web.page(f"/topics/orders/messages?{query}").words


@pytest.mark.parametrize(
    ("query", "count"),
    [
        (f"where={quote(CITY)}", None), ("key=7", None),
        ("header=source%3Dshop&limit=200", 200), ("header=nope", 0), ("value=lamp&regex=1", None),
    ],
)  # fmt: skip
def test_filters_find_what_they_say(web, query, count):
    page = web.page(f"/topics/orders/messages?{query}")
    rows = page.text.count("<tr data-open")
    assert rows if count is None else rows == count


def test_only_what_is_committed_is_shown_if_asked(web):
    assert "transaction" in web.page("/topics/payments/messages").words
    assert "open open" not in web.page("/topics/payments/messages?committed=1").words
