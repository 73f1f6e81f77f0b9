"""The cluster: brokers by rack, their partitions, log directories, and moving partitions.

Owns the map of replicas, the move of a partition, and the plan and the start of a drain. Moves continue in the cluster
without the console.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from kbroker.admin.brokers import listed_brokers, served_apis
from kbroker.admin.cluster_view import ClusterView, is_misled
from kbroker.admin.errors import AdminError, NotThere, WrongInput, raise_any
from kbroker.admin.log_dirs import LogDir, log_dirs
from kbroker.admin.placement import Key, drain_plan, elect_leaders, move, moving, parse_replicas, partitions_of
from kbroker.console.console import Console
from kbroker.console.health import can_move
from kbroker.console.listing import Listing
from kbroker.console.page_and_action import Action, Done, Facts, Page
from kbroker.console.values import Values

AT_ONCE: Final = 50
"""The maximum number of partitions that a drain starts to move at the same time."""
_MOST_MOVES: Final = 200
_MOST_STUCK: Final = 20


async def find(console: Console, values: Values) -> Facts:
    """Return the map of the cluster."""
    del values
    view = await console.view()
    numbers = [each.node_id for each in view.brokers]
    dirs, moves = await console.ask(lambda admin: (log_dirs(admin, numbers), _moving(admin)))
    racks: dict[str, list[dict[str, Any]]] = {}
    counted = _counted(view)
    for each in view.brokers:
        racks.setdefault(each.rack or "no rack", []).append(
            {"id": each.node_id, "address": f"{each.host}:{each.port}", **_of(each.node_id, counted, dirs)}
        )
    misled = sum(is_misled(p) for _, p in view.partitions())
    return {
        "view": view,
        "racks": racks,
        "missing": {broker: (count, can_move(view, broker)) for broker, count in view.missing_brokers().items()},
        "most": max((counted["has"][each] for each in numbers), default=1),
        "moves": _progress(moves, dirs),
        "left_out": max(len(moves) - _MOST_MOVES, 0),
        "misled": misled,
    }


def _moving(admin: Any) -> dict[Key, dict[str, list[int]]]:
    try:
        return moving(admin)
    except AdminError:
        return {}


def _counted(view: ClusterView) -> dict[str, Counter[int]]:
    found: dict[str, Counter[int]] = {"leads": Counter(), "has": Counter(), "late": Counter()}
    for _, each in view.partitions():
        found["leads"][each.leader_id] += 1
        for broker in each.replica_nodes:
            found["has"][broker] += 1
            found["late"][broker] += broker not in each.isr_nodes
    return found


def _of(broker: int, counted: Mapping[str, Counter[int]], dirs: list[LogDir]) -> dict[str, Any]:
    own_dirs = [each for each in dirs if each.broker == broker]
    return {
        "leads": counted["leads"][broker],
        "has": counted["has"][broker],
        "late": counted["late"][broker],
        "dirs": own_dirs,
        "used": sum(each.used for each in own_dirs),
    }


def _progress(moves: Mapping[Key, Mapping[str, list[int]]], dirs: list[LogDir]) -> list[dict[str, Any]]:
    """Return the moves with their progress: the smallest new replica's size divided by the largest replica's size."""
    sizes: dict[tuple[Key, int], int] = {}
    for each in dirs:
        sizes.update({(key, each.broker): size for key, size in each.replicas.items()})
    found = []
    for key, state in sorted(moves.items())[:_MOST_MOVES]:
        whole = max((sizes.get((key, broker), 0) for broker in state["replicas"]), default=0)
        least = min((sizes.get((key, broker), 0) for broker in state["adding_replicas"]), default=whole)
        found.append(
            {
                "topic": key[0],
                "partition": key[1],
                "replicas": state["replicas"],
                "adding": state["adding_replicas"],
                "removing": state["removing_replicas"],
                "done": least / whole if whole else 1.0,
                "size": whole,
            }
        )
    return found


async def find_broker(console: Console, values: Values) -> Facts:
    """Return the facts of a broker's page."""
    number = values.number("id", "the broker's id")
    view = await console.view()
    broker = next((each for each in view.brokers if each.node_id == number), None)
    if broker is None:
        raise NotThere(f"no live broker has id {number}")
    dirs, apis = await console.ask(lambda admin: (log_dirs(admin, [number]), served_apis(admin, number)))
    led = view.leaders()
    parts: list[dict[str, Any]] = [
        {
            "topic": key[0],
            "partition": key[1],
            "size": size,
            "leads": led.get(key) == number,
            "dir": each.path,
        }
        for each in dirs
        for key, size in each.replicas.items()
    ]
    parts.sort(key=lambda each: (-each["size"], each["topic"], each["partition"]))
    return {
        "broker": broker,
        "view": view,
        **_of(number, _counted(view), dirs),
        "list": Listing(parts, values.page(), "/broker", {"id": number}),
        "apis": apis,
    }


