"""Groups: the list, and for each group its members, their partitions and their progress.

Owns these requests. Resetting offsets is a page of its own (reset.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Final

from kbroker.admin.dead_letters import topic_of_group
from kbroker.admin.errors import AdminError, NotThere
from kbroker.admin.group_offsets import WITHOUT_MEMBERS
from kbroker.admin.groups import described_group, listed_groups, member_counts
from kbroker.admin.partition_reader import PartitionReader
from kbroker.admin.stuck_records import record_at
from kbroker.console.console import Console
from kbroker.console.decoding.shown import shown
from kbroker.console.listing import Listing, has_words
from kbroker.console.page_and_action import Action, Facts, Page
from kbroker.console.stuck_groups import STANDING_S
from kbroker.console.values import Values

_MOST_DRAWN: Final = 80
"""The maximum number of members, and of partitions of a topic, in a grid."""
_MOST_CELLS: Final = 20_000
"""The maximum number of cells in all grids of a page together."""
_MOST_ROWS: Final = 100
_MOST_STUCK: Final = 10
_MOST_RUNS: Final = 200
"""The maximum number of runs of records in flight on a share group's page."""


async def find(console: Console, values: Values) -> Facts:
    """Return a page of the list."""
    samples = console.sampler.samples
    text, state = values.text("q").lower(), values.text("state")
    order = values.one_of("sort", ("name", "lag"))
    groups = list((await console.ask(listed_groups)).values())
    states = sorted({str(each["state"]) for each in groups if each["state"]})
    found = [each for each in groups if has_words(each["group"], text) and state in ("", each["state"])]
    if order == "lag":
        found.sort(key=lambda each: -(samples.lags.get(each["group"]).last or 0))
    page = Listing(found, values.page(), "/groups", {"q": text, "state": state, "sort": order})
    kinds = {each["group"]: each["type"] for each in page.items}
    return {
        "list": page,
        # The lag of a group without committed offsets is unknown, not 0.
        "committed": {name for name, topics in samples.readers.items() if topics},
        "members": await console.ask(lambda admin: member_counts(admin, kinds)),
        "lags": samples.lags,
        "stuck": samples.stuck,
        "states": states,
        "q": text,
        "state": state,
        "order": order,
        "all": len(groups),
    }


async def find_one(console: Console, values: Values) -> Facts:
    """Return a group."""
    name = values.needed("name", "the group")
    group = await console.ask(lambda admin: described_group(admin, name))
    if group is None:
        raise NotThere(f"there is no group {name}")
    lags = [row["lag"] for row in group["partitions"] if row["lag"] is not None]
    topics = sorted({row["topic"] for row in group["partitions"]})
    is_share = group["type"] == "share"
    committed = {
        (row["topic"], row["partition"]): row["start_offset" if is_share else "current_offset"]
        for row in group["partitions"]
    }
    grids, not_drawn = drawn(group)
    still = console.sampler.samples.standing.of(name, STANDING_S)
    return {
        "group": group,
        "topology": group.get("topology"),
        "name": name,
        "lag": sum(lags) if lags else None,
        "uncommitted": len(group["partitions"]) - len(lags),
        "series": console.sampler.samples.lags.get(name),
        "topics": topics,
        "drawn": grids,
        "not_drawn": not_drawn,
        "list": Listing(group["partitions"], values.page(), "/group", {"name": name}, _MOST_ROWS),
        "empty": group["state"] in WITHOUT_MEMBERS,
        "stuck": await console.ask(lambda admin: _stuck(admin, console, name)),
        "still": {key: stop.lasted_s for key, stop in still.items() if committed.get(key) == stop.offset},
        "clients": {each["member_id"]: each["client_id"] for each in group["members"] or ()},
        **(await _of_share_group(console, name) if is_share else {"runs": None, "letters": None}),
    }


async def _of_share_group(console: Console, name: str) -> Facts:
    """Return the facts that exist only for a share group: its records in flight, and its dead letter topic."""
    runs = None
    if (told := console.settings.in_flight) is not None:
        with contextlib.suppress(TimeoutError):  # the broker is busy: leave out this part of the page
            runs = [run for each in await asyncio.to_thread(told, name, _MOST_RUNS) for run in each.in_flight]
    letters, _ = await console.ask_or_fail(lambda admin: topic_of_group(admin, name))
    return {"runs": runs, "most_runs": _MOST_RUNS, "now_ms": time.time() * 1000, "letters": letters}


def _stuck(admin: Any, console: Console, name: str) -> list[Facts]:
    """Return the records that a group does not get past, according to the latest sample, with their keys and values."""
    reader, found = PartitionReader(admin), []
    for each in console.sampler.samples.stuck.get(name, ())[:_MOST_STUCK]:
        try:
            record = record_at(reader, each)
        except AdminError:
            record = None
        texts = [] if record is None else [shown(data, "auto", console.schemas) for data in (record.key, record.value)]
        found.append({"at": each, "texts": texts})
    return found


def drawn(group: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """Return the grids to draw, and the number of topics without a grid.

    A grid shows the members, and their partitions of one topic.
    """
    members = sorted(group["members"] or (), key=lambda each: (str(each["client_id"]), str(each["member_id"])))
    has: dict[str, dict[int, set[str]]] = {}
    for member in members:
        for each in member["partitions"]:
            has.setdefault(each["topic"], {}).setdefault(each["partition"], set()).add(member["member_id"])
    late: dict[str, dict[int, int | None]] = {topic: {} for topic in has}
    for row in group["partitions"]:
        if row["topic"] in late:
            late[row["topic"]][row["partition"]] = row["lag"]
    members = members[:_MOST_DRAWN]
    found: list[dict[str, Any]] = []
    cells = 0
    for topic in sorted(has):
        indexes = sorted(has[topic].keys() | late[topic].keys())
        shown = indexes[:_MOST_DRAWN]
        cells += len(shown) * (len(members) + 1)
        if cells > _MOST_CELLS and found:
            break
        found.append(
            {
                "topic": topic,
                "indexes": shown,
                "left_out": len(indexes) - len(shown),
                "rows": [
                    {
                        "name": each["client_id"],
                        "id": each["member_id"],
                        "cells": [each["member_id"] in has[topic].get(index, ()) for index in shown],
                    }
                    for each in members
                ],
                "lags": [late[topic].get(index) for index in shown],
            }
        )
    return found, len(has) - len(found)


PAGES: Final = (Page("/groups", "groups.html", find), Page("/group", "group.html", find_one))
ACTIONS: Final[tuple[Action, ...]] = ()
