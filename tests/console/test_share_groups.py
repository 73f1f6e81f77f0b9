"""Pages of share and streams groups, and of dead letters: what they show, and what their forms do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges import share_groups, streams_groups
from kbroker import Broker
from kbroker.console.number_text import short_number
from kbroker.console.pages import deadletters
from kbroker.console.pages.groups import drawn
from kbroker.console.server import ConsoleServer
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.testing.waiting import hold
from tests.cli.test_deadletter import died, write
from tests.console.browser import Browser
from tests.console.test_browser import judged
from tests.console.visitor import Visitor
from tests.console.world import HOSTILE
from tests.share_partition.conversation import Member, acquired


def joins(client: WireClient, beat: Callable[[int], Any], version: int = 1) -> Callable[[], Any]:
    """Return a member's heartbeat, which returns the last response."""
    epoch = 0

    def once() -> Any:
        nonlocal epoch
        answer = client.ask(beat(epoch), version)
        epoch = answer.member_epoch or epoch
        return answer

    return once


def shown(console: ConsoleServer, web: Visitor, path: str, words: str) -> None:
    """Wait until a page shows words. The sampler looks at once: after a slow round it would pause for a minute."""

    def is_there() -> bool:
        console.console.sampler.look_again()
        return words in web.page(path).words

    hold(is_there, 30)


@pytest.fixture(scope="module")
def packing(cluster: Broker) -> Iterator[str]:
    """Create a share group whose member has acquired three records of a topic."""
    cluster.topics.create("parcels")
    served = SimpleNamespace(broker=cluster, topics={})
    with WireClient(cluster.bootstrap_servers) as client, Member(served, "packer", "packing") as member:
        client.ask(FindCoordinatorRequest(key="packing"), 3)
        served.topics["parcels"] = cluster.node.controller.state.topics["parcels"].topic_id
        beat = joins(client, lambda epoch: share_groups.beat("packing", "packer", epoch, "parcels"))
        hold(lambda: beat() and any(each.assigned for each in cluster.groups["packing"].members), 20)
        assert acquired(member.fetch(("parcels", 0))) == []
        for number in range(3):
            cluster.topics["parcels"].produce(f"parcel {number}")
        hold(lambda: acquired(member.fetch(("parcels", 0))), 20)
        member.acknowledge({("parcels", 0): [(1, 1, [2])]})
        yield "packing"


@pytest.fixture(scope="module")
def counting(cluster: Broker) -> Iterator[str]:
    """Create a streams group with one member."""
    cluster.topics.create("votes", 2)
    with WireClient(cluster.bootstrap_servers) as client:
        client.ask(FindCoordinatorRequest(key="counting"), 3)
        topology = streams_groups.reading("votes")

        def request(epoch: int) -> Any:
            if epoch:
                return streams_groups.beat("counting", "counter", epoch)
            return streams_groups.enter("counting", "counter", topology)

        beat = joins(client, request)
        hold(lambda: beat() and any(each.assigned for each in cluster.groups["counting"].members), 20)
        yield "counting"


def test_a_share_group(console: ConsoleServer, web: Visitor, packing: str) -> None:
    words = web.page(f"/group?name={packing}").words
    assert "share" in words
    assert re.search(r"Partitions Topic Part\. Done before Lag parcels 0 0 3", words), words
    assert "packer" in words
    assert "In flight" not in words, "this console does not know what the broker has in memory"
    shown(console, web, f"/groups?q={packing}", f"{packing} Stable share 1 3")
    assert "The group has members" in web.page(f"/group/reset?name={packing}&to=earliest").words


def test_what_is_in_flight(start: Any, cluster: Broker, packing: str) -> None:
    asked: list[tuple[str, int]] = []

    def told(group: str, most: int) -> list[Any]:
        asked.append((group, most))
        return [SimpleNamespace(in_flight=cluster.groups[group].in_flight(count=most))]

    words = start(cluster.bootstrap_servers, in_flight=told).page(f"/group?name={packing}").words
    assert asked == [(packing, 200)]
    assert re.search(r"parcels 0 0 acquired 1 wire \d+ s parcels 0 1 available 1 – – parcels 0 2 acquired", words), (
        words
    )


def test_a_streams_group(web: Visitor, counting: str) -> None:
    words = web.page(f"/group?name={counting}").words
    assert re.search(r"Topology epoch \d+ Subtopology Reads Repartitions into Changelogs 0 votes – –", words), words
    assert "0_0 0_1" in words


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1280])
def test_the_pages_are_for_everybody(
    page: Browser, axe: str, packing: str, counting: str, failing: str, width: int
) -> None:
    page.size(width)
    for path in (*(f"/group?name={name}" for name in (packing, counting, failing)), "/groups"):
        page.go(path)
        assert judged(page, axe) == [], path
        wide = page.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, path


