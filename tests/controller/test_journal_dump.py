"""The metadata journal as readable text, whatever it contains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crc32c import crc32c

from kbroker.controller import embedded_store
from kbroker.controller.embedded_store import EmbeddedStore
from kbroker.controller.journal_dump import dump_journal
from kbroker.controller.store_interface import Delete, Put


def dumped(path: Path) -> list[str]:
    return list(dump_journal(str(path)))[1:]


def raw(text: str) -> bytes:
    return b"%08x %s\n" % (crc32c(text.encode()), text.encode())


def test_batches_and_entries(tmp_path: Path) -> None:
    store = EmbeddedStore(str(tmp_path))
    store.write([Put("/a", {"x": 1}), Put("/a/b", {"y": "ü"})])
    first = (tmp_path / embedded_store.JOURNAL).stat().st_size
    store.write([Delete("/a")])
    store.close()
    whole = (tmp_path / embedded_store.JOURNAL).stat().st_size
    assert dumped(tmp_path / embedded_store.JOURNAL) == [
        f"position: 0 size: {first} count: 2 isvalid: true",
        '| put /a {"x":1}',
        '| put /a/b {"y":"\\u00fc"}',
        f"position: {first} size: {whole - first} count: 1 isvalid: true",
        "| delete /a",
    ]


def test_a_snapshot(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(embedded_store, "_COMPACT_BYTES", 10)
    store = EmbeddedStore(str(tmp_path))
    store.write([Put("/a", {"x": 1})])
    store.close()
    (batch, entry) = dumped(tmp_path / embedded_store.SNAPSHOT)
    assert batch.endswith(" count: 1 isvalid: true")
    assert entry == '| load /a version: 1 {"x":1}'
    assert dumped(tmp_path / embedded_store.JOURNAL)[1:] == ['| ["follows", 32]'], "a journal without any change"


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    name = "listener.name.inside.ssl.key.password"
    value = f'{{"version":1,"config":{{"{name}":"open sesame","num.io.threads":"3"}}}}'
    path.write_bytes(
        raw(f'[["put","/config/brokers/1",{value}]]') + raw(f'[["load",{{"/config/brokers/1":[4,{value}]}}]]')
    )
    text = "\n".join(dumped(path))
    assert "sesame" not in text
    assert text.count(f'"{name}":"(hidden)","num.io.threads":"3"') == 2


def test_what_is_damaged_or_torn_is_said(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    good = raw('[["delete","/a"]]')
    bad = good[:-4] + b"x" + good[-3:]
    path.write_bytes(bad + good + good[:-1])
    assert dumped(path) == [
        f"position: 0 size: {len(good)} count: 0 isvalid: false",
        f"position: {len(good)} size: {len(good)} count: 1 isvalid: true",
        "| delete /a",
        f"Found {len(good) - 1} invalid bytes at the end of journal",
    ]


def test_entries_of_no_known_kind_are_printed_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(raw("7") + raw('[7,["load",{"/a":5}],["put","/a"],[]]'))
    assert [line for line in dumped(path) if line.startswith("|")] == ["| 7", "| load /a 5", '| ["put", "/a"]', "| []"]
