"""The ways on which a controller tells brokers: to each one request at a time, in order, until it answers or is gone.

Owns a queue and a task for each live broker. A request that gets no answer is sent again after 100 ms, for as long as
the broker is registered under the epoch for which the channel was made: whoever receives it twice finds nothing new in
it. Never decides what is told, and never reads answers: it hands them over. (ControllerChannelManager.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import Any

from kbroker.controller.cluster import requests
from kbroker.controller.cluster.channel_queue import Leaderships, Metadata, Outgoing, OutgoingQueue
from kbroker.controller.cluster.context import Context, LiveBroker
from kbroker.controller.cluster.fenced_tree import Sleep
from kbroker.peers.interface import Peer, PeerGone, Peers
from kbroker.protocol.messages.from_controller import LeaderAndIsrResponse, StopReplicaResponse, UpdateMetadataResponse

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.1
MOST_METADATA = 2_000
"""Partitions of an UpdateMetadata: about what can be encoded in a turn of the loop."""
Answered = Callable[[int, int, Outgoing, Any], None]
"""Told of an answer: by which broker, of which epoch, to what, and the message."""


class Channels:
    """The ways to all live brokers, of one controller in one term."""

    def __init__(
        self, controller: tuple[int, int], context: Context, peers: Peers, sleep: Sleep, answered: Answered
    ) -> None:
        self._controller = controller
        self._context = context
        self._peers = peers
        self._sleep = sleep
        self._answered = answered
        self._channels: dict[int, _Channel] = {}
        self._closed = False

    def open(self, broker: int, live: LiveBroker, listeners: tuple[str, str], timeout_ms: float) -> None:
        """Begin to tell a broker; `listeners`: where this controller reaches brokers, and where they reach each other.

        A broker without the first cannot be told anything.
        """
        self.close(broker)
        if self._closed:
            return
        endpoint = live.at(listeners[0])
        if endpoint is None:
            log.error("Broker %d has no listener %s at which the controller could reach it", broker, listeners[0])
            return
        number, epoch = self._controller
        peer = self._peers.peer(endpoint.host, endpoint.port, str(number))
        sender = number, epoch, live.epoch
        self._channels[broker] = _Channel(self, broker, sender, listeners[1], peer, timeout_ms)

    def move(self, broker: int, live: LiveBroker, listener: str) -> None:
        """Go on at another address of the same broker, with what waits for it."""
        channel, endpoint = self._channels.get(broker), live.at(listener)
        if channel is not None and endpoint is not None:
            channel.move(self._peers.peer(endpoint.host, endpoint.port, str(self._controller[0])))

    def close(self, broker: int) -> None:
        """Tell a broker nothing any more; what waits for it is forgotten."""
        channel = self._channels.pop(broker, None)
        if channel is not None:
            channel.close()

    def close_all(self) -> None:
        """Tell nobody anything any more, whatever is still put or opened."""
        self._closed = True
        for broker in list(self._channels):
            self.close(broker)

    def has_told(self, broker: int) -> bool:
        """Whether a broker has answered all that it was to be told."""
        channel = self._channels.get(broker)
        return channel is None or channel.is_idle

    def put(self, broker: int, item: Outgoing) -> None:
        """Tell a broker something, after all that it has still to be told."""
        channel = self._channels.get(broker)
        if channel is not None:
            channel.put(item)

    async def ask(self, channel: _Channel, item: Outgoing) -> None:
        """Send an item until it is answered."""
        async for request, version, answer in self._messages(channel, item):
            while True:
                try:
                    response = await channel.peer.ask(request, version, answer, channel.timeout_ms)
                except PeerGone as gone:
                    log.info("The controller could not tell broker %d, and tries again: %s", channel.broker, gone)
                    await self._sleep(_RETRY_SECONDS)
                else:
                    self._answered(channel.broker, channel.sender[2], item, response)
                    break

    async def _messages(self, channel: _Channel, item: Outgoing) -> AsyncIterator[tuple[Any, int, Any]]:
        """Yield an item's requests: one, but for metadata of very many partitions.

        LeaderAndIsr stays whole: a broker of Apache Kafka takes its first one for all that it hosts, and writes its
        checkpoint of high watermarks then.
        """
        sender, context = channel.sender, self._context
        if isinstance(item, Leaderships):
            told = await requests.leader_and_isr_request(sender, context, channel.listener, item.parts)
            yield told, requests.LEADER_AND_ISR, LeaderAndIsrResponse
        elif isinstance(item, Metadata):
            parts = iter(item.parts.items())
            for _ in range(max(1, -(-len(item.parts) // MOST_METADATA))):
                some = dict(islice(parts, MOST_METADATA))
                update = await requests.update_metadata_request(sender, context, item.live, some)
                yield update, requests.UPDATE_METADATA, UpdateMetadataResponse
        else:
            stop = await requests.stop_replica_request(sender, item.parts)
            yield stop, requests.STOP_REPLICA, StopReplicaResponse


class _Channel:
    """The way to one broker, under one epoch of it."""

    def __init__(
        self,
        channels: Channels,
        broker: int,
        sender: tuple[int, int, int],
        listener: str,
        peer: Peer,
        timeout_ms: float,
    ) -> None:
        self.broker = broker
        self.sender = sender
        self.listener = listener
        self.peer = peer
        self.timeout_ms = timeout_ms
        self._channels = channels
        self._queue = OutgoingQueue()
        self._filled = asyncio.Event()
        self.is_idle = False
        self._task = asyncio.ensure_future(self._run())

    def put(self, item: Outgoing) -> None:
        self._queue.put(item)
        self.is_idle = False
        self._filled.set()

    def move(self, peer: Peer) -> None:
        old, self.peer = self.peer, peer
        old.close()  # what is on its way there is asked again

    def close(self) -> None:
        self._task.cancel()
        self.peer.close()

    async def _run(self) -> None:
        while True:
            item = self._queue.take()
            if item is None:
                self._filled.clear()
                self.is_idle = True
                await self._filled.wait()
                continue
            try:
                await self._channels.ask(self, item)
            except Exception:
                log.exception("The controller could not tell broker %d something, and passes over it", self.broker)
