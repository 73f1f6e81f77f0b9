"""An S3 that fails at random under topics with remote storage, while brokers end: nothing is lost, nothing remains.

Three brokers in this process copy to an S3 behind a proxy. The proxy refuses requests, answers late, in part, wrongly
or never, and loses answers of requests that took effect. Readers begin at offset 0 again and again meanwhile. At the
end the store works; then the records, the objects and the checksums of all segments are compared.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from kbroker.embed_cluster import Cluster
from kbroker.remote.store import open_store
from tests.crash.test_tiers import KEPT, SHORT, settings
from tests.crash.test_tiers_in_cluster import (
    EARLIEST,
    PATIENCE_S,
    SAFE,
    Load,
    create,
    delete_all,
    judge,
    offset,
    settled,
    until,
    value_of,
)
from tests.figures import figure
from tests.remote.s3_faults import BUCKET, KEY_ID, S3, SECRET, Proxy, Request, s3
from tests.tries import FORM

FAULTS = 1000
PART = 0.3
"""The part of all requests that the proxy damages."""
DEADLINE_S = 2.0
"""The deadline of a call of the store; 30 s without this test."""
URL = f"s3://{BUCKET}/prefix"
ANY = ("403", "500", "503", "reset", "lost answer", "lost answer", "slow", "never")
READS = ("404", "half", "short")


class Storm(Proxy):
    """A proxy that damages some of the requests at random, while `is_on`."""

    def __init__(self, behind: S3, seed: int) -> None:
        super().__init__(behind.port)
        self.is_on = False
        self.counts: Counter[str] = Counter()
        self._rng = random.Random(seed)

    def fault_for(self, request: Request) -> str:
        if not self.is_on or self._rng.random() > PART:
            return ""
        fault = self._rng.choice(ANY + READS if request.verb == "GET" else ANY)
        self.counts[f"{request.verb} {fault}"] += 1
        return fault

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@contextmanager
def serving(storm: Storm) -> Iterator[None]:
    """Serve the proxy on a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def begin() -> asyncio.Server:
        server = await asyncio.start_server(storm.serve, "127.0.0.1", 0, limit=1 << 20)
        storm.port = server.sockets[0].getsockname()[1]
        return server

    async def end(server: asyncio.Server) -> None:
        server.close()
        for task in list(storm.connections):
            task.cancel()
        await asyncio.gather(*storm.connections, return_exceptions=True)

    server = asyncio.run_coroutine_threadsafe(begin(), loop).result(PATIENCE_S)
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(end(server), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


class Readers(threading.Thread):
    """Reads a topic from offset 0, again and again, until `over`."""

    def __init__(self, bootstrap: str, load: Load) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.passes = 0
        self.wrong = ""
        self._address = bootstrap
        self._load = load

    def run(self) -> None:
        while not (self.over.is_set() or self.wrong):
            if end := len(self._load.acked):
                self._read(end)
                self.passes += not (self.over.is_set() or self.wrong)

    def _read(self, end: int) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": "a",
                "auto.offset.reset": "error",
                "log_level": 0,
                "fetch.error.backoff.ms": 50,
            }
        )
        consumer.assign([TopicPartition(KEPT, 0, 0)])
        offset = 0
        while offset < end and not (self.over.is_set() or self.wrong):
            for message in consumer.consume(1000, 0.2):
                if message.error() is not None:
                    continue  # the store fails; the client asks again
                if message.offset() != offset or message.value() != value_of(offset + 1):
                    self.wrong = f"offset {message.offset()} with the key {message.key()!r} instead of offset {offset}"
                    break
                offset += 1
        consumer.close()


def options(port: int) -> dict[str, str]:
    return {
        "endpoint": f"http://127.0.0.1:{port}",
        "access_key_id": KEY_ID,
        "secret_access_key": SECRET,
        "region": "us-east-1",
    }


