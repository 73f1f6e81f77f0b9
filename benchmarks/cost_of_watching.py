"""`python -m benchmarks.cost_of_watching`: what it costs a broker to count, and to be watched.

Two alternating brokers (`python -m benchmarks.pairs --watched`) cannot show costs that are smaller than the machine's
own variation. This benchmark measures CPU time instead: of an otherwise idle broker whose metrics are scraped and which
a console with an open page watches; and of the additions that count a request. Asserts nothing.
"""

from __future__ import annotations

import tempfile
import timeit
import urllib.request
from pathlib import Path
from time import sleep

import psutil

from benchmarks import work
from benchmarks.watchers import EVERY_S, Seen, watched
from kbroker.network.request_times import OFTEN, RequestTimes
from kbroker.topic_metrics import Traffic

TOPICS = [f"t{number}" for number in range(8)]
_SCRAPES = 200
_SECONDS = 60


class _Consumer:
    follows = False


def counting() -> dict[str, float]:
    """Return the cost in ns of counting a produce request of one partition: the same additions, repeated."""
    times = RequestTimes()
    names = {
        "tally": times.tally(0, 9),
        "times": times,
        "frame": memoryview(bytes(64)),
        "asker": _Consumer(),
        "traffic": Traffic(),
    }
    tries = 2_000_000
    empty = timeit.timeit("pass", number=tries)

    def ns(statement: str) -> float:
        return (timeit.timeit(statement, number=tries, globals=names) - empty) / tries * 1e9

    return {
        "the request": ns("tally.requests = count = tally.requests + 1\nif count <= 100: times.due = 0"),
        "its time, of one in sixteen": ns("times.sample(frame, asker, None, 1.0, 2.0)") / OFTEN,
        "that it is not this one's turn": ns("if times.due: times.due -= 1"),
        "a batch": ns("traffic.produces += 1\ntraffic.bytes_in += 64"),
    }


def main() -> None:
    """Measure, and print."""
    for what, cost in counting().items():
        print(f"counting {what}: {cost:.0f} ns")
    with tempfile.TemporaryDirectory() as name, Seen(Path(name)) as broker:
        work.create(broker.bootstrap, *TOPICS, partitions=4)
        for topic in TOPICS:
            work.confluent_produce(broker, topic, 20_000, 100)
        process = psutil.Process(broker.pid)

        def cpu() -> float:
            used = process.cpu_times()
            return float(used.user + used.system)

        sleep(EVERY_S)
        began = cpu()
        sleep(_SECONDS)
        idle = (cpu() - began) / _SECONDS
        began = cpu()
        for _ in range(_SCRAPES):
            with urllib.request.urlopen(broker.metrics, timeout=30) as answer:
                answer.read()
        scrape = (cpu() - began) / _SCRAPES
        print(f"a scrape: {scrape * 1000:.1f} ms of CPU, each {EVERY_S:.0f} s {scrape / EVERY_S:.2%} of one")
        with watched(broker):
            sleep(EVERY_S)
            began = cpu()
            sleep(_SECONDS)
            both = (cpu() - began) / _SECONDS - idle
        print(f"scraped and with a console open: {both:.2%} of a CPU more than idle, which takes {idle:.2%}")


if __name__ == "__main__":
    main()
