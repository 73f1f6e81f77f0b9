"""The paths and encodings of delegation tokens: Apache Kafka 3.9's znodes, on a single node and on ZooKeeper.

Owns the encoding and decoding of these paths and values. Never reads or writes them on ZooKeeper, and never stores a
token's HMAC.

    /delegation_token/tokens/ID                {"version": 3, "owner": "User%3Aalice", "tokenRequester": "User%3Aalice",
                                               "renewers": ["User%3Abob"], "issueTimestamp": ms, "maxTimestamp": ms,
                                               "expiryTimestamp": ms, "tokenId": "ID"}; names as in a URL
    /delegation_token/token_changes/token_change_N   ID: the token has changed, or was removed
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from kbroker.controller.store_interface import Change, Delete, MetadataStore, Put
from kbroker.security.principal import Principal
from kbroker.security.sasl.scram_credential import entity_name
from kbroker.security.tokens.known import NO_TOKENS, Tokens
from kbroker.security.tokens.token import TokenInformation, TokenSettings

TOKENS: Final = "/delegation_token/tokens"
CHANGES: Final = "/delegation_token/token_changes"
CHANGE: Final = f"{CHANGES}/token_change_"
_VERSION: Final = 3
_REQUESTER_SINCE: Final = 3


def token_path(token_id: str) -> str:
    """Return the path of a token."""
    return f"{TOKENS}/{token_id}"


def encode_token(info: TokenInformation) -> dict[str, Any]:
    """Return the JSON object of a token."""
    return {
        "version": _VERSION,
        "owner": _text(info.owner),
        "tokenRequester": _text(info.requester),
        "renewers": [_text(each) for each in info.renewers],
        "issueTimestamp": info.issued_ms,
        "maxTimestamp": info.max_ms,
        "expiryTimestamp": info.expires_ms,
        "tokenId": info.token_id,
    }


def decode_token(value: Mapping[str, Any]) -> TokenInformation:
    """Return a token. Raises KeyError, TypeError, AttributeError or ValueError for invalid content."""
    version = value["version"]
    if version not in range(1, _VERSION + 1):
        raise ValueError(f"version {version} of tokens is not known")
    owner = _principal(value["owner"])
    requester = _principal(value["tokenRequester"]) if version >= _REQUESTER_SINCE else owner
    token_id = value["tokenId"]
    if not isinstance(token_id, str):
        raise TypeError("a token's id is a string")
    issued, last, expires = (value[name] for name in ("issueTimestamp", "maxTimestamp", "expiryTimestamp"))
    if any(type(each) is not int for each in (issued, last, expires)):
        raise TypeError("a time is a number")
    renewers = tuple(_principal(each) for each in value["renewers"])
    return TokenInformation(token_id, owner, requester, renewers, issued, last, expires)


def load_tokens(store: MetadataStore, settings: TokenSettings | None) -> Tokens:
    """Return the stored tokens of a single node. Without a secret key, tokens are disabled: return no tokens."""
    if settings is None:
        return NO_TOKENS
    nodes = (store.get(token_path(token_id)) for token_id in store.children(TOKENS))
    return Tokens.of(settings.token(decode_token(node.value)) for node in nodes if node is not None)


def stored_token(token_id: str, info: TokenInformation | None) -> Change:
    """Return a single node's write for a changed or removed token."""
    path = token_path(token_id)
    return Delete(path) if info is None else Put(path, encode_token(info))


def _text(principal: Principal) -> str:
    return entity_name(str(principal))


def _principal(text: str) -> Principal:
    return Principal.parse(unquote(text))
