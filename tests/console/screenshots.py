"""The pictures of docs/console.md: `python -m tests.console.screenshots`.

Creates a cluster of three brokers with something of everything, writes for a while, and takes the pictures.
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer

from kbroker import Cluster
from tests.console import world
from tests.console.browser import Browser, browser
from tests.console.conftest import served
from tests.console.visitor import Visitor

INTO = Path(__file__).parents[2] / "docs" / "console"
_ROUNDS = 80
OPEN_FIRST = "document.querySelector('#rows tr:nth-child(3) a').click()"


@contextmanager
def traffic(bootstrap: str, readers: list[Consumer]) -> Iterator[None]:
    """Write records, and read them slightly more slowly."""
    over = threading.Event()

    def write() -> None:
        random_, number = random.Random(3), 10_000
        producer = Producer({"bootstrap.servers": bootstrap})
        while not over.wait(0.1):
            for _ in range(random_.randrange(2, 40)):
                number += 1
                producer.produce("orders", json.dumps(world.order(random_, number)).encode(), str(number).encode())
                if number % 3:
                    producer.produce("clicks", b"GET /shop/lamp", str(number).encode())
                if number % 5 == 0:
                    producer.produce("payments", json.dumps({"order": number, "cents": 900}).encode())
            producer.poll(0)
            for each in readers:
                found = each.consume(random_.randrange(1, 20), 0.01)
                if found:
                    each.commit(asynchronous=True)
        producer.flush(10)
        producer.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def main() -> None:
    """Take the pictures."""
    INTO.mkdir(exist_ok=True)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(brokers=3))
        bootstrap = cluster.bootstrap_servers
        world.make(bootstrap, replicas=3)
        world.commit(bootstrap, "billing", "orders", 0.9)
        world.commit(bootstrap, "reports", "payments", 0.3)
        readers = stack.enter_context(world.members(bootstrap, "shipping", "orders", 3))
        stack.enter_context(world.open_transaction(bootstrap, "checkout-1", "payments"))
        server = stack.enter_context(served(bootstrap))
        Visitor(server.url).do("schema-add", name="42", kind="avro", text=json.dumps(world.ORDER))
        page = stack.enter_context(browser(server.url, stack.enter_context(tempfile.TemporaryDirectory())))
        with traffic(bootstrap, readers):
            assert server.console.sampler.wait_for_rounds(_ROUNDS, 120)
            take(page, "overview", "/")
            take(page, "topics-dark", "/topics?sort=rate", dark=True)
            take(page, "group", "/group?name=shipping")
            take(page, "phone", "/", width=360, height=760)
            take(
                page, "phone-record-dark", "/topics/orders-avro/messages", OPEN_FIRST, width=360, height=760, dark=True
            )
        take(page, "record", "/topics/orders/messages?where=.user.city+%3D%3D+%22Oslo%22", OPEN_FIRST)
        take(page, "search", "/topics/orders/messages?where=.items%5B%5D.price+%3E+250+and+not+.paid")
        take(page, "reset", "/group/reset?name=billing&to=shift&shift=-20")
        take(page, "cluster", "/cluster", height=620)
        cluster.brokers[2].kill()
        page.until(lambda: page.go("/") or "Broker 2 is gone" in page.text())
        take(page, "wrong", "/", height=620)
        take(page, "gone", "/cluster", height=620)


def take(
    page: Browser,
    name: str,
    path: str,
    script: str = "",
    *,
    width: int = 1280,
    height: int = 800,
    dark: bool = False,
) -> None:
    """Take one picture."""
    page.size(width, height)
    page.dark(dark)
    page.go(path)
    page.find("h1")
    if script:
        page.run(script)
        page.says("On the command line", "#drawer")
    page.driver.save_screenshot(str(INTO / f"{name}.png"))
    size = (INTO / f"{name}.png").stat().st_size
    print(f"{name}: {size:,} bytes")
    assert size < 150_000, name


if __name__ == "__main__":
    main()
