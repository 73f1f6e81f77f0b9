"""The existing delegation tokens as a value: found by id and by HMAC, and counted by requester.

Owns this value, and the derivation of SCRAM credentials from a token: a client logs in with the token's id and HMAC.
Deriving them takes some ms, so recent credentials are cached. A change copies only about a hundredth of the tokens, so
that its cost hardly grows with their number. Never decides which tokens exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar
from zlib import crc32

from kbroker.security.principal import Principal
from kbroker.security.sasl.scram import TokenLogin
from kbroker.security.sasl.scram_credential import LEAST_ITERATIONS, ScramCredential, from_password, new_salt
from kbroker.security.tokens.token import Token

_PARTS: Final = 256
_T = TypeVar("_T")
_NONE: Final[tuple[Mapping[str, Token], ...]] = ({},) * _PARTS
_NO_IDS: Final[tuple[Mapping[bytes, str], ...]] = ({},) * _PARTS


class Tokens:
    """An immutable set of tokens; `with_token` and `without` return new sets."""

    __slots__ = ("_by_id", "_counts", "_ids", "_size")

    def __init__(
        self,
        by_id: tuple[Mapping[str, Token], ...] = _NONE,
        ids: tuple[Mapping[bytes, str], ...] = _NO_IDS,
        counts: Mapping[Principal, int] | None = None,
        size: int = 0,
    ) -> None:
        self._by_id = by_id
        self._ids = ids
        self._counts = counts or {}
        self._size = size

    @classmethod
    def of(cls, tokens: Iterable[Token]) -> Tokens:
        """Return a set of these tokens; if several tokens have the same id, the last one counts."""
        by_id: list[dict[str, Token]] = [{} for _ in range(_PARTS)]
        for token in tokens:
            by_id[_part(token.info.token_id)][token.info.token_id] = token
        ids: list[dict[bytes, str]] = [{} for _ in range(_PARTS)]
        counts: dict[Principal, int] = {}
        size = 0
        for part in by_id:
            for token_id, token in part.items():
                ids[token.hmac[0]][token.hmac] = token_id
                counts[token.info.requester] = counts.get(token.info.requester, 0) + 1
                size += 1
        return cls(tuple(by_id), tuple(ids), counts, size)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Token]:
        for part in self._by_id:
            yield from part.values()

    def __repr__(self) -> str:
        return f"<{self._size} delegation tokens>"

    def get(self, token_id: str) -> Token | None:
        """Return the token with an id, or None."""
        return self._by_id[_part(token_id)].get(token_id)

    def by_hmac(self, hmac: bytes) -> Token | None:
        """Return the token with an HMAC, or None."""
        token_id = self._ids[hmac[0]].get(hmac) if hmac else None
        return None if token_id is None else self.get(token_id)

    def asked_for_by(self, requester: Principal) -> int:
        """Return the number of a requester's tokens."""
        return self._counts.get(requester, 0)

    def with_token(self, token: Token) -> Tokens:
        """Return these tokens with a further token, which replaces a token of the same id."""
        token_id, requester = token.info.token_id, token.info.requester
        old = self.get(token_id)
        if old is not None and old.info.requester != requester:
            return self.without(token_id).with_token(token)
        part, first, new = _part(token_id), token.hmac[0], old is None
        return Tokens(
            _replaced(self._by_id, part, {**self._by_id[part], token_id: token}),
            _replaced(self._ids, first, {**self._ids[first], token.hmac: token_id}),
            {**self._counts, requester: self._counts.get(requester, 0) + new},
            self._size + new,
        )

    def without(self, token_id: str) -> Tokens:
        """Return these tokens without the token that has this id, if there is such a token."""
        removed = self.get(token_id)
        if removed is None:
            return self
        part, first, requester = _part(token_id), removed.hmac[0], removed.info.requester
        counts = dict(self._counts)
        counts[requester] -= 1
        if not counts[requester]:
            del counts[requester]
        return Tokens(
            _replaced(self._by_id, part, {key: each for key, each in self._by_id[part].items() if key != token_id}),
            _replaced(self._ids, first, {key: each for key, each in self._ids[first].items() if key != removed.hmac}),
            counts,
            self._size - 1,
        )


NO_TOKENS: Final = Tokens()


def _part(token_id: str) -> int:
    return crc32(token_id.encode("utf-8", "surrogatepass")) % _PARTS


def _replaced(parts: tuple[_T, ...], index: int, part: _T) -> tuple[_T, ...]:
    return (*parts[:index], part, *parts[index + 1 :])


REMEMBERED: Final = 1024
"""The maximum number of cached credentials.

The oldest credential beyond it is dropped, and derived again when needed.
"""


class TokenLogins:
    """Finds tokens for SCRAM; `tokens` returns the current tokens."""

    def __init__(self, tokens: Callable[[], Tokens], now_ms: Callable[[], int]) -> None:
        self._tokens = tokens
        self._now_ms = now_ms
        self._made: dict[tuple[bytes, str], ScramCredential] = {}

    def __call__(self, token_id: str, mechanism: str) -> TokenLogin | None:
        """Return the login data of a token; None if the token does not exist, or has expired."""
        token = self._tokens().get(token_id)
        if token is None or token.has_ended(self._now_ms()):
            return None
        key = (token.hmac, mechanism)
        credential = self._made.get(key)
        if credential is None:
            credential = from_password(mechanism, token.password, new_salt(), LEAST_ITERATIONS)
            if len(self._made) >= REMEMBERED:
                del self._made[next(iter(self._made))]
            self._made[key] = credential
        return TokenLogin(credential, token.info.owner.name, token.info.expires_ms)
