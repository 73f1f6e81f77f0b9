"""The metrics that a client's subscriptions select, and the syntax of `match`."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.config.client_match import SELECTORS, fits, parse_match
from kbroker.config.model import InvalidConfig
from kbroker.group_coordinator import java_order
from kbroker.group_coordinator.java_order import in_java_order
from kbroker.long_work import whole
from kbroker.protocol.checksum import crc32c
from kbroker.telemetry import subscriptions as telemetry
from kbroker.telemetry.subscriptions import DEFAULT_INTERVAL_MS, Subscriptions, Wanted, subscription_id
from tests.tries import tries
from tests.turns import turns

APP = {"client_id": "app-7", "client_source_port": "4711", "client_software_name": None}


def wanted(texts: Mapping[str, str | None] = APP, **stored: Mapping[str, str]) -> Wanted:
    subscriptions = Subscriptions()
    subscriptions.follow(stored)
    return whole(subscriptions.wanted(texts))


def told(found: Wanted) -> tuple[tuple[str, ...], int, int]:
    return found.metrics, found.interval_ms, found.version


def test_nobody_asks_for_anything() -> None:
    assert told(wanted()) == ((), DEFAULT_INTERVAL_MS, 1)


def test_all_that_mean_a_client_count_together() -> None:
    found = wanted(
        a={"metrics": "x.,y.", "interval.ms": "5000"},
        b={"metrics": "y.,z.", "interval.ms": "3000", "match": "client_id=app-[0-9]"},
        c={"metrics": "no.", "interval.ms": "100", "match": "client_id=other"},
    )
    assert (sorted(found.metrics), found.interval_ms) == (["x.", "y.", "z."], 3000)


def test_all_metrics_are_one_star() -> None:
    assert wanted(a={"metrics": "x."}, b={"metrics": "*,y."}).metrics == ("*",)


def test_an_interval_longer_than_the_default_has_no_effect() -> None:
    assert wanted(a={"metrics": "x.", "interval.ms": "3600000"}).interval_ms == DEFAULT_INTERVAL_MS


def test_the_number_is_kafkas() -> None:
    """Apache Kafka 4.4.0 returned this subscription id, with the prefixes in the order of its table."""
    found = wanted(a={"metrics": "org.apache.kafka.consumer.,org.apache.kafka.producer."})
    assert subscription_id(found, b"telemetry-test\0\1") == 336_195_727
    assert -(2**31) <= subscription_id(found, b"\xff" * 16) < 2**31


def test_only_what_has_changed_is_read_again() -> None:
    subscriptions = Subscriptions()
    kept: dict[str, str] = {"metrics": "a."}
    stored = {"a": kept, "b": {"metrics": "b."}}
    subscriptions.follow(stored)
    subscriptions.follow(stored)
    assert subscriptions.version == 1
    before = subscriptions._known["a"]
    subscriptions.follow({"a": kept, "b": {"metrics": "c."}})
    assert subscriptions.version == 2
    assert subscriptions._known["a"] is before
    assert sorted(whole(subscriptions.wanted({})).metrics) == ["a.", "c."]


def test_a_change_while_it_is_looked_for_counts() -> None:
    subscriptions = Subscriptions()
    subscriptions.follow({"a": {"metrics": "a."}, "b": {"metrics": "b."}})
    work = subscriptions.wanted({})
    work.send(None)
    subscriptions.follow({"c": {"metrics": "c."}})
    assert told(whole(work)) == (("c.",), DEFAULT_INTERVAL_MS, 2)


def test_a_change_while_it_is_summed_up_counts() -> None:
    subscriptions = Subscriptions()
    subscriptions.follow({"a": {"metrics": "a."}})
    work = subscriptions.wanted({})
    work.send(None)
    work.send(None)
    subscriptions.follow({"c": {"metrics": "c."}})
    assert told(whole(work)) == (("c.",), DEFAULT_INTERVAL_MS, 2)
    assert told(whole(subscriptions.wanted({}))) == (("c.",), DEFAULT_INTERVAL_MS, 2)


def test_what_fits_many_clients_is_summed_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "MOST_SUMS", 2)
    subscriptions = Subscriptions()
    subscriptions.follow({name: {"metrics": name, "match": f"client_id=.*{name}.*"} for name in "abc"})
    found = [whole(subscriptions.wanted({"client_id": text})) for text in ("ab", "ba", "c", "b")]
    assert found[0] is found[1]
    assert [sorted(each.metrics) for each in found[1:]] == [["a", "b"], ["c"], ["b"]]
    assert len(subscriptions._sums) == 2
    subscriptions.follow({})
    assert not subscriptions._sums


def test_no_step_is_longer_than_some_hundred_names(monkeypatch: pytest.MonkeyPatch) -> None:
    subscriptions = Subscriptions()
    stored = {str(s): {"metrics": ",".join(f"{s}.{n}" for n in range(3_000))} for s in range(3)}
    subscriptions.follow(stored)
    hashed = 0
    hash_of = java_order.java_hash

    def counting(name: str) -> int:
        nonlocal hashed
        hashed += 1
        return hash_of(name)

    monkeypatch.setattr(java_order, "java_hash", counting)
    longest, before = 0, 0
    for _ in turns(subscriptions.wanted({})):
        longest, before = max(longest, hashed - before), hashed
    assert (hashed, longest) == (9_000, 200)
    names = [name for each in in_java_order(stored) for name in in_java_order(stored[each]["metrics"].split(","))]
    (sum_,) = subscriptions._sums.values()
    assert list(sum_.metrics) == in_java_order(names)
    text = f"[{', '.join(sum_.metrics)}]{sum_.interval_ms}"
    assert sum_.checksum == crc32c(text.encode())


def test_what_a_later_version_has_stored_means_nobody() -> None:
    assert wanted(a={"metrics": "x.", "match": "client_shoe_size=40"}).metrics == ()


@pytest.mark.parametrize(
    ("match", "is_meant"),
    [
        ("client_id=app-7", True),
        ("client_id=app", False),
        ("client_id=.*7", True),
        ("client_id=app-7,client_source_port=[0-9]{4}", True),
        ("client_id=app-7,client_source_port=[0-9]{3}", False),
        ("client_software_name=.*", False),
        ("client_id=APP-7", False),
        ("client_id=(?i)APP-7", True),
        ("client_id=no,client_id=app-7", True),
        ("", True),
    ],
)
def test_who_is_meant(match: str, is_meant: bool) -> None:
    assert fits(parse_match([each for each in match.split(",") if each]), APP) is is_meant


@pytest.mark.parametrize("pattern", ["", "client_id", "client_id=", "=a", "id=a", "client_id=a=b", "client_id=(?=a)"])
def test_what_is_no_match(pattern: str) -> None:
    with pytest.raises(InvalidConfig, match="Illegal client matching pattern"):
        parse_match([pattern])


def test_a_match_is_bounded() -> None:
    assert parse_match(["client_id=a"] * 16)
    for costly in (["client_id=a"] * 17, ["client_id=" + "a" * 991], ["client_id=" + r"\pL" * 17]):
        with pytest.raises(InvalidConfig):
            parse_match(costly)
    with pytest.raises(InvalidConfig, match="Illegal client matching pattern"):
        parse_match([r"client_id=(\pL{100})"])


@given(st.sampled_from(sorted(SELECTORS)), st.text(max_size=30), st.text(max_size=30))
@settings(max_examples=tries(200))
def test_no_regex_and_no_text_is_too_odd(selector: str, regex: str, text: str) -> None:
    try:
        match = parse_match([f"{selector}={regex}"])
    except InvalidConfig:
        return
    assert fits(match, {selector: text}) in (True, False)
    assert not fits(match, {})
