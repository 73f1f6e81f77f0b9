"""This broker's login to others, if the listener between brokers requires it.

Owns the choice of mechanism and the name and password in its JAAS options. Never connects: peers/ does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.security.sasl import plain, scram
from kbroker.security.sasl.mechanism import ClientMechanism
from kbroker.security.sasl.scram_credential import HASHES
from kbroker.security.sasl.settings import SASL_PROTOCOLS, ListenerSettings, required_login

KEY: Final = "sasl.mechanism.inter.broker.protocol"
Login = Callable[[], tuple[str, ClientMechanism]]
"""Begins an authentication: the mechanism's name, and this broker's side of it."""


def login_between_brokers(config: BrokerConfig) -> Login | None:
    """Return a function that logs in to other brokers, None if it is not required. Raises ConfigError."""
    listener = config.listeners.inter_broker
    if not config.in_cluster or config.listeners.protocols.get(listener) not in SASL_PROTOCOLS:
        return None
    settings = ListenerSettings(config, listener)
    mechanism = config.get_str(KEY)
    modules = {"PLAIN": plain.MODULE, **dict.fromkeys(HASHES, scram.MODULE)}
    if mechanism not in modules:
        raise ConfigError(f"{KEY} is {mechanism}; brokers of this version log in by {', '.join(modules)}")
    offered = settings.value("sasl.enabled.mechanisms")
    if not isinstance(offered, tuple) or mechanism not in offered:
        raise ConfigError(f"{KEY} is {mechanism}, which listener {listener} does not offer (sasl.enabled.mechanisms)")

    def credentials() -> tuple[str, str]:
        """Return the current credentials, which may change while the broker runs."""
        options = required_login(settings, mechanism, modules[mechanism]).options
        name, password = options.get("username"), options.get("password")
        if not name or not password:
            where = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
            raise ConfigError(f"{where} has no username, or no password, by which brokers log in to each other")
        return name, password

    def begin() -> tuple[str, ClientMechanism]:
        name, password = credentials()
        if mechanism == "PLAIN":
            return mechanism, plain.PlainClient(name, password)
        return mechanism, scram.ScramClient(mechanism, name, password)

    credentials()
    return begin
