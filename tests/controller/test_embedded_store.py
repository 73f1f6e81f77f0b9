"""The embedded metadata store is durable and atomic, and reports damage."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.cluster_state import BrokerEndpoint
from kbroker.controller import embedded_store
from kbroker.controller.controller import Controller
from kbroker.controller.embedded_store import JOURNAL, SNAPSHOT, CorruptMetadata, EmbeddedStore
from kbroker.controller.store_interface import Delete, Put, VersionConflict
from kbroker.controller.topic_plans import TopicDefaults


def test_what_was_written_is_there_after_reopening(tmp_path):
    store = EmbeddedStore(str(tmp_path))
    store.write([Put("/a/b", {"x": 1}), Put("/a/c", {"y": [1, 2]})])
    store.write([Put("/a/b", {"x": 2})])
    store.close()
    again = EmbeddedStore(str(tmp_path))
    assert again.get("/a/b").value == {"x": 2}
    assert again.get("/a/b").version == 2
    assert again.children("/a") == ["b", "c"]
    assert again.children("") == ["a"]
    again.close()


def test_a_batch_with_a_conflict_changes_nothing(tmp_path):
    store = EmbeddedStore(str(tmp_path))
    store.write([Put("/a", {"x": 1})])
    with pytest.raises(VersionConflict):
        store.write([Put("/b", {}), Put("/a", {"x": 2}, version=7)])
    assert store.get("/b") is None
    assert store.get("/a").value == {"x": 1}
    store.write([Put("/a", {"x": 3}, version=1)])
    store.close()


def test_deleting_takes_everything_below(tmp_path):
    store = EmbeddedStore(str(tmp_path))
    store.write([Put("/a/b/c", {}), Put("/a/b/d", {}), Put("/a/e", {})])
    store.write([Delete("/a/b")])
    assert store.children("/a") == ["e"]
    assert store.get("/a/b/c") is None
    store.close()


def test_a_torn_last_line_was_never_acknowledged(tmp_path):
    store = EmbeddedStore(str(tmp_path))
    store.write([Put("/a", {"x": 1})])
    store.write([Put("/b", {"x": 1})])
    store.close()
    path = tmp_path / JOURNAL
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        path.write_bytes(whole[:cut])
        again = EmbeddedStore(str(tmp_path))
        assert again.get("/a").value == {"x": 1}
        assert again.get("/b") is None
        again.write([Put("/c", {})])
        again.close()
        last = EmbeddedStore(str(tmp_path))
        assert last.children("") == ["a", "c"]
        last.close()


def test_damage_in_the_middle_stops_the_start(tmp_path):
    store = EmbeddedStore(str(tmp_path))
    for i in range(3):
        store.write([Put(f"/{i}", {})])
    store.close()
    raw = bytearray((tmp_path / JOURNAL).read_bytes())
    raw[12] ^= 1
    (tmp_path / JOURNAL).write_bytes(raw)
    with pytest.raises(CorruptMetadata, match=r"damaged at byte 0: move it .* `kbroker log adopt`"):
        EmbeddedStore(str(tmp_path))


@pytest.mark.parametrize("at", [0, 8, 9, 20, -2])
def test_damage_in_a_complete_last_line_stops_the_start(tmp_path, at):
    store = EmbeddedStore(str(tmp_path))
    store.write([Put("/first", {})])
    begin = (tmp_path / JOURNAL).stat().st_size
    store.write([Put("/acknowledged", {"x": 1})])
    store.close()
    raw = bytearray((tmp_path / JOURNAL).read_bytes())
    raw[begin + at if at >= 0 else at] ^= 3
    (tmp_path / JOURNAL).write_bytes(raw)
    with pytest.raises(CorruptMetadata, match=f"damaged at byte {begin}"):
        EmbeddedStore(str(tmp_path))
    assert (tmp_path / JOURNAL).read_bytes() == bytes(raw), "what is there stays for whoever mends it"


@pytest.mark.parametrize("length", [1, 12, 30])
def test_zeros_in_the_last_line_are_what_a_loss_of_power_leaves(tmp_path, length):
    store = EmbeddedStore(str(tmp_path))
    store.write([Put("/first", {})])
    begin = (tmp_path / JOURNAL).stat().st_size
    store.write([Put("/second", {"x": 1})])
    store.close()
    raw = bytearray((tmp_path / JOURNAL).read_bytes())
    raw[begin : begin + length] = bytes(length)
    (tmp_path / JOURNAL).write_bytes(raw)
    again = EmbeddedStore(str(tmp_path))
    assert again.children("") == ["first"]
    again.close()


def test_the_journal_is_folded_into_a_snapshot(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded_store, "_COMPACT_BYTES", 500)
    store = EmbeddedStore(str(tmp_path))
    for i in range(50):
        store.write([Put(f"/n/{i % 7}", {"i": i})])
    store.close()
    assert os.path.getsize(tmp_path / JOURNAL) < 1000
    assert (tmp_path / SNAPSHOT).exists()
    again = EmbeddedStore(str(tmp_path))
    assert again.children("/n") == [str(i) for i in range(7)]
    assert again.get("/n/0").value == {"i": 49}
    assert again.get("/n/0").version == 8
    again.close()


changes = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(["/a", "/a/b", "/a/c", "/d", "/d/e/f"]), st.integers()),
        st.tuples(st.just("delete"), st.sampled_from(["/a", "/a/b", "/d", "/d/e"]), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=40, database=None)
@given(changes=changes)
def test_reopening_gives_what_a_dictionary_gives(changes, tmp_path_factory):
    directory = tmp_path_factory.mktemp("store")
    store = EmbeddedStore(str(directory))
    model = {}
    for kind, path, number in changes:
        if kind == "put":
            store.write([Put(path, {"n": number})])
            model[path] = number
        else:
            store.write([Delete(path)])
            model = {p: n for p, n in model.items() if p != path and not p.startswith(path + "/")}
    store.close()
    again = EmbeddedStore(str(directory))
    assert {p: again.get(p).value["n"] for p in model} == model
    assert all(again.get(p) is None for p in ["/a", "/a/b", "/a/c", "/d", "/d/e/f"] if p not in model)
    again.close()


def test_a_journal_that_is_missing_beside_a_snapshot_stops_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded_store, "_COMPACT_BYTES", 10)
    store = EmbeddedStore(str(tmp_path))
    store.write([Put("/a", {})])
    store.close()
    assert (tmp_path / SNAPSHOT).exists()
    (tmp_path / JOURNAL).unlink()
    with pytest.raises(CorruptMetadata, match="is missing"):
        EmbeddedStore(str(tmp_path))
    (tmp_path / JOURNAL).touch()
    again = EmbeddedStore(str(tmp_path))
    assert again.children("") == ["a"]
    again.close()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.text(), st.dictionaries(st.text(), st.integers() | st.text(), max_size=3)),
            st.tuples(st.just("delete"), st.text()),
            st.tuples(st.just("synced"), st.integers(0)),
        )
    )
)
def test_a_line_is_plain_json(entries):
    listed = [list(entry) for entry in entries] * 2
    line = embedded_store._line(listed)
    assert embedded_store.parse_line(line[:-1]) == listed
    assert line[9:-1] == json.dumps(listed, separators=(",", ":")).encode()


def test_a_value_that_many_share_is_encoded_once(tmp_path, monkeypatch):
    encoded = []
    encode = embedded_store._encode
    monkeypatch.setattr(embedded_store, "_encode", lambda value: encoded.append(value) or encode(value))
    controller = Controller(EmbeddedStore(str(tmp_path)), "cluster", TopicDefaults(1, 1, {}))
    controller.register_broker(BrokerEndpoint(1, "localhost", 9092))
    controller.put_topics([controller.plan_topic("t", 1000, 1)])
    assert len(encoded) == 2, "of the topic, and of all its partitions"
    again = Controller(EmbeddedStore(str(tmp_path)), "cluster", TopicDefaults(1, 1, {}))
    assert again.state.topics["t"].partitions == controller.state.topics["t"].partitions
