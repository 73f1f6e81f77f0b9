"""The console with very many topics: how soon a browser shows a page, and the result of a search.

    python -m benchmarks.console [--topics 10000] [--rounds 5]

Starts a broker and a console, each in its own process, opens pages in Debian's chromium, and prints the times of the
browser's own clock: the first paint, the end of loading, and, for a search, from the key press to the changed list.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from tests.console.browser import Browser, browser

_PAGES = ("/", "/topics", "/topics?page=100", "/topics?sort=size", "/topics/topic-05000", "/cluster", "/groups")
_AT_ONCE = 500
_SEARCH = """
const done = arguments[arguments.length - 1], input = document.querySelector("#q"), begun = performance.now();
const seen = () => requestAnimationFrame(() => done(performance.now() - begun));
new MutationObserver((_, observer) => { observer.disconnect(); seen(); })
  .observe(document.querySelector("#list"), {childList: true, subtree: true});
input.value = arguments[0];
input.dispatchEvent(new Event("input", {bubbles: true}));
"""
_TIMES = """
const [navigation] = performance.getEntriesByType("navigation");
const [paint] = performance.getEntriesByName("first-contentful-paint");
return [navigation.responseEnd, paint ? paint.startTime : -1, navigation.loadEventEnd];
"""


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        ready = Path(place) / "ready"
        start = ["start", "--memory", "--listen", "127.0.0.1:0", "--ready-file", str(ready)]
        with running(start, ready) as told:
            bootstrap = json.loads(told)["bootstrap_servers"]
            make_topics(bootstrap, wanted.topics)
            here = Path(place) / "console"
            serve = ["console", "--listen", "127.0.0.1:0", "--bootstrap", bootstrap, "--ready-file", str(here)]
            with running(serve, here) as url, browser(url.strip(), f"{place}/profile") as page:
                measure(page, wanted.topics, wanted.rounds)


class running:  # noqa: N801 - it reads as what it does
    """A process of kbroker, from the moment when it is ready until the end of the block."""

    def __init__(self, arguments: list[str], ready: Path) -> None:
        self._ready = ready
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kbroker", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def __enter__(self) -> str:
        while not self._ready.exists() or not self._ready.read_text().endswith("\n"):
            if self._process.poll() is not None:
                raise SystemExit("kbroker does not start")
        return self._ready.read_text()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)


def make_topics(bootstrap: str, count: int) -> None:
    """Create topics with one partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [f"topic-{number:05d}" for number in range(count)]
    for at in range(0, count, _AT_ONCE):
        made = admin.create_topics([NewTopic(name, 1, 1) for name in names[at : at + _AT_ONCE]], request_timeout=120)
        for each in made.values():
            each.result(120)


def measure(page: Browser, topics: int, rounds: int) -> None:
    """Open each page and search several times; print the medians and maxima, in ms."""
    print(f"{topics:,} topics; ms, median (worst) of {rounds}\n")
    print("| page | answered | first paint | loaded |\n|---|---|---|---|")
    for path in _PAGES:
        page.go(path)
        found: list[list[float]] = []
        for _ in range(rounds):
            page.go(path)
            page.until(lambda: min(page.run(_TIMES)) > 0)
            found.append(page.run(_TIMES))
        print(f"| {path} | {' | '.join(cell([each[part] for each in found]) for part in range(3))} |")
    page.go("/topics")
    times: list[Any] = [page.driver.execute_async_script(_SEARCH, f"{number * 97 % 1000}") for number in range(rounds)]
    print(f"| search, from the key on (180 ms of it are waited for more keys) | | {cell(times)} | |")


def cell(times: list[float]) -> str:
    """Return the median and the maximum."""
    return f"{statistics.median(times):.0f} ({max(times):.0f})"


if __name__ == "__main__":
    main()
