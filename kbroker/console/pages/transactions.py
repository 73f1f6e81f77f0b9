"""Transactions and producers: listing them, finding open and hanging transactions, and ending them.

Owns these requests. The search for hanging transactions sends requests to every leader, so it runs only on demand.
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.admin.errors import NotThere, WrongInput
from kbroker.admin.placement import leaders
from kbroker.admin.transactions import abort_at, described, hanging, listed, producers, terminated
from kbroker.console.console import Console
from kbroker.console.listing import Listing, place
from kbroker.console.page_and_action import Action, Done, Facts, Page
from kbroker.console.values import Values

_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Empty")
_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
_MINUTE_MS: Final = 60_000
_MOST_PARTITIONS: Final = 20_000


async def find(console: Console, values: Values) -> Facts:
    """Return the transactional ids, and on demand the hanging transactions."""
    state, text = values.text("state"), values.text("q").lower()
    if state and state not in _STATES:
        raise WrongInput(f"there is no state {state[:50]!r}")
    found, failure = await console.ask_or_fail(lambda admin: listed(admin, [state] if state else ()))
    chosen = [each for each in found or () if text in each.transactional_id.lower()]
    hung = None
    minutes = values.number("minutes", "the minutes", 15)
    if values.text("look") == "hanging":
        view = await console.view()
        led = view.leaders()
        if len(led) > _MOST_PARTITIONS:
            raise WrongInput(
                f"this page searches at most {_MOST_PARTITIONS:,} partitions: use `kbroker transaction hanging`"
            )
        hung = await console.ask(lambda admin: hanging(admin, led, minutes * _MINUTE_MS))
    query = {"state": state, "q": text}
    return {
        "list": Listing(chosen, values.page(), "/transactions", query),
        "states": _STATES,
        "state": state,
        "q": text,
        "hung": hung,
        "minutes": minutes,
        "failure": failure,
    }


async def find_one(console: Console, values: Values) -> Facts:
    """Return a transactional id."""
    name = values.needed("id", "the transactional id")
    found = await console.ask(lambda admin: described(admin, name))
    if found is None:
        raise NotThere(f"no coordinator knows a transactional id {name}")
    return {"id": name, "coordinator": found[0], "txn": found[1], "open": found[1].transaction_state in _OPEN}


async def find_producers(console: Console, values: Values) -> Facts:
    """Return the producers of a partition."""
    topic = values.needed("topic", "the topic")
    partition = values.number("partition", "the partition")

    def ask(admin: Any) -> list[Any]:
        where = leaders(admin, topic, partition)
        ((_, found),) = producers(admin, where[topic, partition], where)
        return found

    found = await console.ask(ask)
    return {"topic": topic, "partition": partition, "producers": found[:1000]}


def terminate(admin: Any, values: Values) -> Done:
    """Abort the open transaction of a transactional id, and fence its producer."""
    name = values.needed("id", "the transactional id")
    found = described(admin, name)
    if found is None:
        raise WrongInput(f"no coordinator knows a transactional id {name}")
    terminated(admin, found[1])
    return Done(
        f"The open transaction of {name} is aborted, and its producer is fenced.", place("/transaction", id=name)
    )


def abort(admin: Any, values: Values) -> Done:
    """Write the marker that ends a hanging transaction in a partition."""
    topic = values.needed("topic", "the topic")
    partition = values.optional_number("partition", "the partition")
    start = values.optional_number("start", "the offset at which it begins")
    if partition is None or start is None:
        raise WrongInput("partition and offset are needed")
    producer = abort_at(admin, (topic, partition), start, force=values.flag("force"))
    text = f"The transaction of producer {producer.producer_id} at offset {start} of {topic}-{partition} is aborted."
    return Done(text, place("/transactions/producers", topic=topic, partition=partition))


PAGES: Final = (
    Page("/transactions", "transactions.html", find),
    Page("/transaction", "transaction.html", find_one),
    Page("/transactions/producers", "producers.html", find_producers),
)
ACTIONS: Final = (Action("transaction-terminate", terminate, "id"), Action("transaction-abort", abort, "topic"))
