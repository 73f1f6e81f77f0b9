"""The console of Apache Kafka: every page, and the main changes, in a browser if there is one."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from tests.cli.test_deadletter import died, write
from tests.console import world
from tests.console.browser import browser, missing
from tests.console.conftest import served
from tests.console.visitor import Visitor
from tests.console.walk import OURS, WALK

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def apache(apache_kafka):
    """A console of Apache Kafka, with something of everything in it."""
    bootstrap = apache_kafka.bootstrap
    world.make(bootstrap, orders=200)
    world.commit(bootstrap, "billing", "orders")
    with world.open_transaction(bootstrap, "checkout-1", "payments"), served(bootstrap) as server:
        yield server


@pytest.fixture
def web(apache):
    return Visitor(apache.url)


@pytest.mark.parametrize("path", [each for each in WALK if each not in OURS])
def test_every_page_is_there(web, path):
    assert "<h1>" in web.page(path).text


def test_its_pages_say_what_there_is(web):
    assert "Nothing is wrong" in web.page("/").words
    assert (
        "Valid Values" in web.page("/topics/orders/configs").words
        or "compact" in web.page("/topics/orders/configs").words
    )
    assert "metadata.version" in web.page("/features").words
    assert "Ongoing" in web.page("/transaction?id=checkout-1").words
    assert (
        "begins at"
        in web.page("/transactions/producers?topic=payments&partition=0").words
        + web.page("/transactions/producers?topic=payments&partition=1").words
        + web.page("/transactions/producers?topic=payments&partition=2").words
    )
    assert "open" in web.page("/topics/payments/messages").words
    assert "open open" not in web.page("/topics/payments/messages?committed=1").words


def shown(web, path, text):
    """Wait until a page contains a text: Apache Kafka confirms a config before each broker shows it."""
    deadline = time.monotonic() + 10
    while text not in web.page(path).words:
        assert time.monotonic() < deadline, (path, text)
        time.sleep(0.05)


def test_the_main_changes(web, apache):
    assert "Topic life is created." in web.do("topic-create", name="life", partitions="2").words
    web.do("topic-config", topic="life", key="retention.ms", value="2000")
    shown(web, "/topics/life/configs?own=1", "2000")
    web.do("topic-partitions", topic="life", count="3")
    assert "is at offset 0 of partition 1" in web.do("produce", topic="life", key="k", value="v", partition="1").words
    web.do("topic-truncate", topic="life", partition="1", offset="1", confirm="life")
    assert "has no record at offset 0" in web.get("/topics/life/records/1/0").words
    web.do("topic-elect", topic="life")
    world.commit(apache.console.connection.bootstrap, "moved", "payments", 1.0)
    web.do("group-reset", name="moved", set="payments:1:0", confirm="moved")
    web.do("group-delete-offsets", group="moved", topic="payments", confirm="moved")
    web.do("group-delete", group="moved", confirm="moved")
    try:
        web.do("config", kind="broker", everyone="1", key="message.max.bytes", value="2000000")
        shown(web, "/configs?everyone=1&own=1", "2000000")
    finally:  # other tests compare this broker's configs
        web.do("config", kind="broker", everyone="1", key="message.max.bytes", unset="1")
    web.do("config", kind="client-metrics", name="sub", key="interval.ms", value="60000")
    shown(web, "/configs?kind=client-metrics&name=sub", "60000")
    web.do("user-add", name="carol", password="s3cret", again="s3cret", mechanism="SCRAM-SHA-256")
    web.do("user-remove", name="carol", confirm="carol")
    web.do("quota-set", user="dave", key="producer_byte_rate", value="1000")
    web.do("quota-remove", user="dave", key="producer_byte_rate")
    web.do("transaction-terminate", id="checkout-1", confirm="checkout-1")
    assert "Deleted life." in web.do("topic-delete", topic="life", confirm="life").words


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_are_drawn(web, apache, protocol):
    with world.members(apache.console.connection.bootstrap, f"drawn-{protocol}", "orders", 1, protocol):
        assert web.page(f"/group?name=drawn-{protocol}").text.count('<td class="has">') == 6


@pytest.mark.browser
def test_every_page_in_a_browser(apache, tmp_path):
    lacking = missing()
    if lacking is not None:
        pytest.fail(f"needs {lacking}")
    with browser(apache.url, str(tmp_path)) as page:
        for path in (each for each in WALK if each not in OURS):
            page.go(path)
            assert page.find("h1")
        assert page.complaints() == []


def test_dead_letters_are_replayed_and_purged(web, apache_kafka):
    web.do("topic-create", name="dlq.audit-log", partitions="1")
    headers = died("audit-log", 0, 99)
    write(SimpleNamespace(bootstrap=apache_kafka.bootstrap), "dlq.audit-log", (0, "k", "lost and found", headers))
    assert "audit-log 0 workers rejected 1 0" in web.page("/deadletters?topic=dlq.audit-log").words
    fields = {"topic": "dlq.audit-log", "end": "0:1", "confirm": "dlq.audit-log"}
    assert "1 dead letter replayed." in web.do("deadletter-replay", **fields).words
    assert "lost and found" in web.page("/topics/audit-log/messages").words
    web.do("deadletter-purge", topic="dlq.audit-log", set="0:1", confirm="dlq.audit-log")
    assert "There are no dead letters." in web.page("/deadletters?topic=dlq.audit-log").words
