"""What a controller is told of its broker's configuration.

Owns the values that the controller looks at, under Kafka's names; a change is another value of this class.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The broker's configs by which its controller acts; times are ms, but for Kafka's own key in seconds."""

    inter_broker_listener: str = "PLAINTEXT"
    """inter.broker.listener.name: where brokers reach each other."""
    control_plane_listener: str | None = None
    """control.plane.listener.name: where the controller reaches brokers, if that is another one."""
    unclean_leader_election: bool = False
    """unclean.leader.election.enable, for topics that do not say otherwise."""
    delete_topics: bool = True
    """delete.topic.enable."""
    auto_rebalance: bool = True
    """auto.leader.rebalance.enable."""
    imbalance_percentage: int = 10
    """leader.imbalance.per.broker.percentage."""
    imbalance_check_seconds: int = 300
    """leader.imbalance.check.interval.seconds."""
    socket_timeout_ms: int = 30_000
    """controller.socket.timeout.ms: for how long the controller waits for a broker's answer, then it asks again."""

    @property
    def controller_listener(self) -> str:
        """Return the listener at which this controller reaches brokers."""
        return self.control_plane_listener or self.inter_broker_listener
