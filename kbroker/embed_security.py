"""Users and ACLs of an embedded broker: `with Broker(tls=True, users={"alice": "secret"}, acls=[...]) as broker:`.

Owns the resulting settings of the broker and its clients, and the certificate files. Never starts anything.
"""

from __future__ import annotations

import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from kbroker.config.server_config import CLASS, OF_ZOOKEEPER, STANDARD, SUPER_USERS
from kbroker.embed_clients import MECHANISMS, ClientSettings, quoted
from kbroker.security.authorizer.acl_shorthands import (
    RESOURCES,
    AclOptions,
    allowed_and_denied,
    check_principal,
    operation_named,
)
from kbroker.security.authorizer.acls import CLUSTER_NAME, Entry, Pattern, PatternType, ResourceType
from kbroker.security.sasl import plain
from kbroker.security.sasl.add_scram import ScramUser
from kbroker.security.sasl.scram_credential import HASHES, LEAST_ITERATIONS

Names = str | Sequence[str]
_PROTOCOLS: Final = {
    (False, False): "PLAINTEXT",
    (False, True): "SSL",
    (True, False): "SASL_PLAINTEXT",
    (True, True): "SASL_SSL",
}
"""The security protocols by two conditions: whether the broker has users, and whether it uses TLS."""
_LISTENS_BY_SSL: Final = re.compile(r"(?i)(^|[,\s])(?!SASL_)\w+://")
"""Matches a listener name that does not begin with SASL_, so that the listener may use SSL."""
_UNQUOTABLE: Final = re.compile(r"[\x00-\x1f\x7f]|\$\{")


class Acl:
    """ACLs, defined by the options of kafka-acls and `kbroker acl add`.

    The value of an option is one name or several names.

    Example: Acl(allow_principal="User:alice", producer=True, topic="orders"). Raises ValueError if an option is
    missing.
    """

    def __init__(
        self,
        *,
        allow_principal: Names = (),
        deny_principal: Names = (),
        allow_host: Names = (),
        deny_host: Names = (),
        operation: Names = (),
        topic: Names = (),
        group: Names = (),
        cluster: bool = False,
        transactional_id: Names = (),
        delegation_token: Names = (),
        user_principal: Names = (),
        resource_pattern_type: str = "literal",
        producer: bool = False,
        consumer: bool = False,
        idempotent: bool = False,
    ) -> None:
        if resource_pattern_type.lower() not in ("literal", "prefixed"):
            raise ValueError(f"resource_pattern_type is literal or prefixed, not {resource_pattern_type}")
        named = dict(zip(RESOURCES, (topic, group, transactional_id, delegation_token, user_principal), strict=True))
        resources = [(kind, name) for option, kind in RESOURCES.items() for name in _several(named[option])]
        if cluster:
            resources.append((ResourceType.CLUSTER, CLUSTER_NAME))
        allow, deny = (
            [check_principal(each) for each in _several(names)] for names in (allow_principal, deny_principal)
        )
        options = AclOptions(
            tuple(resources),
            PatternType[resource_pattern_type.upper()],
            allowed_and_denied(allow, deny),
            allowed_and_denied(_several(allow_host), _several(deny_host)),
            tuple(operation_named(each) for each in _several(operation)),
            producer,
            consumer,
            idempotent,
        )
        try:
            self.entries = tuple(options.acls())
            """The resulting entries: one for each combination of resource, principal, host and operation."""
        except ValueError as error:
            message = re.sub(r"--([a-z-]+)", lambda option: option[1].replace("-", "_"), str(error))
            raise ValueError(message) from None

    def __repr__(self) -> str:
        return f"<Acl {'; '.join(map(str, self.entries))}>"


