"""The configuration of a broker's connection to ZooKeeper: TLS, SASL, credentials, and the ownership of znodes.

Owns the meaning of Kafka's keys `zookeeper.ssl.*`, `zookeeper.set.acl` and of the JAAS section `Client`, and refuses
unsupported settings. Reads the files that the keys name; never connects. (KafkaServer.initZkClient, JaasUtils,
ZKClientConfig.)
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from typing import Final

from kbroker.config.jaas import JaasError, parse_jaas
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.tree.connection import Others, Security
from kbroker.security.tls.contexts import openssl_name

_PUBLIC: Final = "/consumers"
"""The znode below which very old consumers write. So clients other than brokers must be able to change it."""
_SECRET: Final = ("/config/users", "/config/brokers", "/delegation_token/tokens")
"""Only brokers may read these znodes and their descendants."""


def rights_of_others(path: str) -> Others:
    """Return the rights that other clients than brokers have on a znode, if `zookeeper.set.acl` restricts access."""
    if path == _PUBLIC:
        return Others.CHANGE
    return Others.NOTHING if path.startswith(_SECRET) else Others.READ


log = logging.getLogger(__name__)

_PREFIX: Final = "zookeeper.ssl"
_ENABLE: Final = f"{_PREFIX}.client.enable"
_SOCKET: Final = "zookeeper.clientCnxnSocket"
_LOGIN: Final = "java.security.auth.login.config"
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_DIGEST_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"


def zookeeper_security(config: BrokerConfig) -> Security:
    """Return this broker's credentials for ZooKeeper. Raises ConfigError for unsupported settings."""
    user, digest = _user(config), _digest(config)
    tls = _tls(config) if config.get_bool(_ENABLE) else None
    if tls is None:
        _warn_of_no_effect(config)
        if digest is not None:
            log.warning(
                "zookeeper.digest.credentials: user and password go to ZooKeeper in clear text, as %s is not true",
                _ENABLE,
            )
    if not config.get_bool("zookeeper.set.acl"):
        return Security(tls, user, digest)
    has_certificate = tls is not None and config.get_optional_str(f"{_PREFIX}.keystore.location")
    if user is None and digest is None and not has_certificate:
        raise ConfigError(
            "zookeeper.set.acl is true, but this broker has no login for ZooKeeper: give it a JAAS file with a "
            f"section {config.get_str('zookeeper.sasl.clientconfig')} ({_LOGIN}), a certificate "
            f"({_PREFIX}.keystore.location with {_ENABLE}), or zookeeper.digest.credentials"
        )
    return Security(tls, user, digest, rights_of_others)


# --- credentials


def _digest(config: BrokerConfig) -> str | None:
    found = config.get_optional_str("zookeeper.digest.credentials")
    if not found:
        return None
    user, colon, password = found.partition(":")
    if not user or not colon or not password:
        raise ConfigError("zookeeper.digest.credentials is not of the form user:password")
    return found


def _user(config: BrokerConfig) -> tuple[str, str] | None:
    """Return the name and password from the section `Client` of the JAAS file; None without a section."""
    path, section = config.get_optional_str(_LOGIN), config.get_str("zookeeper.sasl.clientconfig")
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            sections = parse_jaas(file.read())
    except OSError as error:
        raise ConfigError(f"{_LOGIN}: cannot read {path}: {error.strerror}") from None
    except (JaasError, UnicodeDecodeError) as error:
        raise ConfigError(f"{_LOGIN}: {path} is no login configuration: {error}") from None
    modules = sections.get(section)
    logs_in = config.get_bool("zookeeper.sasl.client")
    if modules is None:
        if logs_in:
            log.warning("%s: %s has no section %s: this broker does not log in to ZooKeeper", _LOGIN, path, section)
        return None
    if not logs_in:
        raise ConfigError(f"{path} has a section {section}, but zookeeper.sasl.client is false")
    module = modules[0]
    if module.name != _DIGEST_MODULE or len(modules) > 1:
        raise ConfigError(f"{path}: the only way to log in to ZooKeeper that this version knows is {_DIGEST_MODULE}")
    name, password = module.options.get("username"), module.options.get("password")
    if not name or not password:
        raise ConfigError(f"{path}: section {section} has no username, or no password")
    return name, password


