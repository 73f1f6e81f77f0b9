"""Both brokers with listeners over TLS: the same stores, protocols and requirements on either side.

Owns the listeners' names and how each side is configured with them. Never speaks TLS.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from compat_tests.harness.brokers import ApacheKafka, BrokerProcess, KBroker, free_port

LISTENERS: Final[Mapping[str, Mapping[str, str]]] = {
    "NONE": {"ssl.client.auth": "none"},
    "REQUESTED": {"ssl.client.auth": "requested"},
    "REQUIRED": {"ssl.client.auth": "required"},
    "OLDER": {"ssl.enabled.protocols": "TLSv1.2"},
    "NEWER": {"ssl.enabled.protocols": "TLSv1.3"},
    "CIPHER": {
        "ssl.enabled.protocols": "TLSv1.2",
        "ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    },
}
"""The settings of each listener over TLS; there is also a PLAINTEXT listener."""


def tls_settings(stores: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that both sides have in common."""
    own = {
        f"listener.name.{name.lower()}.{key}": text for name, each in LISTENERS.items() for key, text in each.items()
    }
    return {**stores, **own}


PROTOCOLS: Final[Mapping[str, str]] = dict.fromkeys(LISTENERS, "SSL")


def protocol_map(protocols: Mapping[str, str]) -> str:
    spoken = [f"{name}:{protocol}" for name, protocol in protocols.items()]
    return ",".join(["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", *spoken])


class TlsApacheKafka(ApacheKafka):
    """Apache Kafka with these listeners, or others, given as name -> protocol."""

    def __init__(
        self, libs: Path, directory: Path, settings: Mapping[str, str], protocols: Mapping[str, str] = PROTOCOLS
    ) -> None:
        super().__init__(libs, directory, settings)
        self.protocols = protocols
        self.ports = {name: free_port() for name in protocols}

    def _command(self) -> list[str]:
        command = super()._command()
        properties = self.directory / "server.properties"
        lines = properties.read_text().splitlines()
        told = dict(line.split("=", 1) for line in lines)
        more = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        told["listeners"] += f",{more}"
        told["advertised.listeners"] += f",{more}"
        told["listener.security.protocol.map"] = protocol_map(self.protocols)
        properties.write_text("".join(f"{key}={text}\n" for key, text in told.items()))
        return command


class TlsKBroker(KBroker):
    """Kbroker with these listeners, or others, given as name -> protocol."""

    def __init__(self, directory: Path, settings: Mapping[str, str], protocols: Mapping[str, str] = PROTOCOLS) -> None:
        super().__init__(directory, settings)
        self.protocols = protocols
        self.ports: dict[str, int] = {}

    def _command(self) -> list[str]:
        command = super()._command()
        at = command.index("--listen")  # a PLAINTEXT listener, before all others
        del command[at : at + 2]
        names = ["PLAINTEXT", *self.protocols]
        command += ["--set", f"listener.security.protocol.map={protocol_map(self.protocols)}"]
        return [*command, "--set", "listeners=" + ",".join(f"{name}://127.0.0.1:0" for name in names)]

    def _ready(self) -> bool:
        if not super()._ready():
            return False
        first, *others = self.bootstrap.split(",")
        self.bootstrap = first
        self.ports = {name: int(each.rpartition(":")[2]) for name, each in zip(self.protocols, others, strict=True)}
        return True


def port_of(broker: BrokerProcess, listener: str) -> int:
    """Return the port of a TLS listener; the PLAINTEXT listener is `bootstrap`."""
    assert isinstance(broker, TlsApacheKafka | TlsKBroker)
    return int(broker.bootstrap.rpartition(":")[2]) if listener == "PLAINTEXT" else broker.ports[listener]
