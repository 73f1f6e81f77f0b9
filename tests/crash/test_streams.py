"""A Kafka Streams application keeps its counts while the broker and the application itself are killed.

It runs with processing.guarantee=exactly_once_v2: each kill of the broker or of the application happens somewhere in a
transaction. For read_committed consumers a count may only rise, and in the end every count is right.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from compat_tests.streams.app import Application, Input, Output, create_topics
from tests.crash.test_kill import FixedPort
from tests.figures import figure
from tests.tries import tries

SEED = 20261121
BROKER_KILLS, APPLICATION_KILLS = tries(3), tries(2)
PREFIX = "streams"
WAIT_S = 120

pytestmark = pytest.mark.java


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FixedPort]:
    running = FixedPort(tmp_path / "broker").start()
    yield running
    running.stop()


def test_counts_stay_exact_when_broker_and_application_are_killed(broker: FixedPort, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    create_topics(broker.bootstrap, PREFIX)
    source, output = Input(broker.bootstrap, PREFIX, SEED), Output(broker.bootstrap, PREFIX)
    ends = ["broker"] * BROKER_KILLS + ["application"] * APPLICATION_KILLS
    rng.shuffle(ends)
    application = Application(broker.bootstrap, PREFIX, tmp_path / "state")
    with application:
        for end in ends:
            source.send(rng.randint(50, 150))
            output.wait_for_more(application, WAIT_S)  # a kill now happens during work, inside a transaction
            source.send(rng.randint(50, 150))
            if end == "broker":
                broker.kill()
                broker.start()
            else:
                application.end(signal.SIGKILL)
                if rng.random() < 0.5:
                    shutil.rmtree(tmp_path / "state", ignore_errors=True)  # its state must come from the log
                application.start()
        source.send(100)
        output.wait_for(source.counts, application, WAIT_S)
    output.close()
    assert all(a < b for told in output.told.values() for a, b in pairwise(told)), output.told
    words = sum(source.counts["words"].values())
    figure(
        f"Kafka Streams, seed {SEED}: {BROKER_KILLS} kills of the broker, {APPLICATION_KILLS} of the application",
        f"{source.sent} lines, {words} words and {source.sent} moves counted exactly, {output.records} counts read",
    )
