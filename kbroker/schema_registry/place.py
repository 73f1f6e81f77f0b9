"""Where a cluster's registry decides: the broker that leads `_schemas`, and how its registry is reached."""

from __future__ import annotations

from typing import Final, NamedTuple

NOBODY: Final = -1


class Place(NamedTuple):
    """The broker that leads the topic, or NOBODY while none does; `url` is that of its registry, if it has one."""

    broker: int
    url: str | None = None
