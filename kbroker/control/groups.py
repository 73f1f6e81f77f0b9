"""Groups over HTTP, and the broker itself. Owns the form of both as JSON."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Final

from kbroker.control.operations import Control, Operation
from kbroker.control.values import Values
from kbroker.fields import Field
from kbroker.testing.groups import Group
from kbroker.testing.missing import MissingError


def _as_json(group: Group, topic: str | None) -> dict[str, Any]:
    state = group.state
    return {
        "id": group.id,
        "state": state,
        "members": [
            {
                "id": each.id,
                "client_id": each.client_id,
                "host": each.host,
                "instance_id": each.instance_id,
                "assigned": [{"topic": name, "partition": index} for name, index in each.assigned],
            }
            for each in group.members
        ],
        "offsets": [
            {"topic": name, "partition": index, "offset": offset}
            for (name, index), offset in sorted(group.offsets.items())
        ],
        "lag": _lag(group, topic),
    }


def _lag(group: Group, topic: str | None) -> int:
    try:
        return group.lag(topic)
    except MissingError:
        if topic is not None:
            raise
        return 0  # the group does not exist, or no longer exists: its state is "Dead"


def _in_flight(control: Control, values: Values) -> dict[str, Any]:
    limit = values.get("limit", _LIMIT)
    found = control.subject.groups[values["group"]].in_flight(
        values.get("topic"), values.get("partition"), count=limit + 1
    )
    return {"in_flight": [asdict(each) for each in found[:limit]], "more": len(found) > limit}


def _list(control: Control, _: Values) -> dict[str, Any]:
    return {"groups": [{"id": each.id, "state": each.state} for each in control.subject.groups.values()]}


def _broker(control: Control, _: Values) -> dict[str, Any]:
    subject = control.subject
    return {
        "bootstrap_servers": subject.bootstrap_servers,
        "cluster_id": subject.cluster_id,
        "version": version("kbroker"),
        "apis": sorted(subject.faults.apis),
    }


_LIMIT, _MOST = 500, 10_000

OPERATIONS: Final = (
    Operation(
        "GET", "/broker", "getBroker", "Where clients connect, and which of Kafka's APIs are served.", "Broker",
        work=_broker,
    ),
    Operation("GET", "/groups", "listGroups", "The groups, with their states.", "Groups", work=_list),
    Operation(
        "GET", "/in-flight/{group:path}", "getInFlight",
        "The records that a share group has in flight, as runs of offsets with the same state, in order.", "InFlight",
        work=_in_flight,
        query=(
            Field("topic", "string", "Only this topic."),
            Field("partition", "integer", "Only this partition.", least=0, most=2**31 - 1),
            Field("limit", "integer", f"The maximum number of runs; the default is {_LIMIT}.", least=1, most=_MOST),
        ),
    ),
    Operation(
        # Declare paths below /groups/NAME before this path, which matches everything because names may contain slashes.
        "GET", "/groups/{group:path}", "getGroup",
        'One group: members, offsets, lag. One that does not exist (yet) is "Dead" and has nothing.', "Group",
        work=lambda control, values: _as_json(control.subject.groups[values["group"]], values.get("topic")),
        query=(Field("topic", "string", "Limit `lag` to this topic; this works also before a member has joined."),),
    ),
)  # fmt: skip
