"""Print the metadata journal and its snapshot line by line, for `kbroker log dump`.

Owns the printed text; embedded_store.py owns the bytes. Checks only the CRC. Never writes, and never prints the values
of secret configs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kbroker.config.table import broker_key
from kbroker.controller.embedded_store import JOURNAL, NEXT, SNAPSHOT, parse_line

FILES: Final = (JOURNAL, NEXT, SNAPSHOT)
_HIDDEN: Final = "(hidden)"


def dump_journal(path: str) -> Iterator[str]:
    """Yield the lines about a journal or a snapshot: each batch, then its entries after "|". Raises OSError."""
    yield f"Dumping {path}"
    position = 0
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                yield f"Found {len(line)} invalid bytes at the end of {os.path.basename(path)}"
                return
            read = parse_line(line[:-1])
            entries = read if isinstance(read, list) else []
            valid = "true" if entries else "false"
            yield f"position: {position} size: {len(line)} count: {len(entries)} isvalid: {valid}"
            for entry in entries:
                yield from _entry(entry)
            position += len(line)


def _entry(entry: Any) -> Iterator[str]:
    match entry:
        case ["put", str(path), dict(value)]:
            yield f"| put {path} {_text(value)}"
        case ["delete", str(path)]:
            yield f"| delete {path}"
        case ["load", dict(nodes)]:
            for path, node in nodes.items():
                match node:
                    case [int(version), dict(value)]:
                        yield f"| load {path} version: {version} {_text(value)}"
                    case _:
                        yield f"| load {path} {json.dumps(node)}"
        case _:
            yield f"| {json.dumps(entry)}"


def _text(value: Mapping[str, Any]) -> str:
    configs = value.get("config")
    if isinstance(configs, dict):
        shown = {
            name: _HIDDEN if (key := broker_key(name)) and key.sensitive else text for name, text in configs.items()
        }
        value = {**value, "config": shown}
    return json.dumps(value, separators=(",", ":"))
