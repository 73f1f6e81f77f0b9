"""The public keys for verifying tokens: a JSON Web Key Set (RFC 7517) in a file or at a URL.

Owns the times at which the set is read again: after its refresh time, after a failure, and when a token names an
unknown key. Any client can send such a token, so these tokens cause at most one read every MISS_PAUSE_MS. A thread
reads the set; callers get the currently known keys.
"""

from __future__ import annotations

import json
import logging
import threading
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any, Final

from kbroker.security.principal import printable
from kbroker.security.sasl.signed_tokens import ALGORITHMS, Key

log = logging.getLogger(__name__)

MISS_PAUSE_MS: Final = 10_000
_MOST_BYTES: Final = 1 << 20
_MOST_KEYS: Final = 1000
_SECONDS: Final = 10.0
Read = Callable[[], bytes]


class BadKeySet(Exception):  # noqa: N818 - describes the content
    """The content is not a key set."""


class KeySet:
    """The keys of one source. `read` may block, and raises OSError or BadKeySet."""

    def __init__(
        self,
        read: Read,
        monotonic_ms: Callable[[], float],
        refresh_ms: int,
        retry_ms: int,
        max_retry_ms: int,
        start: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """Set the source of the keys; `start` runs a function without blocking, by default in a thread."""
        self._read = read
        self._monotonic_ms = monotonic_ms
        self._refresh_ms = refresh_ms
        self._retry_ms = retry_ms
        self._max_retry_ms = max_retry_ms
        self._start = start or _in_thread
        self._keys: Sequence[Key] = ()
        self._next_ms = 0.0
        self._failures = 0
        self._missed_ms: float | None = None
        self._reading = False

    def known(self) -> Sequence[Key]:
        """Return the known keys, and start a read if they are old."""
        if self._monotonic_ms() >= self._next_ms:
            self.refresh()
        return self._keys

    def miss(self, key_id: str) -> None:
        """Start a read because of an unknown key, but at most one such read every MISS_PAUSE_MS."""
        now = self._monotonic_ms()
        if self._missed_ms is None or now - self._missed_ms >= MISS_PAUSE_MS:
            self._missed_ms = now
            log.debug("a token names the key %r, which is not known: keys are read again", key_id[:100])
            self.refresh()

    def refresh(self) -> None:
        """If no read is running, start a read without blocking the caller."""
        if not self._reading:
            self._reading = True
            try:
                self._start(self.read_now)
            except RuntimeError as error:  # no thread is available
                self._reading = False
                self._put_off(error)

    def read_now(self) -> None:
        """Read the set and use its keys; keep the known keys after a failure."""
        try:
            self._keys = parse_keys(self._read())
        except Exception as error:  # noqa: BLE001 - a server may send anything: it is retried after a pause
            self._put_off(error)
        else:
            self._failures = 0
            self._next_ms = self._monotonic_ms() + self._refresh_ms
        finally:
            self._reading = False

    def _put_off(self, error: Exception) -> None:
        self._failures += 1
        pause = min(self._retry_ms * 2 ** min(self._failures - 1, 30), self._max_retry_ms)
        self._next_ms = self._monotonic_ms() + pause
        reason = str(error) if isinstance(error, (OSError, BadKeySet)) else f"{type(error).__name__}: {error}"
        log.warning("the keys that tokens are signed by could not be read: %s", printable(reason[:500]))


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="jwks", daemon=True).start()


def reader(url: str) -> Read:
    """Return a reader of a URL of file:, http: or https:. Raises ValueError for any other URL."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        path = urllib.parse.unquote(parts.path)
        return lambda: _from_file(path)
    if parts.scheme in ("http", "https") and parts.hostname:
        return lambda: _from_web(url)
    raise ValueError("not a URL of file:, http: or https:")


def _from_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return _bounded(file.read(_MOST_BYTES + 1))


def _from_web(url: str) -> bytes:
    import urllib.request  # imported only if the keys have a URL, because the import takes some ms

    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            return _bounded(answer.read(_MOST_BYTES + 1))
    except ValueError as error:  # raised if the response is not HTTP
        raise BadKeySet(str(error)) from None


def _bounded(data: bytes) -> bytes:
    if len(data) > _MOST_BYTES:
        raise BadKeySet(f"more than {_MOST_BYTES} bytes")
    return data


def parse_keys(data: bytes) -> list[Key]:
    """Parse a key set. Return its signature keys, without keys of unknown kinds. Raises BadKeySet."""
    try:
        listed = json.loads(data)["keys"]
        if not isinstance(listed, list):
            raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadKeySet("it is no JSON Web Key Set") from None
    return [key for each in listed[:_MOST_KEYS] if isinstance(each, dict) and (key := _key(each)) is not None]


def _key(value: dict[str, Any]) -> Key | None:
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

    makers: dict[str, Callable[[dict[str, Any]], Any]] = {
        "RSA": RSAAlgorithm.from_jwk,
        "EC": ECAlgorithm.from_jwk,
        "OKP": OKPAlgorithm.from_jwk,
    }
    kind, key_id, algorithm = str(value.get("kty")), value.get("kid"), value.get("alg")
    if kind not in ALGORITHMS or value.get("use", "sig") != "sig":
        return None
    public_parts = {name: each for name, each in value.items() if name not in ("d", "p", "q", "dp", "dq", "qi", "oth")}
    try:
        public = makers[kind](public_parts)
    except Exception as error:  # noqa: BLE001 - of one key; the others are still valid
        log.warning("one of the keys with which tokens are signed cannot be read: %s", type(error).__name__)
        return None
    return Key(
        key_id if isinstance(key_id, str) else None, kind, algorithm if isinstance(algorithm, str) else None, public
    )
