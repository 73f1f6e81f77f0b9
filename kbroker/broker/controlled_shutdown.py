"""The controlled shutdown of a broker: requests to the controller to move the broker's leaderships to other brokers.

Owns the requests, the retries, and the conditions for giving up. Never stops anything. (Apache Kafka 3.9: KafkaServer,
which retries even without a controller.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kbroker.config.server_config import BrokerConfig
from kbroker.peers.interface import Peers, PeerUnavailable
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.inter_broker import ControlledShutdownRequest, ControlledShutdownResponse

log = logging.getLogger(__name__)

VERSION = 3
_AWAY_SECONDS = 3.0
"""The seconds without ZooKeeper after which a broker gives up: no controller can elect leaders meanwhile.
"""
_ALONE_SECONDS = 5.0
"""The time in seconds for which a controller that shuts down waits for another broker that could lead."""


async def shut_down_controlled(
    config: BrokerConfig,
    peers: Peers,
    broker_epoch: Callable[[], int],
    controller_endpoint: Callable[[], tuple[str, int] | None],
    second_signal: asyncio.Event,
    away: asyncio.Event,
    is_alone: Callable[[], bool],
) -> None:
    """Retry until this broker leads no partition, controlled.shutdown.max.retries is reached, or retries are useless.

    `second_signal` is set to skip the remaining retries. `away` is set while ZooKeeper is unreachable. `is_alone()`
    returns whether this broker is the controller and knows no other broker that could lead.
    """
    asking = asyncio.ensure_future(_ask_until_done(config, peers, broker_epoch, controller_endpoint, is_alone))
    skipped, lost = asyncio.ensure_future(second_signal.wait()), asyncio.ensure_future(_lost(away))
    try:
        await asyncio.wait((asking, skipped, lost), return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            asking.result()
        elif skipped.done():
            log.warning("controlled shutdown: given up, as there was a second signal")
        else:
            log.warning("controlled shutdown: given up, as ZooKeeper is not reachable")
    finally:
        for each in (asking, skipped, lost):
            each.cancel()


async def _lost(away: asyncio.Event) -> None:
    """Return when ZooKeeper is unreachable at two moments that are `_AWAY_SECONDS` apart."""
    while True:
        await away.wait()
        await asyncio.sleep(_AWAY_SECONDS)
        if away.is_set():
            return


async def _ask_until_done(
    config: BrokerConfig,
    peers: Peers,
    broker_epoch: Callable[[], int],
    controller_endpoint: Callable[[], tuple[str, int] | None],
    is_alone: Callable[[], bool],
) -> None:
    if not config.get_bool("controlled.shutdown.enable") or broker_epoch() < 0:
        return
    loop = asyncio.get_running_loop()
    alone_until = loop.time() + _ALONE_SECONDS
    tries = max(config.get_int("controlled.shutdown.max.retries"), 1)
    for left in range(tries - 1, -1, -1):
        why = await _ask(config, peers, broker_epoch(), controller_endpoint())
        if why is None:
            return
        if is_alone() and loop.time() >= alone_until:
            log.warning("controlled shutdown: %s; given up, as there is no other broker", why)
            return
        log.warning("controlled shutdown: %s; %d tries left", why, left)
        if left:
            pause = config.get_int("controlled.shutdown.retry.backoff.ms") / 1000
            await asyncio.sleep(min(pause, max(alone_until - loop.time(), 0)) if is_alone() else pause)


async def _ask(config: BrokerConfig, peers: Peers, epoch: int, endpoint: tuple[str, int] | None) -> str | None:
    """Send one request. Return the reason if it did not succeed."""
    if endpoint is None:
        return "no controller is known"
    peer = peers.peer(*endpoint, client_id=str(config.node_id))
    try:
        answer = await peer.ask(
            ControlledShutdownRequest(broker_id=config.node_id, broker_epoch=epoch),
            VERSION,
            ControlledShutdownResponse,
            config.get_int("controller.socket.timeout.ms"),
        )
    except PeerUnavailable as error:
        return str(error)
    finally:
        peer.close()
    if answer.error_code:
        return ErrorCode(answer.error_code).name
    if answer.remaining_partitions:
        return f"{len(answer.remaining_partitions)} partitions are still led here"
    return None
