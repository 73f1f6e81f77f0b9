"""New records are sent to those who follow, within limits."""

from __future__ import annotations

import http.client
import threading
from contextlib import ExitStack, closing, contextmanager

import pytest
from confluent_kafka import Producer

from kbroker.console.records import tail


@contextmanager
def listening(web, query="", **headers):
    """Follow a topic; yields a function that reads the next event."""
    with closing(http.client.HTTPConnection(web.address, timeout=20)) as connection:
        connection.request("GET", f"/topics/empty/tail?{query}", headers={"accept": "text/event-stream", **headers})
        answer = connection.getresponse()

        def event():
            lines = []
            while True:
                line = answer.readline().decode().rstrip("\n")
                if not line and lines:
                    if any(each.startswith("event:") for each in lines):
                        return dict(each.partition(": ")[::2] for each in lines if not each.startswith("data:")) | {
                            "data": "\n".join(each[6:] for each in lines if each.startswith("data:"))
                        }
                    lines = []
                elif line:
                    lines.append(line)

        yield answer, event


@pytest.fixture
def write(cluster):
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})

    def write(*values):
        for value in values:
            producer.produce("empty", value)
        assert producer.flush(10) == 0

    yield write
    producer.close()


def test_records_come_as_they_are_written(web, write):
    write(b"before")
    with listening(web, "at=0:0") as (answer, event):
        assert answer.headers["content-type"].startswith("text/event-stream")
        first = event()
        assert "before" in first["data"]
        write(b"<b>after</b>")
        second = event()
        assert "&lt;b&gt;after&lt;/b&gt;" in second["data"]
        assert "before" not in second["data"]
    with listening(web, **{"last-event-id": first["id"]}) as (_, event):
        again = event()
        assert "after" in again["data"], "who comes back misses nothing"


def test_only_what_is_wanted_comes(web, write):
    with listening(web, "value=yes") as (_, event):
        # It follows from its first reading on, so the test writes until a record is seen.
        over = threading.Event()

        def writing():
            while not over.wait(0.1):
                write(b"no", b"yes")

        thread = threading.Thread(target=writing)
        thread.start()
        try:
            data = event()["data"]
            assert ">yes<" in data
            assert ">no<" not in data
        finally:
            over.set()
            thread.join()


def test_what_comes_too_fast_is_skipped_and_said(web, write):
    write(*[b"%d" % number for number in range(300)])
    with listening(web, "at=0:0") as (_, event):
        skipped = event()
        assert skipped["event"] == "skipped"
        assert event()["data"].count("<tr") <= tail._MOST_AT_ONCE


def test_so_many_listen_and_no_more(web, monkeypatch):
    monkeypatch.setattr(tail, "LISTENERS", 2)
    with ExitStack() as stack:
        for _ in range(2):
            answer, _ = stack.enter_context(listening(web))
            assert answer.status == 200
        answer, _ = stack.enter_context(listening(web))
        assert answer.status == 503