@pytest.fixture(scope="module")
def failing(cluster: Broker) -> str:
    """Create a group whose three members in turn have left at the same record."""
    cluster.topics.create("bookings").produce('{"seat": 7}', key="poison")
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "booking", "enable.auto.commit": False}
    for _ in range(3):
        consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
        consumer.subscribe(["bookings"])
        found = hold(lambda: consumer.poll(0.5), 30)  # noqa: B023 - called here only
        consumer.commit(offsets=[TopicPartition("bookings", 0, found.offset())], asynchronous=False)
        consumer.close()

    def named() -> bool:
        cluster.clock.advance(seconds=2)
        return "booking" in cluster.node.stuck_groups.stuck()

    hold(named, 30)
    return "booking"


def test_a_record_that_a_group_does_not_get_past(console: ConsoleServer, web: Visitor, failing: str) -> None:
    shown(console, web, f"/groups?q={failing}", "stuck at a record")
    words = web.page(f"/group?name={failing}").words
    assert re.search(r"bookings 0:0 3 members left there \S+ \S+ poison \{.seat.: 7\}", words), words
    assert f"kbroker group skip {failing} --to-deadletter TOPIC" in words
    shown(console, web, "/", f"Group {failing} does not get past a record")


@pytest.fixture
def lost(cluster: Broker) -> str:
    """Create a dead letter topic with three dead letters, one of which cannot be replayed."""
    if "dlq.returns" in cluster.topics:
        for name in ("returns", "dlq.returns"):
            cluster.topics[name].delete()
    cluster.topics.create("returns").produce("boots", key="a", headers=[("trace", b"7")])
    cluster.topics.create("dlq.returns")
    cli = SimpleNamespace(bootstrap=cluster.bootstrap_servers)
    write(
        cli,  # type: ignore[arg-type]
        "dlq.returns",
        (0, "a", "boots", died("returns", 0, 0)),
        (0, "b", "gloves", died("returns", 0, 5)),
        (0, "c", "hat", died("none", 0, 0)),
    )
    return "dlq.returns"


def hidden(text: str, *names: str) -> dict[str, str]:
    """Return the hidden fields of a page's form; the last of a name."""
    return {name: re.findall(rf'type="hidden" name="{name}" value="([^"]*)"', text)[-1] for name in names}


def test_dead_letters_are_replayed_as_shown_and_purged(web: Visitor, cluster: Broker, lost: str) -> None:
    words = web.page(f"/deadletters?topic={lost}").words
    assert "returns 0 workers rejected 2 0" in words
    assert "gloves" in words
    assert "names an origin" not in words
    assert "1 record has no header that names an origin" in web.page("/deadletters?topic=returns").words
    refused = web.get("/deadletters/purge?topic=returns&what=all")
    assert (refused.status, "returns-0 offset 0 is no dead letter" in refused.words) == (409, True)
    assert "Dead letters" in web.page(f"/topics/{lost}").words
    refused = web.page(f"/deadletters/replay?topic={lost}&show=1")
    assert "1 letter cannot be replayed" in refused.words
    assert "topic none does not exist" in refused.words
    assert "deadletter-replay" not in refused.text
    shown = web.page(f"/deadletters/replay?topic={lost}&show=1&skip=1")
    assert "Replay 2 letters" in shown.words
    fields = {"topic": lost, **hidden(shown.text, "skip", "end", "again", "keep", "to")}
    write(SimpleNamespace(bootstrap=cluster.bootstrap_servers), lost, (0, "d", "late", died("returns", 0, 9)))  # type: ignore[arg-type]
    assert "type dlq.returns to confirm" in web.refused("deadletter-replay", **fields, confirm="")
    assert "2 dead letters replayed, 1 passed over." in web.do("deadletter-replay", **fields, confirm=lost).words
    assert cluster.topics["returns"].values() == [b"boots", b"boots", b"gloves"], "not what came later"
    assert "were replayed meanwhile" in web.refused("deadletter-replay", **fields, confirm=lost)
    assert "late" in web.page(f"/deadletters?topic={lost}").words
    purging = web.page(f"/deadletters/purge?topic={lost}&what=replayed").text
    form = {"topic": lost, **hidden(purging, "set")}
    assert form["set"] == "0:3"
    assert "deleted" in web.do("deadletter-purge", **form, confirm=lost).words
    assert [each.text for each in cluster.topics[lost].records()] == ["late"]
    assert "cannot be read" in web.refused("deadletter-purge", topic=lost, set="x", confirm=lost)