async def find_move(console: Console, values: Values) -> Facts:
    """Return a partition, and the effect of its move."""
    name = values.needed("topic", "the topic")
    partition = values.number("partition", "the partition")
    view, topic = await console.view(), await console.topic(name)
    now = next((each for each in topic.partitions if each.partition_index == partition), None)
    if now is None:
        raise NotThere(f"topic {name} has no partition {partition}")
    chosen, failure = None, None
    if values.text("to"):
        try:
            chosen = _checked(values.text("to"), view)
        except WrongInput as error:
            failure = str(error)
    return {
        "topic": topic,
        "partition": partition,
        "now": now,
        "brokers": view.brokers,
        "to": values.text("to"),
        "chosen": chosen,
        "failure": failure,
        "adding": [each for each in chosen or () if each not in now.replica_nodes],
        "removing": [each for each in now.replica_nodes if chosen and each not in chosen],
        "racks": {each.node_id: each.rack for each in view.brokers},
    }


def _checked(text: str, view: ClusterView) -> list[int]:
    chosen = parse_replicas(text)
    alive = {each.node_id for each in view.brokers}
    missing = [each for each in chosen if each not in alive]
    if missing:
        raise WrongInput(f"no live broker has id {missing[0]}")
    return chosen


async def find_drain(console: Console, values: Values) -> Facts:
    """Return the plan of a drain: the new broker of each replica on the drained broker."""
    number = values.number("broker", "the broker's id")
    view = await console.view()
    targets, stuck, before = _plan(number, view)
    rows = [
        {"topic": key[0], "partition": key[1], "before": before[key], "after": to}
        for key, to in sorted(targets.items())
    ]
    return {
        "broker": number,
        "list": Listing(rows, values.page(), "/cluster/drain", {"broker": number}),
        "stuck": stuck[:_MOST_STUCK],
        "more_stuck": max(len(stuck) - _MOST_STUCK, 0),
        "count": len(targets),
        "at_once": AT_ONCE,
    }


def _plan(number: int, view: ClusterView) -> tuple[dict[Key, list[int]], list[Key], dict[Key, list[int]]]:
    before = {key: list(each.replica_nodes) for key, each in view.partitions()}
    racks = {each.node_id: each.rack for each in view.brokers}
    targets, stuck = drain_plan(number, before, racks)
    return targets, stuck, before


def move_partition(admin: Any, values: Values) -> Done:
    """Start moving a partition."""
    name = values.needed("topic", "the topic")
    partition = values.needed_number("partition", "the partition")
    replicas = parse_replicas(values.needed("to", "the replicas to have"))
    move(admin, {(name, partition): replicas})
    return Done(f"{name}-{partition} is being moved.", "/cluster")


def cancel(admin: Any, values: Values) -> Done:
    """Cancel a move; the partition returns to its previous replicas."""
    name = values.needed("topic", "the topic")
    partition = values.needed_number("partition", "the partition")
    move(admin, {(name, partition): None})
    return Done(f"{name}-{partition} goes back to its replicas from before.", "/cluster")


def drain(admin: Any, values: Values) -> Done:
    """Start moving replicas of a broker to other brokers, a limited number at a time."""
    number = values.needed_number("broker", "the broker's id")
    replicas = {key: list(each["replica_nodes"]) for key, each in partitions_of(admin).items()}
    racks = {each["id"]: each["rack"] for each in listed_brokers(admin, {})}
    targets, stuck = drain_plan(number, replicas, racks)
    if stuck:
        raise AdminError(f"every other live broker already has a replica of {stuck[0][0]}-{stuck[0][1]}")
    piece = dict(sorted(targets.items())[:AT_ONCE])
    if not piece:
        raise AdminError(f"broker {number} has no replicas")
    move(admin, piece)
    left = len(targets) - len(piece)
    more = f" {left} more are to follow: drain again once these are done." if left else ""
    return Done(f"{len(piece)} replicas of broker {number} are being moved.{more}", "/cluster")


def elect(admin: Any, _: Values) -> Done:
    """Elect the preferred leaders of all topics."""
    changed, failures = elect_leaders(admin, None, unclean=False)
    raise_any(failures[:20])
    return Done(f"{len(changed)} partitions have another leader.", "/cluster")


PAGES: Final = (
    Page("/cluster", "cluster.html", find),
    Page("/broker", "broker.html", find_broker),
    Page("/cluster/move", "move.html", find_move),
    Page("/cluster/drain", "drain.html", find_drain),
)
ACTIONS: Final = (
    Action("move", move_partition),
    Action("move-cancel", cancel),
    Action("drain", drain, "broker"),
    Action("elect-all", elect),
)
