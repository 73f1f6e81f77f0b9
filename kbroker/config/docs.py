"""The page docs/configuration.md, rendered from the table of keys.

Owns the layout of the page, which `python -m kbroker.config.docs` prints. Contains no text about a single key.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from kbroker.config.model import ConfigKey, Mode
from kbroker.config.table import BROKER_SECTIONS, CLIENT_METRICS, CLUSTER_SECTIONS, GROUP, TOPIC
from kbroker.config.values import to_text

_INTRO = """\
# Configuration

This page is generated from the table of keys (`make docs`); do not edit it by hand.

Keys have Apache Kafka's names, types, limits and, unless the meaning says otherwise, defaults. A broker takes them
from, weakest first: the defaults below, a `server.properties` file, environment variables named as in the
`apache/kafka` image (`KAFKA_` and the key in upper case, `.` as `_`, `_` as `__`, `-` as `___`), and `--set key=value`.
An unknown key is a warning that names a similar key if there is one, an error under `--strict`; a bad value stops the
start with one line.

**Effect** says whether a value changes what this version does. Where it says "accepted", the value is checked and
described, so that existing files and tools work, and changes nothing yet. "refused" is a key whose missing effect
could hurt, as one of security: the broker starts with its default only. **Dynamic** says how a key can change
while the broker runs: for one broker only (`per-broker`), also for the whole cluster (`cluster-wide`), or not at all.
"""


def render() -> str:
    """Return the complete page."""
    parts = [_INTRO]
    parts.append(
        "## Topic configs\n\nSet per topic; without it the first of these broker configs applies that is set.\n"
    )
    parts.append(_table(TOPIC.values(), "Broker configs", _synonyms))
    parts.append("## Broker configs\n")
    for section in (*BROKER_SECTIONS, *CLUSTER_SECTIONS):
        parts.append(f"### {section.title}\n")
        parts.append(
            _table(section.keys, "Dynamic", lambda key: key.mode.value if key.mode is not Mode.READ_ONLY else "")
        )
    parts.append("## Group configs\n\nSet per group; without it the broker config applies. A cluster keeps none.\n")
    parts.append(_table(GROUP.values(), "Broker config", _synonyms))
    parts.append(
        "## Client metrics configs\n\nThese configs are set per subscription (`kbroker config set --client-metrics "
        "NAME`). They choose [the metrics that clients push](metrics.md#metrics-of-clients). A cluster keeps none.\n"
    )
    parts.append(_table(CLIENT_METRICS.values(), "Broker config", _synonyms))
    return "\n".join(parts)


def _synonyms(key: ConfigKey) -> str:
    return ", ".join(f"`{synonym.name}`" for synonym in key.synonyms)


def _table(keys: Iterable[ConfigKey], last: str, describe_last: Callable[[ConfigKey], str]) -> str:
    lines = [f"| Key | Type | Default | Allowed | Effect | {last} | Meaning |", "|---|---|---|---|---|---|---|"]
    for key in keys:
        default = "" if key.default is None else f"`{to_text(key.default)}`" if to_text(key.default) else "empty"
        allowed = f"`{key.validator.text}`" if key.validator is not None and key.validator.text else ""
        effect = "yes" if key.effect else "refused" if key.refused else "accepted"
        cells = [f"`{key.name}`", key.type.name.lower(), default, allowed, effect, describe_last(key), key.doc]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