# --- TLS


def _warn_of_no_effect(config: BrokerConfig) -> None:
    idle = sorted(name for name, text in config.static.items() if name.startswith(_PREFIX) and text.strip())
    idle = [name for name in idle if name != _ENABLE]
    if idle:
        log.warning("%s: without effect, as %s is not true", ", ".join(idle), _ENABLE)


def _tls(config: BrokerConfig) -> ssl.SSLContext:
    if (config.get_optional_str(_SOCKET) or "").endswith("NIO"):
        raise ConfigError(f"{_SOCKET} is {config.get_str(_SOCKET)}, which does not support TLS, but {_ENABLE} is true")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = _checks_name(config)
    versions = _versions(config)
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    _choose_ciphers(config, context, versions)
    trusted = _pem_file(config, "truststore")
    if trusted is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        try:
            context.load_verify_locations(trusted)
        except OSError as error:
            raise _unusable("truststore", trusted, error) from None
    own = _pem_file(config, "keystore")
    if own is not None:
        password = config.get_optional_str(f"{_PREFIX}.keystore.password") or ""
        try:
            # Always pass a password. Without one, OpenSSL would prompt on the terminal for the password of an encrypted
            # key.
            context.load_cert_chain(own, password=password)
        except OSError as error:
            raise _unusable("keystore", own, error) from None
    return context


def _checks_name(config: BrokerConfig) -> bool:
    key = f"{_PREFIX}.endpoint.identification.algorithm"
    algorithm = config.get_str(key)
    if algorithm.upper() not in ("", "HTTPS"):
        raise ConfigError(f"{key} is {algorithm}; it must be HTTPS, or empty to check no name")
    return bool(algorithm)


def _versions(config: BrokerConfig) -> list[ssl.TLSVersion]:
    key = f"{_PREFIX}.enabled.protocols"
    names = config.get_list(key)
    if not names:
        key = f"{_PREFIX}.protocol"
        names = (config.get_str(key),)
    unknown = [name for name in names if name not in _VERSIONS]
    if unknown:
        raise ConfigError(f"{key}: {', '.join(unknown)} cannot be used; possible are {' or '.join(_VERSIONS)}")
    return [_VERSIONS[name] for name in names]


def _choose_ciphers(config: BrokerConfig, context: ssl.SSLContext, versions: list[ssl.TLSVersion]) -> None:
    key = f"{_PREFIX}.cipher.suites"
    wanted = config.get_list(key)
    if not wanted:
        return
    if ssl.TLSVersion.TLSv1_3 in versions:
        raise ConfigError(f"{key} can only be set for TLSv1.2; the system chooses the cipher suites of TLSv1.3")
    with contextlib.suppress(ssl.SSLError):  # none of the ciphers is available
        context.set_ciphers(":".join(map(openssl_name, wanted)))
    chosen = {each["name"] for each in context.get_ciphers()}
    unknown = [name for name in wanted if openssl_name(name) not in chosen]
    if unknown:
        raise ConfigError(f"{key}: {', '.join(unknown)} cannot be used with this system's OpenSSL")


def _pem_file(config: BrokerConfig, store: str) -> str | None:
    """Return the path of a keystore or truststore, which must be a PEM file; None if no path is set."""
    path = config.get_optional_str(f"{_PREFIX}.{store}.location")
    if not path:
        return None
    kind = config.get_optional_str(f"{_PREFIX}.{store}.type") or os.path.splitext(path)[1].removeprefix(".")
    if kind.upper() != "PEM":
        reason = f"is {kind}" if kind else "can't be told by its name"
        raise ConfigError(
            f"{_PREFIX}.{store}.location: {path}: its form {reason}, but only PEM can be read: convert the file, "
            f"or set {_PREFIX}.{store}.type=PEM if the file is PEM"
        )
    return path


def _unusable(store: str, path: str, error: OSError) -> ConfigError:
    reason = f"is no PEM file that can be used ({error.reason or error})" if isinstance(error, ssl.SSLError) else ""
    return ConfigError(f"{_PREFIX}.{store}.location: {path} {reason or f'cannot be read: {error.strerror}'}")
