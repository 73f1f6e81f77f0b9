"""The channels from a controller to brokers.

Each channel sends one request at a time, and retries it until the broker answers. Owns a queue and a task for each live
broker. If a request gets no response, its channel sends it again after 100 ms, as long as the broker is registered
under the channel's epoch. If a broker receives a request twice, the second request has no further effect. Never chooses
the requests, and never interprets responses: it passes them on. (ControllerChannelManager.)
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
from kbroker.long_work import in_slices
from kbroker.peers.interface import Peer, Peers, PeerUnavailable
from kbroker.protocol.messages.inter_broker import LeaderAndIsrResponse, StopReplicaResponse, UpdateMetadataResponse

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.1
MOST_METADATA = 2_000
"""The maximum number of partitions in an UpdateMetadata.

Encoding them takes about one turn of the event loop.
"""
Answered = Callable[[int, int, Outgoing, Any], None]
"""A function that is called for each response, with the broker, the broker's epoch, the request, and the message."""


class Channels:
    """The channels to all live brokers, of one controller in one term."""

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
        """Open the channel to a broker. `listeners` are the controller's listener and the inter-broker listener.

        A broker without the first listener gets no requests.
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
        """Send the broker's pending and later requests to its new address."""
        channel, endpoint = self._channels.get(broker), live.at(listener)
        if channel is not None and endpoint is not None:
            channel.move(self._peers.peer(endpoint.host, endpoint.port, str(self._controller[0])))

    def close(self, broker: int) -> None:
        """Stop sending to a broker, and drop its pending requests."""
        channel = self._channels.pop(broker, None)
        if channel is not None:
            channel.close()

    def close_all(self) -> None:
        """Stop sending to all brokers; later calls of `open` have no effect."""
        self._closed = True
        for broker in list(self._channels):
            self.close(broker)

    def has_sent_all(self, broker: int) -> bool:
        """Whether a broker has answered all its requests."""
        channel = self._channels.get(broker)
        return channel is None or channel.is_idle

    def put(self, broker: int, item: Outgoing) -> None:
        """Send a request to a broker after all its pending requests."""
        channel = self._channels.get(broker)
        if channel is not None:
            channel.put(item)

    async def ask(self, channel: _Channel, item: Outgoing) -> None:
        """Send a request until it is answered."""
        async for request, version, answer in self._messages(channel, item):
            while True:
                try:
                    response = await channel.peer.ask(request, version, answer, channel.timeout_ms)
                except PeerUnavailable as error:
                    log.info("The controller could not notify broker %d, and retries: %s", channel.broker, error)
                    await self._sleep(_RETRY_SECONDS)
                else:
                    self._answered(channel.broker, channel.sender[2], item, response)
                    break

    async def _messages(self, channel: _Channel, item: Outgoing) -> AsyncIterator[tuple[Any, int, Any]]:
        """Yield the messages of a request: one, or several if it has the metadata of very many partitions.

        LeaderAndIsr is never split: Apache Kafka's broker expects all its replicas in the first LeaderAndIsr, and then
        writes its checkpoint of high watermarks.
        """
        sender, context = channel.sender, self._context
        if isinstance(item, Leaderships):
            request = await requests.leader_and_isr_request(sender, context, channel.listener, item.parts)
            yield request, requests.LEADER_AND_ISR, LeaderAndIsrResponse
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
    """The channel to one broker, under one of its epochs."""

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
        old.close()  # this fails the request in flight, which the channel then retries

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
                await in_slices(self._channels.ask(self, item))
            except Exception:
                log.exception("The controller could not notify broker %d, and skips the request", self.broker)
