"""What the Streams application counts, the same on both brokers."""

from __future__ import annotations

import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Final

from compat_tests.harness.scenarios import Scenarios
from compat_tests.streams.app import Application, Input, Output, create_topics
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.streams_groups import StreamsGroupDescribeRequest

scenarios = Scenarios("kafka-streams")

SEED: Final = 20261121
WAIT_S: Final = 90


@scenarios.add
def counts_of_a_changing_input(bootstrap: str, unique: str) -> object:
    """The counts follow the input, also over a restart of the application, and no count is written twice."""
    create_topics(bootstrap, unique)
    source, output = Input(bootstrap, unique, SEED), Output(bootstrap, unique)
    seen = []
    with tempfile.TemporaryDirectory() as directory:
        application = Application(bootstrap, unique, Path(directory) / "state")
        for lines in (200, 300):
            with application:
                source.send(lines)
                output.wait_for(source.counts, application, WAIT_S)
                seen.append(output.counts)
    output.close()
    rising = all(a < b for told in output.told.values() for a, b in pairwise(told))
    return {"counts": seen, "each count of words once": rising}


@scenarios.add
def counts_by_the_streams_protocol(bootstrap: str, unique: str) -> object:
    """One process runs, then two, then only the second: the broker assigns the tasks (KIP-1071)."""
    create_topics(bootstrap, unique)
    source, output = Input(bootstrap, unique, SEED + 1), Output(bootstrap, unique)
    seen: list[object] = []
    with tempfile.TemporaryDirectory() as directory:
        first, second = (Application(bootstrap, unique, Path(directory) / name, "streams") for name in "ab")

        def counted(lines: int, application: Application, members: int) -> None:
            source.send(lines)
            output.wait_for(source.counts, application, WAIT_S)
            wait_for_members(bootstrap, unique, members)
            seen.append((output.counts, described(bootstrap, unique)))

        with second:
            with first:
                wait_for_members(bootstrap, unique, 4)
                counted(200, first, 4)
            counted(100, second, 2)
        wait_for_members(bootstrap, unique, 0)
        with first:
            counted(100, first, 2)
    output.close()
    rising = all(a < b for told in output.told.values() for a, b in pairwise(told))
    return {"seen": seen, "each count of words once": rising}


def described(bootstrap: str, unique: str) -> object:
    """Describe the application's group: its state, its topology, and the number of tasks of each member."""
    with WireClient(bootstrap) as client:
        (group,) = client.ask(StreamsGroupDescribeRequest([f"{unique}-app"]), 1).groups
    tasks = [sum(len(each.partitions) for each in member.assignment.active_tasks) for member in group.members]
    topology = [] if group.topology is None else group.topology.subtopologies
    topics = [
        (each.subtopology_id, each.source_topics, [(t.name, t.partitions) for t in each.state_changelog_topics])
        for each in topology
    ]
    return {"state": group.group_state, "tasks": sorted(tasks), "topology": topics}


def wait_for_members(bootstrap: str, unique: str, members: int) -> None:
    """Wait until the group has this many members and is stable."""
    deadline = time.monotonic() + WAIT_S
    with WireClient(bootstrap) as client:
        while True:
            (group,) = client.ask(StreamsGroupDescribeRequest([f"{unique}-app"]), 1).groups
            if len(group.members) == members and group.group_state in ("Stable", "Empty"):
                return
            assert time.monotonic() < deadline, f"{len(group.members)} members, {group.group_state}"
            time.sleep(0.1)
