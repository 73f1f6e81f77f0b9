"""What is kept of pushes: sums, last values, ends, bounds, and a page that parses whatever was pushed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from kbroker.long_work import whole
from kbroker.metrics import pushed
from kbroker.metrics.exposition import text_of
from kbroker.metrics.otlp import Read
from kbroker.metrics.pushed import PushedMetrics
from kbroker.metrics.values import Values
from kbroker.protocol.compression import compress
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.telemetry.instances import Client, Push
from tests.metrics.conftest import OPENMETRICS
from tests.metrics.pushes import MOST, client, data, gauge, histogram, push, total
from tests.tries import tries

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Hands:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.ms = 1_000_000.0

    def now_ms(self) -> int:
        return int(self.ms)

    def monotonic_ms(self) -> float:
        return self.ms


class Kept:
    """A receiver, and its page."""

    def __init__(self) -> None:
        self.clock = Hands()
        self.metrics = PushedMetrics(self.clock)

    def push(self, what: Push, by: Client | None = None) -> None:
        asyncio.run(self.metrics.export(by or client(), what))

    def page(self, accept: str = "") -> Samples:
        values: Values = {}
        families = whole(self.metrics.collect(values))
        text, _ = text_of(values, accept, families)
        parse = openmetrics if accept else prometheus
        found = [sample for family in parse(text.decode()) for sample in family.samples]
        named = {(each.name, frozenset(each.labels.items())): each.value for each in found}
        assert len(named) == len(found), "nothing stands there twice"
        return named

    def values(self) -> dict[str, float]:
        """Return the values by name; only if each name has one sample."""
        return {name: value for (name, _), value in self.page().items() if not name.startswith(("process_", "kafka_"))}

    def left_out(self) -> tuple[float, float]:
        page = self.page()
        told = [page["kbroker_left_out", frozenset({("kind", f"client {kind}")})] for kind in ("instances", "metrics")]
        return told[0], told[1]


@pytest.fixture
def kept() -> Iterator[Kept]:
    made = Kept()
    yield made
    made.metrics.close()


OWN = {"client_instance_id": "AAAAAAAAAAAAAAAAAAAAAQ", "client_id": "app", "client_software_name": "software"}


def test_whose_a_value_is(kept: Kept) -> None:
    kept.push(push(gauge("org.apache.kafka.g", 2.5, topic="t", client_id="own", le="x"), group_id="g"))
    page = kept.page()
    labels = OWN | {"topic": "t", "group_id": "g", "exported_client_id": "own", "exported_le": "x"}
    assert page["org_apache_kafka_g", frozenset(labels.items())] == 2.5
    more = {"client_software_version": "1.2", "client_source_address": "10.0.0.7", "principal": "User:alice"}
    assert page["kbroker_telemetry_client_info", frozenset((OWN | more).items())] == 1


def test_deltas_are_summed_up_and_the_rest_is_the_latest(kept: Kept) -> None:
    for value in (3, 4):
        kept.push(
            push(
                total("delta", value),
                total("cumulative", value, delta=False),
                total("up.down", -value, monotonic=False),
                gauge("gauge", float(value)),
                histogram("h", [1.0, 5.0], [value, 0, 1], 1.5),
                histogram("all", [1.0], [value, 1], 1.5, delta=False),
            )
        )
    found = kept.values()
    assert found["kbroker_client_delta_total"] == 7
    assert found["kbroker_client_cumulative_total"] == 4
    assert found["kbroker_client_up_down"] == -7
    assert found["kbroker_client_gauge"] == 4
    assert (found["kbroker_client_h_count"], found["kbroker_client_h_sum"]) == (9, 3.0)
    assert (found["kbroker_client_all_count"], found["kbroker_client_all_sum"]) == (5, 1.5)
    buckets = {dict(labels)["le"]: value for (name, labels), value in kept.page().items() if name.endswith("h_bucket")}
    assert buckets == {"1.0": 7, "5.0": 7, "+Inf": 9}


def test_a_sum_is_one_clients_and_one_attributes(kept: Kept) -> None:
    kept.push(push(total("c", 1, topic="a")))
    kept.push(push(total("c", 10, topic="b")))
    kept.push(push(total("c", 100, topic="a")), client(2))
    kept.push(push(total("c", 1000, topic="a")))
    found = {(labels, value) for (name, labels), value in kept.page().items() if name == "kbroker_client_c_total"}
    assert sorted(value for _, value in found) == [10, 100, 1001]


def test_who_ends_is_shown_no_more(kept: Kept) -> None:
    kept.push(push(gauge("g", 1.0)))
    kept.push(push(gauge("g", 2.0)), client(2))
    kept.push(push(gauge("g", 3.0), terminating=True))
    assert kept.values()["kbroker_client_g"] == 2.0
    kept.metrics.forget(client(2).instance_id)
    assert "kbroker_client_g" not in kept.values()
    assert kept.left_out() == (0, 0)


@pytest.mark.parametrize(("interval_ms", "expiry_ms"), [(1000, 60_000), (60_000, 180_000)])
def test_who_is_not_heard_of_is_shown_no_more(kept: Kept, interval_ms: int, expiry_ms: int) -> None:
    kept.push(push(gauge("g", 1.0), interval_ms=interval_ms))
    kept.clock.ms += expiry_ms - 1
    assert "kbroker_client_g" in kept.values()
    kept.clock.ms += 1
    assert "kbroker_client_g" not in kept.values()
    assert len(kept.metrics) == 0
    assert kept.left_out() == (0, 0)


def test_clients_are_bounded(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushed, "MOST_CLIENTS", 2)
    for index in (1, 2, 1, 3):
        kept.push(push(gauge("g", float(index))), client(index))
    shown = {value for (name, _), value in kept.page().items() if name == "kbroker_client_g"}
    assert shown == {1.0, 3.0}, "the one that was not heard of for longest went"
    assert kept.left_out() == (1, 0)
    kept.push(push(), client(4))
    assert len(kept.metrics) == 2, "also who pushes nothing that can be shown"
    kept.push(push(gauge("g", 2.0)), client(2))
    assert kept.left_out() == (2, 0)
    kept.clock.ms += 60_000
    assert kept.left_out() == (0, 0), "by now they would have been forgotten"


def test_series_are_bounded(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushed, "MOST_SERIES", 10)
    monkeypatch.setattr(pushed, "MOST_OF_ONE", 6)
    kept.push(push(*(gauge(f"g{n}", 1.0) for n in range(8))))
    assert kept.left_out() == (0, 2)
    kept.push(push(*(gauge(f"h{n}", 1.0) for n in range(4))), client(2))
    assert kept.metrics._series == 10
    kept.push(push(gauge("h", 1.0)), client(3))
    assert kept.metrics._series == 5
    assert kept.left_out() == (1, 0)


def test_what_one_push_left_out_is_told_until_the_next(kept: Kept) -> None:
    kept.push(push(gauge("g" * 300, 1.0)))
    assert kept.left_out() == (0, 1)
    kept.push(push(gauge("g", 1.0)))
    assert kept.left_out() == (0, 0)


def test_a_name_is_one_metrics(kept: Kept) -> None:
    kept.push(push(gauge("a", 1.0), total("b", 1), histogram("h", [], [1], 1.0)))
    kept.push(push(total("a", 1), gauge("b.total", 1.0), gauge("h.count", 1.0), gauge("a-", 1.0)), client(2))
    kept.push(push(gauge("x.sum", 1.0), histogram("x", [], [1], 1.0)), client(3))
    names = {name for name, _ in kept.page() if name.startswith("kbroker_client_")}
    own = ["a", "a_", "b_total", "h_bucket", "h_count", "h_sum", "x_sum"]
    assert sorted(names) == [f"kbroker_client_{name}" for name in own]
    assert kept.left_out() == (0, 4), "a counter of gauge's name, and gauges with those of parts"


@pytest.mark.parametrize("codec", range(5))
def test_what_is_compressed_is_unpacked(kept: Kept, codec: int) -> None:
    kept.push(Push(codec, compress(codec, data(gauge("g", 1.0))), 1000, False, MOST))
    assert kept.values()["kbroker_client_g"] == 1.0


@pytest.mark.parametrize("codec", range(5))
def test_garbage_is_refused_and_leaves_nothing(kept: Kept, codec: int) -> None:
    for broken in (b"x", compress(codec, b"no MetricsData")[:-1], compress(codec, b"no MetricsData")):
        with pytest.raises(Malformed):
            kept.push(Push(codec, broken, 1000, False, MOST))
    assert len(kept.metrics) == 0


def test_what_unpacks_to_too_much_is_refused(kept: Kept) -> None:
    with pytest.raises(Malformed, match="more than 16777216 bytes"):
        kept.push(Push(4, compress(4, bytes(MOST + 1)), 1000, False, MOST))


def test_no_more_wait_than_may(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushed, "MOST_WAITING", 2)

    async def at_once() -> list[object]:
        pushes = [kept.metrics.export(client(index), push(gauge("g", 1.0))) for index in (1, 2, 3)]
        return list(await asyncio.gather(*pushes, return_exceptions=True))

    outcomes = asyncio.run(at_once())
    assert outcomes[:2] == [None, None]
    assert isinstance(outcomes[2], ApiError)
    assert outcomes[2].code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    kept.push(push(gauge("g", 1.0)), client(3))
    assert len(kept.metrics) == 3


def test_who_goes_leaves_no_place_to_another_while_the_thread_has_his_push(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushed, "MOST_WAITING", 2)
    may_read = threading.Event()
    read: list[Push] = []

    def slowly(what: Push) -> Read:
        assert may_read.wait(60)
        read.append(what)
        return Read()

    monkeypatch.setattr(pushed, "_read", slowly)

    async def who_go() -> None:
        for index in (1, 2):
            task = asyncio.ensure_future(kept.metrics.export(client(index), push()))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        for index in (3, 4):
            with pytest.raises(ApiError):
                await kept.metrics.export(client(index), push())
        may_read.set()
        await asyncio.get_running_loop().run_in_executor(kept.metrics._thread, may_read.wait)  # behind them
        await kept.metrics.export(client(5), push())

    asyncio.run(who_go())
    assert len(read) == 3
    assert len(kept.metrics) == 1, "of whom nobody waited for, nothing is kept"


def test_buckets_are_series(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushed, "MOST_OF_ONE", 12)
    bounds = [1.0, 2.0, 3.0]
    kept.push(push(*(histogram(f"h{n}", bounds, [1, 2, 3, 4], 9.0) for n in range(3))))
    lines = [name for name, _ in kept.page() if name.startswith("kbroker_client_h")]
    assert len(lines) == kept.metrics._series == 12
    assert kept.left_out() == (0, 1)
    kept.push(push(histogram("h0", [], [1], 9.0), gauge("g", 1.0)))
    assert kept.metrics._series == 6 + 3 + 1, "one that has fewer by now"
    kept.metrics.forget(client().instance_id)
    assert kept.metrics._series == 0


def test_what_a_client_calls_itself_is_cut_off(kept: Kept) -> None:
    long = Client(bytes(15) + b"\2", "i" * 32_000, "n" * 99_999, "v" * 99_999, "10.0.0.7", "User:" + "p" * 99_999)
    kept.push(push(gauge("g", 1.0)), long)
    for _, labels in kept.page():
        assert all(len(text) <= 200 for _, text in labels)


def test_attributes_called_as_what_others_become_are_told_apart(kept: Kept) -> None:
    both = {"client_id": "a", "exported_client_id": "x", "exported_exported_le": "y"}
    kept.push(push(gauge("g", 1.0, **both), gauge("g", 2.0, **both | {"client_id": "b"})))
    found = {value: dict(labels) for (name, labels), value in kept.page().items() if name == "kbroker_client_g"}
    assert {value: labels["exported_client_id"] for value, labels in found.items()} == {1.0: "a", 2.0: "b"}
    assert found[1.0]["exported_exported_client_id"] == "x"
    assert found[1.0]["exported_exported_exported_le"] == "y"


_ODD_NAMES = ["a", "a.total", "a_total", "a.sum", "a_created", "a_info", "org.apache.kafka.a"]
_NAMES = st.one_of(st.sampled_from(_ODD_NAMES), st.text(max_size=12))
_NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats())
_KEYS = st.one_of(st.sampled_from(["le", "client_id", "quantile", "topic"]), st.text(max_size=5))
_OWN = ("delta", "monotonic")  # of who makes a metric here
_TEXTS = st.dictionaries(_KEYS.filter(lambda key: key not in _OWN), st.text(max_size=5), max_size=3)
_METRICS = st.one_of(
    st.builds(lambda name, value, texts: gauge(name, value, **texts), _NAMES, _NUMBERS, _TEXTS),
    st.builds(
        lambda name, value, delta, monotonic, texts: total(name, value, delta=delta, monotonic=monotonic, **texts),
        _NAMES, _NUMBERS, st.booleans(), st.booleans(), _TEXTS,
    ),
    st.builds(
        histogram,
        _NAMES, st.lists(st.floats(-10, 10), max_size=3), st.lists(st.integers(0, 5), max_size=4), st.floats(),
    ),
)  # fmt: skip


@given(st.lists(st.tuples(st.integers(1, 3), st.lists(_METRICS, max_size=5)), max_size=4))
@settings(max_examples=tries(150))
def test_whatever_was_pushed_the_page_parses_in_both_formats(pushes: list[tuple[int, list[object]]]) -> None:
    kept = Kept()
    try:
        for index, metrics in pushes:
            kept.push(push(*metrics), client(index))  # type: ignore[arg-type]
        assert kept.page().keys() == kept.page(OPENMETRICS).keys()
        lines = [name for name, _ in kept.page() if name.startswith(("kbroker_client_", "org_apache_kafka_"))]
        assert kept.metrics._series == sum(each.series for each in kept.metrics._kept.values()) >= len(lines)
    finally:
        kept.metrics.close()
