"""The tiers on the page of a topic: what is where, what is unknown, and the topics that have no tiers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.tiers.test_tiers import kafka
from kbroker import Acl, Broker
from kbroker.admin.connection import Connection
from kbroker.admin.topic_tiers import PartitionTiers, Tiers, topic_tiers
from kbroker.console.charts import bar
from kbroker.console.number_text import number, size
from kbroker.console.pages import topic as topic_page
from kbroker.console.server import ConsoleServer
from kbroker.console.tiers_shown import Spread, TiersShown
from tests.console.browser import Browser
from tests.console.conftest import served
from tests.console.test_browser import judged, rows_and_tabs_are_whole
from tests.console.visitor import Answer, Visitor
from tests.tiers.test_broker import PATIENCE_S, TIERED, TOPIC, create, produce, settings, tiered, until
from tests.tries import FORM

PAGE = f"/topics/{TOPIC}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a topic in two tiers, and a topic without remote storage."""
    directory = tmp_path_factory.mktemp("tiers")
    with Broker(settings(directory / "store"), data_dir=str(directory / "data")) as made:
        create(made)
        made.topics.create("plain")
        produce(made, 0, 1000)
        tiered(made)
        yield made


@pytest.fixture(scope="module")
def tiered_console(broker: Broker) -> Iterator[ConsoleServer]:
    with served(broker.bootstrap_servers, read_only=True) as server:
        yield server


@pytest.fixture
def web(tiered_console: ConsoleServer) -> Visitor:
    return Visitor(tiered_console.url)


def section(found: Answer) -> Answer:
    """Return the section of the tiers, alone."""
    card = re.search(r'<section class="card" aria-labelledby="tiers">.*?</section>', found.text, re.DOTALL)
    assert card is not None, found.words
    return Answer(found.status, found.headers, card[0].encode())


def cells(card: Answer) -> list[list[str]]:
    """Return the numbers in each row of the table."""
    rows = re.findall(r"<tr>(<td.*?)</tr>", card.text, re.DOTALL)
    return [re.findall(r'<td class="num"[^>]*>([^<]*)</td>', row) for row in rows]


def settled(broker: Broker, web: Visitor) -> tuple[PartitionTiers, Answer]:
    """Return the tiers and the page of a moment at which no segment is being copied or deleted."""

    def unchanged() -> tuple[PartitionTiers, Answer] | None:
        with Connection(broker.bootstrap_servers, {}).admin() as admin:
            (before,) = topic_tiers(admin, [TOPIC]).partitions
            found = web.page(PAGE)
            (after,) = topic_tiers(admin, [TOPIC]).partitions
        return (before, found) if before == after else None

    found: tuple[PartitionTiers, Answer] = until(unchanged)
    return found


def test_the_page_shows_what_is_where(broker: Broker, web: Visitor) -> None:
    now, page = settled(broker, web)
    assert None not in (now.start, now.local_start, now.latest_tiered, now.end)
    only_local = 1000 - (now.latest_tiered or 0) - 1
    card = section(page)
    numbers = [0, now.start, now.local_start, now.latest_tiered, 1000, only_local]
    sizes = [size(now.local_bytes), size(now.remote_bytes)]
    assert cells(card) == [[*map(number, numbers), *sizes, number(now.remote_segments), number(now.unfinished)]]
    words = f"Local size {sizes[0]} Remote size {sizes[1]} Offsets {number(now.local_start)} only remote, "
    assert f"{words}{1000 - (now.local_start or 0) - only_local:,} on both, {only_local:,} only local" in card.words
    assert card.text.count('<svg class="bar"') == 2
    for part in ("only-remote", "both", "only-local"):
        assert card.text.count(f'<rect class="{part}"') == 2
    assert 'role="alert"' not in card.text, "nothing is unknown"
    assert "data-dialog" not in card.text
    assert " style=" not in card.text, "which the policy forbids"


