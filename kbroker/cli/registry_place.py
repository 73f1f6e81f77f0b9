"""The schema registry beside a broker of `kbroker start`.

Owns its options, everything that must exist before the broker starts, and the address for other brokers of a cluster.
The server's module is loaded only on demand.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeGuard
from urllib.parse import urlsplit

import click

from kbroker.broker.base_node import Node
from kbroker.cli.output import Decorator, with_options
from kbroker.config.listeners import own_host_name
from kbroker.config.model import ConfigError
from kbroker.local_http import REGISTRY, joined, parse, url_of

if TYPE_CHECKING:
    from kbroker.broker.cluster_node import ClusterNode
    from kbroker.registry_api.server import RegistryServer

BASIC, NONE = "BASIC", "NONE"
"""The methods of authentication at the registry, under Confluent's names."""
_EVERY_4, _LOOPBACK_4 = "0.0.0.0", "127.0.0.1"
_IN_THE_CLEAR: Final = (
    "passwords would cross the network in the clear; --registry-tls-cert and --registry-tls-key encrypt them, "
    "--registry-public (KBROKER_REGISTRY_PUBLIC=true in a container) allows it without"
)
_FILE: Final = click.Path(dir_okay=False)
log = logging.getLogger(__name__)


def registry_options(*, in_container: bool = False) -> Decorator:
    """Add the options of --registry, except --registry-public."""

    def variable(name: str) -> str | None:
        return f"KBROKER_REGISTRY_{name}" if in_container else None

    return with_options(
        click.option(
            "--registry-advertised",
            metavar="HOST:PORT",
            envvar=variable("ADVERTISED"),
            help="In a cluster: the address for other brokers, if it differs from --registry.",
        ),
        click.option(
            "--registry-tls-cert",
            type=_FILE,
            metavar="FILE",
            envvar=variable("TLS_CERT"),
            help="Serve --registry over HTTPS with the certificate chain in this PEM file.",
        ),
        click.option(
            "--registry-tls-key",
            type=_FILE,
            metavar="FILE",
            envvar=variable("TLS_KEY"),
            help="The PEM file with the key of --registry-tls-cert.",
        ),
        click.option(
            "--registry-ca",
            type=_FILE,
            metavar="FILE",
            envvar=variable("CA"),
            help="The PEM file of the authority that signed the certificates of this and the other registries.",
        ),
        click.option(
            "--registry-auth",
            type=click.Choice([BASIC, NONE], case_sensitive=False),
            default=NONE,
            envvar=variable("AUTH"),
            help="With BASIC, --registry requires the name and password of a SCRAM user of the broker.",
        ),
    )


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """The settings with which a registry is served; the files are already checked."""

    advertised: tuple[str, int] | None = None
    tls: tuple[str, str] | None = None
    ca: str | None = None
    asks_for_login: bool = False
    given: str | None = None
    """The name of one option that the user has given, or None."""

    @classmethod
    def of(
        cls,
        registry_advertised: str | None = None,
        registry_tls_cert: str | None = None,
        registry_tls_key: str | None = None,
        registry_ca: str | None = None,
        registry_auth: str | None = None,
    ) -> RegistryOptions:
        """Create the settings from the values of the options. Raises ConfigError and NoPlace."""
        asks_for_login = (registry_auth or NONE).upper() == BASIC
        named = {
            "--registry-advertised": registry_advertised,
            "--registry-tls-cert": registry_tls_cert,
            "--registry-tls-key": registry_tls_key,
            "--registry-ca": registry_ca,
            "--registry-auth": registry_auth if asks_for_login else None,
        }
        at = None
        if registry_advertised:
            at = parse(registry_advertised, "--registry-advertised", REGISTRY.default)
        tls = tls_files(registry_tls_cert, registry_tls_key, "--registry-tls-cert", "--registry-tls-key")
        if registry_ca:
            try:
                ssl.create_default_context(cafile=registry_ca)
            except OSError as error:  # an ssl error is an OSError, too
                raise ConfigError(f"--registry-ca {registry_ca}: {_reason(error)}") from None
        given = next((name for name, value in named.items() if value), None)
        return cls(at, tls, registry_ca or None, asks_for_login, given)

    def listening(self, host: str, port: int, *, public: bool) -> socket.socket:
        """Return a listening socket. Raises NoPlace if other machines could connect without a password or without TLS.

        With `public`, both are allowed.
        """
        is_safe = self.asks_for_login and self.tls is not None
        return REGISTRY.listening(
            host,
            port,
            "--registry",
            public=public or is_safe,
            not_public=_IN_THE_CLEAR if self.asks_for_login else None,
        )


