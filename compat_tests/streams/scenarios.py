"""What the Streams application counts, alike on both brokers."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Final

from compat_tests.harness.scenarios import Scenarios
from compat_tests.streams.app import Application, Input, Output, create_topics

scenarios = Scenarios("kafka-streams")

SEED: Final = 20261121
WAIT_S: Final = 90


@scenarios.add
def counts_of_a_changing_input(bootstrap: str, unique: str) -> object:
    """Counts follow the input, also over a restart of the application, and no count is told twice."""
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
