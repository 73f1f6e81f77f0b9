"""Encrypts the passwords among a broker's dynamic configs in a cluster on ZooKeeper.

Owns Apache Kafka 3.9's format, with the keys `password.encoder.*`: a text of name:value pairs with everything needed to
decrypt it except the secret. Never stores anything. Error messages and representations of objects contain no password.

    keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,keyLength:128,iterations:4096,
    salt:(base64),initializationVector:(base64),encryptedPassword:(base64),passwordLength:8
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from kbroker.config.model import ConfigError

DEFAULT_KEY_FACTORY: Final = "PBKDF2WithHmacSHA512"
CBC: Final = "AES/CBC/PKCS5Padding"
GCM: Final = "AES/GCM/NoPadding"
_FACTORY: Final = re.compile(r"PBKDF2WithHmacSHA(1|224|256|384|512)")
_KEY_LENGTHS: Final = (128, 192, 256)
_SALT_BYTES: Final = 256
_TAG_BITS: Final = 128
_GCM_IV_BYTES: Final = 12
_BLOCK_BITS: Final = 128
_MOST_KNOWN: Final = 1_000
"""The maximum number of decrypted passwords that are cached. Each change of any config reads all configs again."""
_MOST_ITERATIONS: Final = 10_000_000
"""The maximum number of iterations of a stored password.

A password with more iterations counts as unreadable. The number also limits the broker's own
`password.encoder.iterations` (Kafka's default: 4,096). With the maximum number, the decryption of a password takes
seconds, but happens only once.
"""


class Undecodable(Exception):  # noqa: N818 - describes the text
    """Raised if a stored password cannot be decrypted with this secret, or with any secret."""


class PasswordEncoder:
    """Encrypts with its own settings. Decrypts texts of the same secret with any settings."""

    def __init__(self, secret: str, key_factory: str | None, cipher: str, key_length: int, iterations: int) -> None:
        """Create the encoder. Raises ConfigError for unsupported settings."""
        self._secret = secret
        self._key_factory = key_factory or DEFAULT_KEY_FACTORY
        self._cipher = cipher
        self._key_length = key_length
        self._iterations = iterations
        self._known: dict[str, str] = {}
        if _FACTORY.fullmatch(self._key_factory) is None:
            raise ConfigError(
                f"password.encoder.keyfactory.algorithm is {self._key_factory}; it is PBKDF2WithHmacSHA..."
            )
        if cipher not in (CBC, GCM):
            raise ConfigError(f"password.encoder.cipher.algorithm is {cipher}; this version has {CBC} and {GCM}")
        if key_length not in _KEY_LENGTHS:
            raise ConfigError(f"password.encoder.key.length is {key_length}; a key of AES has 128, 192 or 256 bits")
        # Use one key for all encryptions of this process: deriving a key takes some ms, and clients may set many
        # passwords.
        self._salt = os.urandom(_SALT_BYTES)
        self._key = _key(secret, self._key_factory, self._salt, iterations, key_length)

    def encode(self, password: str) -> str:
        """Return the text to store."""
        parts = {
            "keyFactoryAlgorithm": self._key_factory,
            "cipherAlgorithm": self._cipher,
            "keyLength": str(self._key_length),
            "salt": _base64(self._salt),
            "iterations": str(self._iterations),
            "passwordLength": str(_java_length(password)),
            **_encrypted(self._cipher, self._key, password.encode()),
        }
        text = ",".join(f"{name}:{value}" for name, value in parts.items())
        self._remember(text, password)
        return text

    def decode(self, text: str) -> str:
        """Return the password in a stored text. Raises Undecodable."""
        if text not in self._known:
            try:
                self._remember(text, self._decoded(text))
            except (KeyError, ValueError):
                raise Undecodable("the stored password cannot be decrypted with password.encoder.secret") from None
        return self._known[text]

    def _remember(self, text: str, password: str) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[text] = password

    def _decoded(self, text: str) -> str:
        parts = dict(each.strip().rpartition(":")[::2] for each in text.split(","))
        factory, iterations = parts.get("keyFactoryAlgorithm", DEFAULT_KEY_FACTORY), int(parts["iterations"])
        if _FACTORY.fullmatch(factory) is None or not 0 < iterations <= _MOST_ITERATIONS:
            raise ValueError("the key factory or the number of iterations is not supported")
        length = int(parts["keyLength"])
        if length not in _KEY_LENGTHS:
            raise ValueError("AES has no such keys")
        key = _key(self._secret, factory, _bytes(parts["salt"]), iterations, length)
        password = _decrypted(parts, key).decode("utf-8")
        if _java_length(password) != int(parts["passwordLength"]):
            raise ValueError("its length is another")
        return password


@lru_cache(256)
def _key(secret: str, factory: str, salt: bytes, iterations: int, length: int) -> bytes:
    digest = "sha" + factory.removeprefix("PBKDF2WithHmacSHA")
    return hashlib.pbkdf2_hmac(digest, secret.encode(), salt, iterations, length // 8)


def _encrypted(cipher: str, key: bytes, data: bytes) -> dict[str, str]:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.padding import PKCS7

    if cipher == GCM:
        vector = os.urandom(_GCM_IV_BYTES)
        done = AESGCM(key).encrypt(vector, data, None)
        more = {"authenticationTagLength": str(_TAG_BITS)}
    else:
        vector = os.urandom(_BLOCK_BITS // 8)
        padder, encryptor = PKCS7(_BLOCK_BITS).padder(), Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
        done = encryptor.update(padder.update(data) + padder.finalize()) + encryptor.finalize()
        more = {}
    return {"encryptedPassword": _base64(done), "initializationVector": _base64(vector), **more}


def _decrypted(parts: Mapping[str, str], key: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.padding import PKCS7

    data, vector = _bytes(parts["encryptedPassword"]), _bytes(parts["initializationVector"])
    if parts["cipherAlgorithm"] == GCM:
        if int(parts["authenticationTagLength"]) != _TAG_BITS:
            raise ValueError("the tag has a wrong length")
        try:
            return AESGCM(key).decrypt(vector, data, None)
        except InvalidTag:
            raise ValueError("the secret is wrong, or the text was changed") from None
    if parts["cipherAlgorithm"] != CBC:
        raise ValueError("this cipher is not known here")
    decryptor, unpadder = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor(), PKCS7(_BLOCK_BITS).unpadder()
    return unpadder.update(decryptor.update(data) + decryptor.finalize()) + unpadder.finalize()


def _java_length(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
