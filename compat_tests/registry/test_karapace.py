"""Karapace on the same `_schemas`: each registry shows what the other wrote, and deletes what the other has.

Only with KBROKER_TESTS=long, and if KBROKER_KARAPACE names a Python that runs `-m karapace`; compat_tests/FINDINGS.md
says how to make one.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from kbroker import Broker
from tests.registry_api.beside import Beside
from tests.registry_api.conftest import Http
from tests.registry_api.test_instances import free_port
from tests.tries import FORM

PYTHON: Final = os.environ.get("KBROKER_KARAPACE")
pytestmark = [
    pytest.mark.skipif(FORM != "long", reason="needs Karapace: only with KBROKER_TESTS=long"),
    pytest.mark.skipif(PYTHON is None, reason="KBROKER_KARAPACE names no Python with Karapace"),
]
WAIT_S: Final = 60
PROTO: Final = 'syntax = "proto3";\nmessage A {\n  int32 x = 1;\n}\n'


def until(what: str, holds: Callable[[], bool]) -> None:
    """Ask repeatedly until a condition is true, or a deadline has passed."""
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)


@contextmanager
def karapace(bootstrap: str, directory: Path) -> Iterator[Http]:
    """Run Karapace until the end of the block; it writes the topic before the block begins."""
    port = str(free_port())
    settings = {
        "BOOTSTRAP_URI": bootstrap,
        "HOST": "127.0.0.1",
        "PORT": port,
        "ADVERTISED_HOSTNAME": "127.0.0.1",
        "ADVERTISED_PORT": port,
        "KARAPACE_REGISTRY": "true",
        "REPLICATION_FACTOR": "1",
        "LOG_LEVEL": "WARNING",
    }
    environment = {**os.environ, **{f"KARAPACE_{name}": value for name, value in settings.items()}}
    registry, log = Http(f"http://127.0.0.1:{port}"), directory / "karapace.log"
    command = [str(PYTHON), "-m", "karapace"]
    with open(log, "wb") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as process:

        def writes() -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                master = json.loads(registry.raw("GET", "/master_available")[1])
                return bool(master["master_available"]) and registry.raw("GET", "/subjects")[0] == 200
            except (OSError, ValueError, KeyError):
                return False

        try:
            until("Karapace does not answer", writes)
            yield registry
        finally:
            process.terminate()


def record(name: str, *more: str) -> str:
    fields = [{"name": "id", "type": "long"}, *({"name": each, "type": "string", "default": ""} for each in more)]
    return json.dumps({"type": "record", "name": name, "fields": fields})


def filled(registry: Http, tag: str) -> None:
    """Register versions, another format, a reference and a level, and delete some softly and some permanently."""
    for name in ("kept", "softly", "for_good"):
        registry.register(f"{tag}-{name}", record(f"{tag}_{name}"))
        registry.register(f"{tag}-{name}", record(f"{tag}_{name}", "note"))
    registry.register(f"{tag}-json", {"type": "object", "title": tag}, schemaType="JSON")
    refers = {"name": f"{tag}_kept", "subject": f"{tag}-kept", "version": 1}
    registry.register(f"{tag}-refers", json.dumps(["null", f"{tag}_kept"]), references=[refers])
    registry.ok("PUT", f"/config/{tag}-kept", {"compatibility": "FULL"})
    assert registry.ok("DELETE", f"/subjects/{tag}-softly/versions/1") == 1
    assert registry.ok("DELETE", f"/subjects/{tag}-for_good") == [1, 2]
    assert registry.ok("DELETE", f"/subjects/{tag}-for_good?permanent=true") == [1, 2]


def shown(registry: Http) -> dict[str, Any]:
    """Return everything that a registry shows: versions, levels, and softly deleted versions."""
    found: dict[str, Any] = {"deleted": sorted(registry.ok("GET", "/subjects?deleted=true"))}
    for subject in registry.ok("GET", "/subjects"):
        at = f"/subjects/{quote(subject, safe='')}/versions"
        found[f"level of {subject}"] = registry.ok("GET", f"/config/{subject}?defaultToGlobal=true")
        for number in registry.ok("GET", at):
            one = registry.ok("GET", f"{at}/{number}")
            kind, text = one.get("schemaType", "AVRO"), one["schema"]
            schema = "".join(text.split()) if kind == "PROTOBUF" else json.loads(text)
            found[f"{subject} {number}"] = (one["id"], kind, schema, one.get("references") or [])
    return found


def alike(one: Http, other: Http) -> None:
    until(f"{shown(one)}\n{shown(other)}", lambda: shown(one) == shown(other))


def test_what_kbroker_wrote_and_what_each_deletes(tmp_path: Path) -> None:
    with Broker(registry=True) as broker:
        ours = Http(str(broker.registry_url))
        filled(ours, "ours")
        ours.register("ours-protobuf", PROTO, schemaType="PROTOBUF")
        with karapace(broker.bootstrap_servers, tmp_path) as theirs:
            alike(ours, theirs)
            assert len(shown(ours)) == 1 + 5 + 6, "with five subjects, and six versions"
            highest = max(each[0] for each in shown(ours).values() if isinstance(each, tuple))
            assert theirs.register("theirs", record("Theirs"))["id"] > highest
            theirs.ok("DELETE", "/subjects/ours-json")
            theirs.ok("DELETE", "/subjects/ours-softly/versions/1?permanent=true")
            alike(ours, theirs)
            assert ours.refused("GET", "/subjects/ours-json/versions/latest")[0] == 40401
            theirs.ok("DELETE", "/subjects/ours-json?permanent=true")
            ours.ok("DELETE", "/subjects/theirs")
            alike(ours, theirs)
            ours.ok("DELETE", "/subjects/theirs?permanent=true")
            alike(ours, theirs)
            assert not {"ours-json", "theirs"} & set(ours.ok("GET", "/subjects?deleted=true"))


def test_what_karapace_wrote(tmp_path: Path) -> None:
    with Broker() as broker:
        with karapace(broker.bootstrap_servers, tmp_path) as theirs:
            filled(theirs, "theirs")
            wanted = shown(theirs)
        beside = Beside(broker.bootstrap_servers)
        try:
            assert shown(beside.http) == wanted
            assert len(wanted) == 1 + 4 + 5, "with four subjects, and five versions"
            highest = max(each[0] for each in wanted.values() if isinstance(each, tuple))
            assert beside.http.register("next", '"bytes"')["id"] > highest
        finally:
            beside.close()