def objects(behind: S3) -> list[str]:
    """Return the segments in the store."""

    async def listed() -> list[str]:
        store = open_store(URL, options(behind.port))
        return [each.name async for each in store.list("") if "/broker-state/" not in f"/{each.name}"]

    return asyncio.run(listed())


def rests(bootstrap: str) -> bool:
    """Whether the start of the topic that keeps few records does not move for two seconds."""
    before = offset(bootstrap, SHORT, EARLIEST)
    time.sleep(2)
    return offset(bootstrap, SHORT, EARLIEST) == before


def check(data_dir: str, behind: S3) -> int:
    """Compare all objects with their records, and with their checksums. Return the number of orphans.

    A leader that ends during a copy can leave an orphan in a cluster (docs/tiers.md). Nothing else is wrong.
    """
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{behind.port}",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }
    command = [sys.executable, "-m", "kbroker", "log", "check", data_dir, "--from", URL, "--deep", "--json"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=5 * PATIENCE_S, env=environment)
    found = json.loads(done.stdout)
    remote = [each for each in found if not each["file"].startswith(data_dir)]
    assert not [each for each in remote if each["kind"] != "orphan"], found
    return len(remote)


@pytest.mark.long
@pytest.mark.skipif(FORM != "long", reason="takes minutes: only in make torture")
def test_nothing_is_lost_over_faults_of_a_store(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}, {FAULTS} faults")
    rng = random.Random(seed)
    ends: Counter[str] = Counter()
    with s3() as behind, serving(storm := Storm(behind, seed)):
        more = {
            **settings(tmp_path),
            **SAFE,
            "remote.storage.url": URL,
            "remote.storage.options": ",".join(f"{key}={value}" for key, value in options(storm.port).items()),
            "remote.log.manager.task.retry.backoff.ms": "50",
            "remote.log.manager.task.retry.backoff.max.ms": "500",
        }
        with Cluster(3, more, data_dir=tmp_path / "data") as cluster:

            def hurry() -> None:
                for broker in cluster.brokers.values():
                    assert broker.node.tiers is not None
                    broker.node.tiers.shared.deadline_s = DEADLINE_S

            hurry()
            create(cluster.bootstrap_servers)
            load = Load(cluster.bootstrap_servers)
            readers = Readers(cluster.bootstrap_servers, load)
            readers.start()
            storm.is_on = True
            shown = 0
            while storm.total < FAULTS:
                time.sleep(rng.uniform(2, 6))
                broker = rng.choice(list(cluster.brokers.values()))
                how = rng.choice(("kill", "stop", "expire_session"))
                ends[how] += 1
                getattr(broker, how)()
                if how != "expire_session":
                    time.sleep(rng.uniform(0.1, 1.0))
                    broker.start()
                    hurry()
                assert not readers.wrong, readers.wrong
                if storm.total // 100 > shown:
                    shown = storm.total // 100
                    print(f"{storm.total} faults, {load.count} records, read {readers.passes} times", flush=True)
            load.end()
            until(lambda: readers.passes or readers.wrong, "the topic was read once")
            storm.is_on = False
            readers.over.set()
            readers.join(PATIENCE_S)
            assert not readers.wrong, readers.wrong
            settled(cluster.bootstrap_servers, load)
            until(lambda: rests(cluster.bootstrap_servers), "retention has deleted what is due")
            judge(cluster.bootstrap_servers, load)
            in_store = len(objects(behind))
            orphans = max(check(broker.data_dir, behind) for broker in cluster.brokers.values())
            delete_all(cluster.bootstrap_servers, lambda: objects(behind))
            left = behind.open_uploads()
    figure(
        f"{storm.total} faults of a store and {sum(ends.values())} fail-overs",
        f"{load.count} records, read {readers.passes} times meanwhile, {in_store} objects, {orphans} orphans before "
        f"the deletion, {left} open uploads, "
        f"{dict(storm.counts)}, {dict(ends)}",
    )