def test_origins_are_hostile(web: Visitor, cluster: Broker) -> None:
    cluster.topics.create("hostile.dead")
    cli = SimpleNamespace(bootstrap=cluster.bootstrap_servers)
    names = (HOSTILE, "", "..", "x" * 70_000)
    write(cli, "hostile.dead", *((0, "k", HOSTILE, died(name, 0, 2**62, HOSTILE, HOSTILE)) for name in names))  # type: ignore[arg-type]
    page = web.page("/deadletters?topic=hostile.dead")
    assert HOSTILE not in page.text
    assert len(page.text) < 50_000
    assert "4 letters cannot be replayed" in web.page("/deadletters/replay?topic=hostile.dead&show=1").words


def test_a_topic_without_dead_letters(web: Visitor, cluster: Broker) -> None:
    cluster.topics.create("lacks.letters")
    assert "There are no dead letters." in web.page("/deadletters?topic=lacks.letters").words
    shown = web.page("/deadletters/replay?topic=lacks.letters&show=1").words
    assert "No letter is left to replay." in shown
    cluster.topics["lacks.letters"].delete()
    assert "does not exist" in web.get("/deadletters?topic=nope").words


@pytest.mark.browser
def test_a_replay_in_a_browser(page: Browser, cluster: Broker, lost: str) -> None:
    page.go(f"/topics/{lost}")
    page.click("a[href*='/deadletters']")
    page.click("a[href*='/deadletters/replay']")
    page.click("[name=skip]")
    page.click("form [type=submit].primary")
    page.says("What would be replayed")
    page.fill("[name=confirm]", lost)
    page.click("[type=submit].destroy")
    page.says("2 dead letters replayed, 1 passed over.")
    page.click("a[href*='/deadletters/purge']")
    page.fill("[name=confirm]", lost)
    page.click("[type=submit].destroy")
    page.says("There are no dead letters.")
    assert cluster.topics["returns"].values() == [b"boots", b"boots", b"gloves"]


def test_a_page_looks_at_so_many_bytes_only(web: Visitor, lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead letter may have 50 MB, and there may be a hundred thousand."""
    monkeypatch.setattr(deadletters, "_MOST_BYTES", 7)
    assert "Only the first 2 letters are counted" in web.page(f"/deadletters?topic={lost}").words
    shown = web.page(f"/deadletters/replay?topic={lost}&show=1").words
    assert "These are the first 1 letter; kbroker deadletter replay" in shown
    assert "Replay 1 letter" in shown
    monkeypatch.undo()
    shown = web.page(f"/deadletters/replay?topic={lost}&show=1&skip=1").words
    assert "These are the first" not in shown
    assert "Replay 2 letters, skip 1" in shown


@pytest.mark.long
def test_a_preview_tells_what_it_leaves_out(web: Visitor, cluster: Broker) -> None:
    cluster.topics.create("dlq.wide", 503)
    cli: Any = SimpleNamespace(bootstrap=cluster.bootstrap_servers)
    write(cli, "dlq.wide", *((index, "k", "v", died("returns", 0, 0)) for index in range(503)))
    assert "3 more partitions are not shown; their dead letters are deleted, too." in (
        web.page("/deadletters/purge?topic=dlq.wide&what=all").words
    )
    assert "3 more rows are not shown; their dead letters are replayed, too." in (
        web.page("/deadletters/replay?topic=dlq.wide&show=1&to=returns").words
    )
    cluster.topics["dlq.wide"].delete()


def test_the_grids_of_a_group_are_few() -> None:
    """A group may have 300 topics of 100 partitions, and 80 members: two million cells."""
    places = [{"topic": f"t{topic:03}", "partition": index} for topic in range(300) for index in range(100)]
    members = [
        {"client_id": f"c{number}", "member_id": f"m{number}", "partitions": places[number::80]} for number in range(80)
    ]
    grids, not_drawn = drawn({"members": members, "partitions": [{**each, "lag": 1} for each in places]})
    assert sum(len(row["cells"]) for each in grids for row in each["rows"]) <= 20_000
    assert [each["topic"] for each in grids] == ["t000", "t001", "t002"]
    assert (not_drawn, grids[0]["left_out"], grids[0]["lags"][:2]) == (297, 20, [1, 1])


def test_the_map_of_a_group_shows_no_lag_where_nothing_is_committed():
    places = [{"topic": "t", "partition": number} for number in range(3)]
    members = [{"client_id": "c", "member_id": "m", "partitions": places}]
    rows = [{**each, "lag": lag} for each, lag in zip(places, (None, 0, 7), strict=True)]
    [grid], _ = drawn({"members": members, "partitions": rows})
    assert [short_number(each) for each in grid["lags"]] == ["–", "0", "7"]
