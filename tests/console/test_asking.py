"""Requests that the cluster does not answer, when the console ends."""

from __future__ import annotations

import asyncio
import threading

import pytest
from kafka.errors import KafkaConnectionError, UnknownBrokerIdError

from kbroker.admin.connection import Connection
from kbroker.console.asking import Busy, Cluster


def test_nobody_waits_for_the_cluster_when_the_console_ends():
    cluster = Cluster(Connection("127.0.0.1:1", {}), threads=1)
    asked, over = threading.Event(), threading.Event()

    def hang():
        asked.set()
        assert over.wait(20)

    async def ended():
        questions = [asyncio.ensure_future(cluster.work(hang)) for _ in range(3)]
        await asyncio.to_thread(asked.wait, 20)
        cluster.give_up()
        for each in questions:
            with pytest.raises(Busy, match="is stopping"):
                await asyncio.wait_for(each, 5)
        with pytest.raises(Busy, match="is stopping"):
            await cluster.work(hang)

    try:
        asyncio.run(ended())
    finally:
        over.set()
        cluster.close()


@pytest.mark.parametrize("error", [KafkaConnectionError("111 ECONNREFUSED"), UnknownBrokerIdError(2)])
def test_a_kept_client_whose_broker_is_gone_makes_room_for_another(error, monkeypatch):
    class Client:
        closed = False

        def close(self):
            self.closed = True

    def one(_connection):
        made.append(Client())
        return made[-1]

    def asked(client):
        failure = next(failures)
        if failure is not None:
            raise failure
        return made.index(client)

    made, failures = [], iter([None, error, None, None])
    monkeypatch.setattr(Connection, "open_admin", one)
    cluster = Cluster(Connection("127.0.0.1:1", {}), threads=1)
    try:
        assert [asyncio.run(cluster.ask(asked)) for _ in range(3)] == [0, 1, 1]
    finally:
        cluster.close()
    assert [each.closed for each in made] == [True, True]
