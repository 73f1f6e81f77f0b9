"""The addresses of stores of objects: s3://, gs://, az://, hdfs://, file:// and memory://.

Owns the check of an address and its settings, and the choice of the client. Never calls the store. Credentials come
from the settings or from the environment that the provider's own tools read (AWS_*, GOOGLE_*, AZURE_*, HADOOP_*). An
address with a password is refused: addresses appear in logs.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from kbroker.extras import how_to_install
from kbroker.remote.hdfs_client import open_hdfs
from kbroker.remote.object_client import ObjectClient
from kbroker.remote.obstore_client import ObstoreClient
from kbroker.remote.store_errors import StoreSettingError, first_line

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES: Final = ("s3", "gs", "az", "hdfs", "file", "memory")
_REST_S: Final = 0.05
_CLIENT_SETTINGS: Final = ("allow_http", "proxy_url", "root_certificate")
_RETRIES: Final = 3
_REQUEST_S: Final = 120
_RETRY: Final[dict[str, Any]] = {
    "max_retries": _RETRIES,
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
    "retry_timeout": timedelta(seconds=_REQUEST_S),
}


def open_client(url: str, settings: Mapping[str, str]) -> ObjectClient:
    """Return the client of a store.

    `settings` have obstore's names, such as `endpoint` or `access_key_id`; for hdfs:// Hadoop's names. Raises
    StoreSettingError, whose text has no value of a setting.
    """
    scheme = _checked_scheme(url)
    _rest_at_exit()
    if scheme == "hdfs":
        return open_hdfs(url, settings)
    return ObstoreClient(
        open_obstore(scheme, url, settings), urlsplit(url).path.rstrip("/") if scheme == "file" else ""
    )


def open_obstore(scheme: str, url: str, settings: Mapping[str, str]) -> ObjectStore:
    """Return obstore's client. Raises StoreSettingError."""
    try:
        from obstore.store import from_url
    except ImportError:
        raise StoreSettingError(f"remote storage needs the extra tiers: {how_to_install('tiers')}") from None
    if scheme in ("file", "memory"):
        if settings:
            raise StoreSettingError(f"a store {scheme}:// has no settings: {', '.join(sorted(settings))}")
        arguments: dict[str, Any] = {"automatic_cleanup": True} if scheme == "file" else {}
    else:
        client = {key: value for key, value in settings.items() if key in _CLIENT_SETTINGS}
        client.setdefault("allow_http", str(_uses_http(scheme, settings)).lower())
        config = {key: value for key, value in settings.items() if key not in _CLIENT_SETTINGS}
        options = client | {"timeout": f"{_REQUEST_S}s"}
        arguments = {"config": config, "client_options": options, "retry_config": _RETRY}
    try:
        return from_url(url, **arguments)
    except Exception as error:  # noqa: BLE001 - the library has many
        raise StoreSettingError(f"cannot use the store {url}: {_reason(error, settings)}") from None
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # raised by the library for an unexpected setting
            names = ", ".join(sorted(settings))
            raise StoreSettingError(f"cannot use the store {url}: one of its settings is unknown: {names}") from None
        raise


def _uses_http(scheme: str, settings: Mapping[str, str]) -> bool:
    """Whether the endpoint, of the settings or of S3's variables in the environment, is one without TLS."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT") if scheme == "s3" else ()
    endpoint = settings.get("endpoint") or next(filter(None, map(os.environ.get, names)), "")
    return endpoint.startswith("http://")


@cache
def _rest_at_exit() -> None:
    """Give the libraries' threads some time at the end of the process to release Python's objects.

    The threads release the objects after their answer. A late thread would call an interpreter that has ended, and
    abort the process.
    """
    atexit.register(time.sleep, _REST_S)


def _checked_scheme(url: str) -> str:
    try:
        parts = urlsplit(url)
        has_user = parts.username is not None or parts.password is not None or "@" in parts.netloc
    except ValueError:
        raise StoreSettingError("the address of a store is not a URL") from None
    if has_user or parts.query or parts.fragment:
        raise StoreSettingError(
            "the address of a store has a user, a query or a fragment: give credentials as settings"
        )
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise StoreSettingError(f"the address of a store begins with one of {known}, not with {parts.scheme!r}")
    if parts.scheme == "file" and (parts.netloc or not os.path.isdir(parts.path)):
        raise StoreSettingError(f"{url} does not name an existing directory: create it, or write file:///path")
    if parts.scheme in ("s3", "gs", "az") and not parts.netloc:
        raise StoreSettingError(f"{url} names no bucket")
    if parts.scheme == "hdfs" and not parts.netloc:
        raise StoreSettingError(f"{url} names no name node")
    return parts.scheme


def _reason(error: Exception, settings: Mapping[str, str]) -> str:
    return first_line(str(error), [*settings.values(), *_secrets_of_environment()])


def _secrets_of_environment() -> list[str]:
    return [value for key, value in os.environ.items() if key.startswith(("AWS_", "GOOGLE_", "AZURE_"))]
