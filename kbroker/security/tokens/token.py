"""A delegation token, and the secret key of its HMAC.

Anyone who knows a token's HMAC can log in as its owner. The HMAC is never stored, because it can be computed from the
id and the brokers' common secret. No log and no repr contains it. Times are in ms since 1970.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kbroker.config.server_config import BrokerConfig
from kbroker.security.principal import Principal

SECRET_KEY: Final = "delegation.token.secret.key"
MASTER_KEY: Final = "delegation.token.master.key"
"""The config key of the secret in versions before Apache Kafka 4."""


@dataclass(frozen=True, slots=True)
class TokenInformation:
    """The stored part of a token. It is not sufficient for a login."""

    token_id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    max_ms: int
    """The latest expiry that a renewal can reach."""
    expires_ms: int


@dataclass(frozen=True, slots=True)
class Token:
    """A token with its HMAC, which allows a login."""

    info: TokenInformation
    hmac: bytes = field(repr=False)

    def has_ended(self, now_ms: int) -> bool:
        """Whether the token has expired."""
        return self.info.max_ms < now_ms or self.info.expires_ms < now_ms

    def is_of(self, principals: Iterable[Principal]) -> bool:
        """Whether a principal is the token's owner, its requester or one of its renewers."""
        info = self.info
        some = principals if isinstance(principals, (set, frozenset)) else set(principals)
        return info.owner in some or info.requester in some or not some.isdisjoint(info.renewers)

    @property
    def password(self) -> str:
        """The password for a login with this token: its HMAC in base64."""
        return base64.b64encode(self.hmac).decode()


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """The token settings of a broker that has a secret for tokens."""

    secret: bytes = field(repr=False)
    max_lifetime_ms: int
    expiry_time_ms: int
    check_interval_ms: int

    def token(self, info: TokenInformation) -> Token:
        """Return the token for the stored information."""
        return Token(info, hmac.digest(self.secret, info.token_id.encode(), "sha512"))


def token_settings(config: BrokerConfig) -> TokenSettings | None:
    """Return the token settings of a configuration; None without a secret, because this disables tokens."""
    secret = config.get_optional_str(SECRET_KEY)
    if secret is None and config.in_cluster:
        secret = config.get_optional_str(MASTER_KEY)
    if not secret:
        return None
    return TokenSettings(
        secret.encode(),
        config.get_int("delegation.token.max.lifetime.ms"),
        config.get_int("delegation.token.expiry.time.ms"),
        config.get_int("delegation.token.expiry.check.interval.ms"),
    )
