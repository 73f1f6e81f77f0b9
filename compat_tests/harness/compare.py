"""Makes comparable what a scenario saw on both sides, and compares it.

Owns normalising, flattening and the text of a difference. Never runs anything.
"""

from __future__ import annotations

import base64
import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

MISSING: Final = "<missing>"


@dataclass(frozen=True, slots=True)
class Difference:
    """A declared difference: where kbroker answers differently from Apache Kafka, and why that is right.

    `scenario` and `path` are shell patterns; `path` matches names like `topics(0).configs.segment.ms`. `open` marks a
    difference that is wrong and must still be fixed.
    """

    client: str
    scenario: str
    path: str
    reason: str
    open: bool = False

    def applies(self, client: str, scenario: str) -> bool:
        """Whether this declaration applies to `scenario` of `client`."""
        return fnmatch.fnmatchcase(client, self.client) and fnmatch.fnmatchcase(scenario, self.scenario)

    def covers(self, path: str) -> bool:
        """Whether this declaration covers `path`."""
        return fnmatch.fnmatchcase(path, self.path)


# Fields whose value is random or a path on this machine: only whether there is a value matters.
VOLATILE: Final = frozenset({"topic_id", "log_dir", "member_id"})


def normalise(seen: object, bootstrap: str) -> object:
    """Return `seen` as plain JSON values, with this broker's address and random values replaced by names."""
    host, _, port = bootstrap.rpartition(":")
    if isinstance(seen, Enum):
        return normalise(seen.name, bootstrap)
    if isinstance(seen, str):
        return (
            seen.replace(bootstrap, "<bootstrap>")
            .replace(f"{host}/{host}:{port}", "<bootstrap>")
            .replace(port, "<port>")
        )
    if isinstance(seen, bytes):
        try:
            return seen.decode("ascii")
        except UnicodeDecodeError:
            return "base64:" + base64.b64encode(seen).decode()
    if isinstance(seen, Mapping):
        return {
            str(normalise(key, bootstrap)): _volatile(value) if key in VOLATILE else normalise(value, bootstrap)
            for key, value in seen.items()
        }
    if isinstance(seen, (set, frozenset)):
        return sorted((normalise(each, bootstrap) for each in seen), key=repr)
    if isinstance(seen, Iterable):
        return [normalise(each, bootstrap) for each in seen]
    if isinstance(seen, int) and not isinstance(seen, bool) and str(seen) == port:
        return "<port>"
    if seen is None or isinstance(seen, (bool, int, float)):
        return seen
    raise TypeError(f"a scenario returned {type(seen).__name__}, which is no JSON value: {seen!r}")


def _volatile(value: object) -> object:
    return "<set>" if value and str(value).strip("0-") else "<unset>"


def flatten(seen: object, path: str = "") -> dict[str, Any]:
    """Return every leaf of `seen` by its path; an empty list or mapping is a leaf."""
    if isinstance(seen, dict) and seen:
        leaves: dict[str, Any] = {}
        for key, value in seen.items():
            leaves |= flatten(value, f"{path}.{key}" if path else str(key))
        return leaves
    if isinstance(seen, list) and seen:
        leaves = {}
        for index, value in enumerate(seen):
            leaves |= flatten(value, f"{path}({index})")
        return leaves
    return {path or "<all>": seen}


def compare(apache: object, kbroker: object) -> dict[str, tuple[Any, Any]]:
    """Return the values of both sides for each path where they differ."""
    left, right = flatten(apache), flatten(kbroker)
    return {
        path: (left.get(path, MISSING), right.get(path, MISSING))
        for path in sorted(left.keys() | right.keys())
        if left.get(path, MISSING) != right.get(path, MISSING)
        or type(left.get(path, MISSING)) is not type(right.get(path, MISSING))
    }


def report(differences: Mapping[str, tuple[Any, Any]], limit: int = 40) -> str:
    """Return differences as text, sorted by path."""
    lines = []
    for path, (apache, kbroker) in list(differences.items())[:limit]:
        lines += [path, f"    apache:  {_short(apache)}", f"    kbroker: {_short(kbroker)}"]
    if len(differences) > limit:
        lines.append(f"... and {len(differences) - limit} more places")
    return "\n".join(lines)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 600 else f"{text[:400]} ... {text[-150:]}"
