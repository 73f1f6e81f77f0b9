"""What Apache Kafka's side of a scenario saw when it last ran, so that most runs need no second broker.

Owns the files (compat_tests/recorded/), which parts of an observation depend on the time of the run, and when Kafka
itself runs. Never runs a scenario.

KBROKER_KAFKA selects the mode: `recorded` (the default) compares with the file if it contains the scenario, `live` runs
Apache Kafka beside kbroker and also compares it with the file, `record` runs Apache Kafka and writes the file. A
scenario is recorded only if a second recording, in another run, has the same result: record twice after a change. `make
torture` runs them live.
"""

from __future__ import annotations

import json
import os
import re
import time
from functools import cache
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = Path(__file__).parents[1] / "recorded"
VERSION: Final = "4.4.0"
MOST_BYTES: Final = 20_000
"""Limit of one observation: a larger one is not recorded."""
_NUMBER: Final = re.compile(r"(?<!\d)\d{13}(?!\d)")
_NOW_S: Final = int(time.time())
HOUR_AGO_MS: Final = _NOW_S * 1000 - 3_600_000
"""Scenarios of clients and of Spark stamp their records from this time (ms) on.

A scenario whose observation contains a checksum over timestamps, as the pipeline's do, stamps from a fixed time: a
checksum cannot be made relative to a base.
"""
_CHANGES: Final = "<changes>"


def mode() -> str:
    """Return whether Apache Kafka's side is recorded, live, or read from the file."""
    found = os.environ.get("KBROKER_KAFKA", "recorded")
    assert found in ("recorded", "live", "record"), f"KBROKER_KAFKA must be recorded, live or record, not {found!r}"
    return found


def shifted(seen: Any) -> Any:
    """Return an observation with its times relative to HOUR_AGO_MS."""
    if isinstance(seen, dict):
        return {str(shifted(key)): shifted(value) for key, value in seen.items()}
    if isinstance(seen, list):
        return [shifted(each) for each in seen]
    if isinstance(seen, str):
        return _NUMBER.sub(lambda found: str(_moment(int(found[0]))), seen)
    if isinstance(seen, int) and not isinstance(seen, bool):
        return _moment(seen)
    return seen


def _moment(number: int) -> int | str:
    if abs(number - HOUR_AGO_MS) <= 2 * 3_600_000:
        return f"hour ago {number - HOUR_AGO_MS:+d} ms"
    return number


@cache
def _of(client: str) -> dict[str, Any]:
    path = DIRECTORY / f"{client}.json"
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())
    return found["scenarios"] if found["apache kafka"] == VERSION else {}


def find(client: str, name: str) -> Any | None:
    """Return the recording of a scenario; None if the scenario must run live."""
    found = _of(client).get(name)
    return None if found == _CHANGES else found


def record(client: str, name: str, seen: Any) -> None:
    """Record what Apache Kafka's side saw.

    An observation that differs from its earlier recording is never used again.
    """
    known = _of(client)
    before = known.get(name)
    stays = before is None or before == seen
    known[name] = seen if stays and len(json.dumps(seen)) <= MOST_BYTES else _CHANGES
    DIRECTORY.mkdir(exist_ok=True)
    text = json.dumps({"apache kafka": VERSION, "scenarios": known}, indent=1, sort_keys=True)
    (DIRECTORY / f"{client}.json").write_text(text + "\n")