def _several(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


class Security:
    """The users, ACLs, settings and certificates that result from the arguments `tls`, `users` and `acls`."""

    def __init__(
        self,
        host: str,
        *,
        tls: bool,
        users: Mapping[str, str] | None,
        acls: Sequence[Acl] | None,
        in_cluster: bool = False,
    ) -> None:
        """Create the settings. Raises ValueError for invalid or contradictory arguments."""
        if users is not None and not isinstance(users, Mapping):
            raise ValueError(f'users is a dict of passwords by name, as {{"alice": "secret"}}, not a {_kind(users)}')
        if acls is not None:
            _check_acls(acls)
        self._host = host
        self._tls = tls
        self._users = dict(users or {})
        self._has_users = users is not None
        self._acls = acls
        self._own: tuple[str, str] | None = None
        self._in_cluster = in_cluster
        for name, password in self._users.items():
            _check_user(name, password)
        if in_cluster and self._has_users:
            self._own = _own_name(self._users), secrets.token_urlsafe()
        if in_cluster and acls is not None and not (tls or self._has_users):
            raise ValueError("acls of a cluster need users or tls, or brokers and clients have the same principal")
        self.certificates: Certificates | None = None
        """The broker's certificates; None without `tls`."""

    @property
    def protocol(self) -> str:
        """The security protocol that clients must use."""
        return _PROTOCOLS[self._has_users, self._tls]

    def settings(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the settings to add to the `given` settings. Generates the certificates."""
        found: dict[str, str] = {}
        if self._tls:
            self.certificates = Certificates(self._host)
            found.update(self.certificates.settings)
            if self._has_users and not _LISTENS_BY_SSL.search(given.get("listeners", "")):
                del found["ssl.client.auth"]  # clients log in with SASL, and need no certificate, as in Kafka
        if self._has_users:
            found["sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
            found["sasl.jaas.config"] = self._plain_login()
        if self._acls is not None:
            found[CLASS] = OF_ZOOKEEPER if self._in_cluster else STANDARD
        if self._acls is not None and self._in_cluster:
            brokers = "User:CN=server" if self._own is None else f"User:{self._own[0]}"
            given = {**given, SUPER_USERS: ";".join(filter(None, (given.get(SUPER_USERS), brokers)))}
        if self._in_cluster and self.protocol != "PLAINTEXT":
            found.update(self._between_brokers(given))
        return {**found, **given}

    def _between_brokers(self, given: Mapping[str, str]) -> dict[str, str]:
        found = {}
        if "inter.broker.listener.name" not in given:
            found["security.inter.broker.protocol"] = self.protocol
        if self._own is not None:
            found["sasl.mechanism.inter.broker.protocol"] = "PLAIN"
        return found

    @property
    def scram_users(self) -> list[ScramUser]:
        """The users that exist from the start."""
        return [
            ScramUser(name, mechanism, LEAST_ITERATIONS, password, None, None)
            for name, password in self._users.items()
            for mechanism in HASHES
        ]

    @property
    def acls(self) -> dict[Pattern, frozenset[Entry]]:
        """The ACLs that exist from the start."""
        found: dict[Pattern, frozenset[Entry]] = {}
        for each in self._acls or ():
            for pattern, entry in each.entries:
                found[pattern] = found.get(pattern, frozenset()) | {entry}
        return found

    def client(
        self, bootstrap_servers: str, user: str | None, mechanism: str, certificate: str | None
    ) -> ClientSettings:
        """Return the settings for a client. Raises ValueError for a client that the broker would not accept."""
        if mechanism not in MECHANISMS:
            raise ValueError(f"mechanism is one of {', '.join(MECHANISMS)}, not {mechanism}")
        if self._has_users and user not in self._users:
            unknown = "" if user is None else f"; {user} is not known"
            raise ValueError(f"say which user: one of {', '.join(self._users)}{unknown}")
        if user is not None and not self._has_users:
            raise ValueError(f"the broker has no users: Broker(users={{{user!r}: ...}})")
        made = self.certificates
        if made is None and certificate is not None:
            raise ValueError("a client certificate needs a broker with tls=True")
        return ClientSettings(
            bootstrap_servers,
            self.protocol,
            user,
            None if user is None else self._users[user],
            mechanism,
            made.ca if made is not None else None,
            made.client(certificate) if made is not None and certificate is not None else None,
        )

    def remove(self) -> None:
        """Remove the certificate files."""
        if self.certificates is not None:
            self.certificates.remove()

    def _plain_login(self) -> str:
        known = dict(self._users)
        options = []
        if self._own is not None:
            name, password = self._own
            known[name] = password
            options += [f'username="{name}"', f'password="{password}"']
        options += [f'"user_{quoted(name)}"="{quoted(password)}"' for name, password in known.items()]
        return f"{plain.MODULE} required {' '.join(options)};"


def _kind(value: object) -> str:
    """Return the name of a value's type. Never return the value, because it may contain a password."""
    return type(value).__name__


def _check_acls(acls: object) -> None:
    right = 'as [Acl(allow_principal="User:alice", producer=True, topic="orders")]'
    if not isinstance(acls, Sequence) or isinstance(acls, str):
        raise ValueError(f"acls is a list of kbroker.Acl, {right}, not a {_kind(acls)}")
    for each in acls:
        if not isinstance(each, Acl):
            raise ValueError(f"acls is a list of kbroker.Acl, {right}; not a {_kind(each)}: {each!r}")


def _check_user(name: object, password: object) -> None:
    if not isinstance(name, str) or not isinstance(password, str):
        raise ValueError(f"user {name!r} needs a str as name and as password, not a {_kind(password)}")
    if not name or not password:
        raise ValueError(f"user {name!r} needs a name and a password")
    if _UNQUOTABLE.search(name + password):
        raise ValueError(f"the name or password of user {name!r} has a control character or a variable, ${{...}}")


def _own_name(taken: Mapping[str, str]) -> str:
    name = "kbroker"
    while name in taken:
        name += "_"
    return name


class Certificates:
    """A new certificate authority, the broker's certificate, and the clients' certificates, in PEM files.

    The files are in a private directory, which is deleted when the broker stops.
    """

    def __init__(self, host: str) -> None:
        from kbroker.security.tls import development  # imported only for TLS

        self._directory = Path(tempfile.mkdtemp(prefix="kbroker-certificates-"))
        authority = development.authority()
        self._sign = partial(development.sign, authority)
        self.ca = str(self._write("ca", authority.certificates_pem()))
        """The path of the authority's certificate, which clients trust."""
        hosts = list(dict.fromkeys(["localhost", "127.0.0.1", *([host] if host else [])]))
        self._server = self._write("server", self._sign("server", hosts).pem())

    def client(self, name: str) -> str:
        """Return the path of a file with a key and a certificate for a client with the principal User:CN=name."""
        return str(self._write(f"client-{name}", self._sign(name).pem()))

    @property
    def settings(self) -> Mapping[str, str]:
        """The broker's settings for these files. Clients may send a certificate; without one they are ANONYMOUS."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca,
            "ssl.client.auth": "requested",
        }

    def remove(self) -> None:
        """Remove the files."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _write(self, name: str, data: bytes) -> Path:
        path = self._directory / f"{name}.pem"
        path.touch(0o600)
        path.write_bytes(data)
        return path
