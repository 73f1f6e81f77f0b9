"""Values with a form of their own: limits by address, directories out of a list.

Owns their parsing and Kafka's texts for what is wrong with them. Never looks at a running broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.config.model import InvalidConfig

ALL_DIRS: str = "*"


def per_ip_overrides(text: str) -> dict[str, int]:
    """Parse "host:count,..."; raises InvalidConfig with the text of Kafka's own parser."""
    found = {}
    for item in (part.strip() for part in text.split(",")):
        if not item:
            continue
        host, colon, count = item.rpartition(":")
        if not colon:
            detail = f"begin 0, end -1, length {len(item)}"
            raise InvalidConfig(f"Error parsing configuration property 'max.connections.per.ip.overrides': {detail}")
        try:
            found[host] = int(count)
        except ValueError:
            raise InvalidConfig(f'For input string: "{count}"') from None
    return found


def check_cordoned(cordoned: Sequence[str], log_dirs: Sequence[str]) -> None:
    """Refuse directories that are not among the broker's own, and the sign for all of them beside others."""
    if ALL_DIRS in cordoned:
        if len(cordoned) > 1:
            raise InvalidConfig(
                f"requirement failed: When cordoned.log.dirs is set to {ALL_DIRS}, it must not contain other values"
            )
        return
    missing = [each for each in cordoned if each not in log_dirs]
    if missing:
        raise InvalidConfig(
            "requirement failed: All entries in cordoned.log.dirs must be present in log.dirs or log.dir. "
            f"Missing entries : {', '.join(missing)}"
        )
