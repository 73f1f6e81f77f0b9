"""The process that creates and exports spans. The broker runs `python -m kbroker.traces.process URL ABOUT`.

Owns the process's input: lists of measurements of requests, in marshal's format (traces.py). When the broker ends, even
if it is killed, the input ends. The process then exports the remaining spans and also ends. It ignores signals that are
meant for the broker, and runs at a low priority.
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

from kbroker.network.request_log import Measured

_NICE: Final = 5


def main() -> None:
    """Create spans until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    logging.basicConfig(format="%(name)s: %(message)s", level=logging.WARNING)
    url, about = sys.argv[1:]
    from kbroker.traces.spans import Spans, exporter_to  # imported late, because the import takes long

    spans = Spans(exporter_to(url), json.loads(about))
    make(spans.take, sys.stdin.buffer)
    spans.close()


def make(take: Callable[[Measured, int], None], source: BinaryIO) -> None:
    """Pass all measurements to the spans until the input ends."""
    while True:
        try:
            found = marshal.load(source)
        except (EOFError, ValueError, TypeError):  # the broker has ended, perhaps in the middle of a write
            return
        for ended_ns, facts in found:
            take(Measured(*facts), ended_ns)


if __name__ == "__main__":
    main()
