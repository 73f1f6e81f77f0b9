"""The controller's part of its broker's configuration.

Owns the values that the controller reads, under Kafka's names; a change is a new value of this class.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The broker's configs that the controller uses; times are ms, except Kafka's own key in seconds."""

    inter_broker_listener: str = "PLAINTEXT"
    """inter.broker.listener.name: the listener between brokers."""
    control_plane_listener: str | None = None
    """control.plane.listener.name: the listener for the controller's requests, if it is a separate one."""
    unclean_leader_election: bool = False
    """unclean.leader.election.enable, for topics without their own setting."""
    delete_topics: bool = True
    """delete.topic.enable."""
    auto_rebalance: bool = True
    """auto.leader.rebalance.enable."""
    imbalance_percentage: int = 10
    """leader.imbalance.per.broker.percentage."""
    imbalance_check_seconds: int = 300
    """leader.imbalance.check.interval.seconds."""
    socket_timeout_ms: int = 30_000
    """controller.socket.timeout.ms: how long the controller waits for a broker's response before it retries."""

    @property
    def controller_listener(self) -> str:
        """The listener for this controller's requests to brokers."""
        return self.control_plane_listener or self.inter_broker_listener
