"""The process that makes and exports spans: `python -m kbroker.traces.process URL ABOUT`, started by the broker.

Owns its input: lists of what was measured of requests, as marshal writes them (traces.py). Its end needs no care: when
the broker is gone, killed or not, its input ends; it exports what it has, and ends, too. Signals that are meant for the
broker it passes over, and it lets others go first.
"""

from __future__ import annotations

import json
import logging
import marshal
import os
import signal
import sys
from collections.abc import Callable
from typing import BinaryIO, Final

from kbroker.network.measured import Told

_NICE: Final = 5


def main() -> None:
    """Make spans until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    logging.basicConfig(format="%(name)s: %(message)s", level=logging.WARNING)
    url, about = sys.argv[1:]
    from kbroker.traces.spans import Spans, exporter_to  # late: it takes long to load

    spans = Spans(exporter_to(url), json.loads(about))
    make(spans.take, sys.stdin.buffer)
    spans.close()


def make(take: Callable[[Told, int], None], source: BinaryIO) -> None:
    """Take all that comes."""
    while True:
        try:
            found = marshal.load(source)
        except (EOFError, ValueError, TypeError):  # the broker is gone, maybe in the middle
            return
        for ended_ns, facts in found:
            take(Told(*facts), ended_ns)


if __name__ == "__main__":
    main()