def tls_files(cert: str | None, key: str | None, cert_option: str, key_option: str) -> tuple[str, str] | None:
    """Return the files of a certificate and its key after checking that both can be read. Raises ConfigError."""
    if not cert and not key:
        return None
    if not cert or not key:
        raise ConfigError(f"{cert_option} and {key_option} go together")
    try:
        # An encrypted key is refused, because OpenSSL would ask for its password on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:  # an ssl error is an OSError, too
        raise ConfigError(f"{cert_option} {cert}, {key_option} {key}: {_reason(error)}") from None
    return cert, key


def _reason(error: Exception) -> str:
    return ((error.strerror if isinstance(error, OSError) else None) or str(error)).lower()


@dataclass(frozen=True, slots=True)
class RegistryPlace:
    """The socket at which the schema registry is served, and its options."""

    socket: socket.socket
    options: RegistryOptions = RegistryOptions()

    @property
    def _scheme(self) -> str:
        return "http" if self.options.tls is None else "https"

    @property
    def ca(self) -> str | None:
        """The file of the CA that signs registries' certificates."""
        return self.options.ca

    @property
    def url(self) -> str:
        """The server's URL, like "http://127.0.0.1:8081"."""
        return url_of(self.socket, self._scheme)

    @property
    def url_for_others(self) -> str:
        """The server's URL for other brokers."""
        if self.options.advertised is not None:
            return f"{self._scheme}://{joined(*self.options.advertised)}"
        host, port = self.socket.getsockname()[:2]
        host = own_host_name() if ipaddress.ip_address(host).is_unspecified else host
        return f"{self._scheme}://{joined(host, port)}"

    @property
    def url_for_console(self) -> str | None:
        """The server's URL for the console of the same broker.

        With TLS, the URL's host is the name in the server's certificate. None if the registry requires a login, because
        this console has no login for it.
        """
        if self.options.asks_for_login:
            return None
        return (
            self.url.replace(f"//{_EVERY_4}:", f"//{_LOOPBACK_4}:") if self.options.tls is None else self.url_for_others
        )

    @contextlib.asynccontextmanager
    async def served(self, node: Node) -> AsyncIterator[RegistryServer]:
        """Serve as long as the broker serves; in a cluster, publish the address to other brokers."""
        from kbroker.registry_api.server import of_broker

        options = self.options
        server = of_broker(
            node,
            asyncio.get_running_loop(),
            self.socket,
            asks_for_login=options.asks_for_login,
            tls=options.tls,
            ca=options.ca,
        ).start()
        if _is_in_cluster(node):
            url = self.url_for_others
            if _is_loopback(urlsplit(url).hostname) and not all(_is_loopback(each.host) for each in node.addresses):
                log.warning(
                    "brokers on other machines cannot reach the schema registry at %s, not even while this broker "
                    "leads _schemas: give --registry HOST:PORT, or --registry-advertised",
                    url,
                )
            node.publish_registry(url)
        try:
            yield server
        finally:  # in a thread, because running requests may wait for this loop
            await asyncio.to_thread(server.stop)


def _is_loopback(host: str | None) -> bool:
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def _is_in_cluster(node: Node) -> TypeGuard[ClusterNode]:
    return node.config.in_cluster
