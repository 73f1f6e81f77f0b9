"""How a broker of a cluster leaves: it asks the controller to give its leadership to others first.

Owns the questions and how often they are asked. Never stops anything. (Apache Kafka 3.9: KafkaServer.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kbroker.config.server_config import BrokerConfig
from kbroker.peers.interface import PeerGone, Peers
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse

log = logging.getLogger(__name__)

VERSION = 3


async def shut_down_controlled(
    config: BrokerConfig,
    peers: Peers,
    broker_epoch: Callable[[], int],
    controller_endpoint: Callable[[], tuple[str, int] | None],
    hurried: asyncio.Event,
) -> None:
    """Ask until nothing is led here any more, controlled.shutdown.max.retries are over, or somebody is in a hurry."""
    asking = asyncio.ensure_future(_ask_until_done(config, peers, broker_epoch, controller_endpoint))
    waiting = asyncio.ensure_future(hurried.wait())
    try:
        await asyncio.wait((asking, waiting), return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            asking.result()
        else:
            log.warning("controlled shutdown: given up, as there was a second signal")
    finally:
        asking.cancel()
        waiting.cancel()


async def _ask_until_done(
    config: BrokerConfig,
    peers: Peers,
    broker_epoch: Callable[[], int],
    controller_endpoint: Callable[[], tuple[str, int] | None],
) -> None:
    if not config.get_bool("controlled.shutdown.enable") or broker_epoch() < 0:
        return
    tries = max(config.get_int("controlled.shutdown.max.retries"), 1)
    for left in range(tries - 1, -1, -1):
        why = await _ask(config, peers, broker_epoch(), controller_endpoint())
        if why is None:
            return
        log.warning("controlled shutdown: %s; %d tries left", why, left)
        if left:
            await asyncio.sleep(config.get_int("controlled.shutdown.retry.backoff.ms") / 1000)


async def _ask(config: BrokerConfig, peers: Peers, epoch: int, endpoint: tuple[str, int] | None) -> str | None:
    """Ask once; return what hinders."""
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
    except PeerGone as error:
        return str(error)
    finally:
        peer.close()
    if answer.error_code:
        return ErrorCode(answer.error_code).name
    if answer.remaining_partitions:
        return f"{len(answer.remaining_partitions)} partitions are still led here"
    return None