def test_a_topic_without_remote_storage_has_no_tiers_and_asks_for_none(
    web: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def noted(_: object, names: list[str], **__: object) -> Tiers:
        asked.append(names)
        return Tiers()

    monkeypatch.setattr(topic_page, "topic_tiers", noted)
    assert "Tiers" not in web.page("/topics/plain").words
    assert asked == []
    section(web.page(PAGE))
    assert asked == [[TOPIC]]


def test_what_takes_too_long_is_unknown(web: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_page, "_MOST_SECONDS", 0.0)
    card = section(web.page(PAGE))
    text = "the remote segments are unknown: __remote_log_metadata cannot be read to its end in time: "
    assert card.words.count(f"{text}use kbroker topic tiers") == 1
    assert "Remote size –" in card.words
    ((*_, end, only_local, local, remote, segments, unfinished),) = cells(card)
    assert (end, remote, segments, unfinished) == ("1,000", "–", "–", "–")
    assert "–" not in (only_local, local)


def test_a_slow_cluster_delays_only_the_tiers(web: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_page, "_TIERS_DEADLINE_S", 0.0)
    found = web.page(PAGE)
    assert "1 replica each" in found.words
    card = section(found)
    assert "the tiers are unknown: the cluster has not answered within 0 s" in card.words
    assert "Local size – Remote size – Offsets –" in card.words
    assert "<table" not in card.text


@pytest.mark.parametrize("may_describe_configs", [True, False])
def test_without_the_rights_a_line_tells_why(
    tmp_path: Path, start: Callable[..., Visitor], may_describe_configs: bool
) -> None:
    rights = ["Describe", "DescribeConfigs"] if may_describe_configs else ["Describe"]
    acls = [Acl(allow_principal="User:alice", operation=each, topic=TOPIC) for each in rights]
    acls.append(Acl(allow_principal="User:alice", operation="Describe", topic="__remote_log_metadata"))  # but not Read
    own = {**settings(tmp_path / "store"), "super.users": "User:admin"}
    with Broker(own, users={"admin": "a", "alice": "b"}, acls=acls, data_dir=str(tmp_path / "data")) as broker:
        broker.topics.create(TOPIC, config=TIERED)
        shared = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
        produce(broker, 0, 300, **shared, **{"sasl.username": "admin", "sasl.password": "a"})
        logs = (tmp_path / "data").glob  # without a record there is nothing that alice may not read
        until(lambda: any(each.stat().st_size for each in logs("__remote_log_metadata-*/*.log")))
        login = {each.replace(".", "_"): value for each, value in shared.items()}
        login |= {"sasl_plain_username": "alice", "sasl_plain_password": "b"}
        page = start(broker.bootstrap_servers, connection=login, read_only=True).page(PAGE)
        if not may_describe_configs:
            assert "Tiers" not in page.words, "nobody knows that the topic has tiers"
            return
        card = section(page)
        assert card.words.count("the remote segments are unknown: ") == 1
        assert card.words.count("the bytes on the disks are not known for all partitions: ") == 1
        assert card.text.count('role="alert"') == 2
        ((_, start_offset, _, _, end, *_, local, remote, segments, unfinished),) = cells(card)
        assert (start_offset, end, local, remote, segments, unfinished) == ("0", "300", "–", "–", "–", "–")


@pytest.mark.java
@pytest.mark.skipif(FORM != "long", reason="a second broker: only with KBROKER_TESTS=long")
def test_the_tiers_of_apache_kafka(kafka_libs: Path, tmp_path: Path, start: Callable[..., Visitor]) -> None:
    with kafka(kafka_libs, tmp_path) as theirs:
        admin = AdminClient({"bootstrap.servers": theirs.bootstrap})
        configs = {"remote.storage.enable": "true", "segment.bytes": "1048576", "local.retention.ms": "1000"}
        made = admin.create_topics([NewTopic(TOPIC, 1, 1, config=configs), NewTopic("plain", 1, 1)])
        for each in made.values():
            each.result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": theirs.bootstrap, "batch.size": 50_000, "linger.ms": 5})
        for number in range(5000):
            producer.produce(TOPIC, b"x" * 1000, b"%d" % number)
        assert producer.flush(PATIENCE_S) == 0
        web = start(theirs.bootstrap, read_only=True)
        until(lambda: "Offsets 5,000 only remote, 0 on both, 0 only local" in section(web.page(PAGE)).words)
        card = section(web.page(PAGE))
        ((*offsets, _, remote, segments, unfinished),) = cells(card)
        assert offsets == ["0", "0", "5,000", "4,999", "5,000", "0"]
        assert (remote.endswith(" MB"), int(segments) >= 5, unfinished) == (True, True, "0")
        assert 'role="alert"' not in card.text
        assert "Tiers" not in web.page("/topics/plain").words


def of(
    partition: int,
    start: int | None,
    local_start: int | None,
    latest_tiered: int | None,
    end: int | None,
    *,
    local: int | None = 10,
    remote: int | None = 20,
) -> PartitionTiers:
    segments = None if remote is None else remote // 20
    return PartitionTiers(TOPIC, partition, start, local_start, latest_tiered, end, local, remote, segments, 0)


@pytest.mark.parametrize(
    ("tiers", "only_local", "spread"),
    [
        (of(0, 0, 60, 79, 100), 20, Spread(60, 20, 20)),
        (of(0, 0, 0, 79, 100), 20, Spread(0, 80, 20)),
        (of(0, 0, 100, 99, 100), 0, Spread(100, 0, 0)),
        (of(0, 70, 70, 79, 100), 20, Spread(0, 10, 20)),
        (of(0, 90, 60, 79, 100), 10, Spread(0, 0, 10)),  # the records before offset 90 are deleted
        (of(0, 5, 5, None, 100, remote=0), 95, Spread(0, 0, 95)),
        (of(0, 5, 5, None, 100, remote=None), None, None),
        (of(0, 5, 5, None, 100), None, None),
        (of(0, None, None, 79, 100), 20, None),
        (of(0, 0, None, 79, 100), 20, None),
        (of(0, 0, 60, 79, None), None, None),
    ],
)
def test_each_offset_is_in_one_part(tiers: PartitionTiers, only_local: int | None, spread: Spread | None) -> None:
    (row,) = TiersShown(TOPIC, [0], Tiers([tiers])).rows
    assert (row.only_local, row.spread) == (only_local, spread)


def test_totals_tell_what_they_leave_out() -> None:
    found = [of(0, 0, 60, 79, 100), of(1, 0, 0, 9, 10, local=None)]
    troubles = [f"{TOPIC}-{index} has no leader" for index in range(2, 14)]
    shown = TiersShown(TOPIC, range(14), Tiers(found, troubles))
    assert [each.tiers.partition for each in shown.rows] == list(range(14))
    assert (shown.local.size, shown.local.is_whole) == (10, False)
    assert (shown.remote.size, shown.remote.is_whole) == (40, False)
    assert (shown.spread, shown.unknown) == (Spread(60, 30, 20), 12)
    assert (len(shown.troubles), shown.more_troubles) == (10, 2)
    assert (shown.rows[2].only_local, shown.rows[2].spread) == (None, None)
    empty = Spread()
    assert 'width="0.0"' in bar(empty.parts, empty.whole, empty.words)


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_the_tiers_are_for_everybody(tiered_console: ConsoleServer, window: Browser, axe: str, dark: bool) -> None:
    page = Browser(window.driver, tiered_console.url)
    page.dark(dark)
    for width in (360, 1280):
        page.size(width)
        page.go(PAGE)
        assert judged(page, axe) == [], (dark, width)
        wide = page.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"the page is {wide} pixels too wide at {width}"
        rows_and_tabs_are_whole(page)
        widths = page.run("return [...document.querySelectorAll('svg.bar')].map(e => e.getBoundingClientRect().width)")
        assert len(widths) == 2
        assert min(widths) >= 60, widths
