"""Run the service: `KAFKA_BOOTSTRAP_SERVERS=... python -m orders orders.db`. Ctrl-C ends it."""

from __future__ import annotations

import os
import signal
import sys

from orders.clients import Kafka, Topics
from orders.service import Service


def main() -> int:
    """Serve until a signal arrives, or a part of the service fails."""
    kafka = Kafka(os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092"))
    with Service(kafka, Topics(), sys.argv[1] if len(sys.argv) > 1 else "orders.db") as service:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda *_: service.stop())
        service.wait()
    for failure in service.failures:
        print(f"failed: {failure!r}", file=sys.stderr)
    return len(service.failures)


if __name__ == "__main__":
    sys.exit(main())
