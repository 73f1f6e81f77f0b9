"""Runs a scenario with clients: what each client saw, and which records the broker then has.

Owns the words of the table. Never judges them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from compat_tests.faults.catalogue import CONSUME, GROUP, PRODUCE, PRODUCE_PLAIN, Scenario
from compat_tests.faults.client import Client
from kbroker import Broker

TOPIC: Final = "t"
_TIMES: Final = {0: "not written", 1: "written once", 2: "written twice"}


def see(scenario: Scenario, clients: Iterable[Client]) -> dict[str, str]:
    """Return the outcome of a scenario for each client. All run at the same time, each with its own broker."""
    clients = list(clients)
    with ThreadPoolExecutor(len(clients)) as pool:
        found = pool.map(lambda client: _seen(scenario, client), clients)
        return {client.name: each for client, each in zip(clients, found, strict=True)}


def _seen(scenario: Scenario, client: Client) -> str:
    with Broker() as broker:
        topic = broker.topics.create(TOPIC)
        if scenario.does in (CONSUME, GROUP):
            topic.produce("0")
        with scenario.begin(broker.faults) as fault:
            began = time.monotonic()
            told = _done(scenario, client, broker.bootstrap_servers)
            took = time.monotonic() - began
            if "refuse" not in scenario.text:  # of which there is no request
                assert fault.hits, f"{client.name} has never met {scenario.text}"
        if scenario.late_s is not None and took >= scenario.late_s:
            told += ", late"
        return f"{told}; {_left(scenario, broker)}" if _left(scenario, broker) else told


def _done(scenario: Scenario, client: Client, bootstrap: str) -> str:
    if scenario.does in (PRODUCE, PRODUCE_PLAIN):
        return client.produce(bootstrap, TOPIC, scenario.count, idempotent=scenario.does == PRODUCE)
    if scenario.does == CONSUME:
        return client.consume(bootstrap, TOPIC)
    if scenario.does == GROUP:
        return client.consume_in_group(bootstrap, TOPIC, "g")
    return client.transact(bootstrap, TOPIC, "x")


def _left(scenario: Scenario, broker: Broker) -> str:
    """Describe which records the broker has at the end."""
    topic = broker.topics[TOPIC]
    if scenario.does in (PRODUCE, PRODUCE_PLAIN):
        values = topic.values()
        copies = {values.count(str(number).encode()) for number in range(scenario.count)}
        return ", ".join(_TIMES.get(each, f"written {each} times") for each in sorted(copies))
    if scenario.does == GROUP:
        offset = broker.groups["g"].offsets.get((TOPIC, 0))
        return "" if offset == 1 else "no offset" if offset is None else f"offset {offset}"
    if scenario.does == CONSUME:
        return ""
    # A transaction that is left open is aborted some time after its client ended.
    states = sorted({str(each.transaction) for each in topic.records()})
    return f"records {', '.join(states)}" if states else "not written"
