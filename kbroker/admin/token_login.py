"""Login by a delegation token with kafka-python, which lacks it: SCRAM with one more attribute.

Owns the addition to kafka-python's SCRAM, and every use of its internals for it. Never reads settings.
"""

from __future__ import annotations

from typing import Any

from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.scram import SaslMechanismScram, ScramClient

_WORD = b",tokenauth=true"
_TOKENS: set[str] = set()


def log_in_by_token(token_id: str) -> None:
    """Make clients of this process that log in with this name declare that it is a token's id."""
    _TOKENS.add(token_id)
    for mechanism in ScramClient.MECHANISMS:
        register_sasl_mechanism(mechanism, _Mechanism, overwrite=True)


class _Mechanism(SaslMechanismScram):  # type: ignore[misc]
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        if self.username in _TOKENS:
            self._scram_client = _TokenClient(self.username, config["sasl_plain_password"], self.mechanism)


class _TokenClient(ScramClient):  # type: ignore[misc]
    def first_message(self) -> bytes:
        message: bytes = super().first_message()
        self.auth_message += _WORD
        return message + _WORD
