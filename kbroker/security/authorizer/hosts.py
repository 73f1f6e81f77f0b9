"""The hosts of ACLs: every host, one address, or since Apache Kafka 4.4 a range of addresses (CIDR).

Owns the form of a range, the errors in Kafka's words (CidrUtils), and the check whether a range contains an address.
Never decides about a right.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from kbroker.security.authorizer.acls import WILDCARD

_RANGE_4: Final = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})/(\d{1,2})", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?\d{1,10}", re.ASCII)
_BITS_4: Final = 32
_BITS_6: Final = 128
_LARGEST_OCTET: Final = 255
_NOWHERE: Final = IPv4Address(0)
"""An address that no IPv4 range contains, as in Kafka."""


def is_range(host: str) -> bool:
    """Whether a text has the form of a range of addresses."""
    return "/" in host


def parse_range(host: str) -> IPv4Network | IPv6Network:
    """Parse a range of addresses. Raises ValueError with Kafka's text. Bits after the prefix are ignored."""
    return _range_6(host) if ":" in host else _range_4(host)


def _range_4(host: str) -> IPv4Network:
    found = _RANGE_4.fullmatch(host)
    if found is None:
        raise ValueError(f"Could not parse [{host}]")
    *octets, bits = (int(each) for each in found.groups())
    for value, largest in (*((each, _LARGEST_OCTET) for each in octets), (bits, _BITS_4)):
        if value > largest:
            raise ValueError(f"Value [{value}] not in range [0,{largest}]")
    return IPv4Network((bytes(octets), bits), strict=False)


def _range_6(host: str) -> IPv6Network:
    address, _, prefix = host.partition("/")
    if not _NUMBER.fullmatch(prefix):
        raise ValueError(f"Could not parse [{host}] - invalid prefix length")
    bits = int(prefix)
    if not 0 <= bits <= _BITS_6:
        raise ValueError(f"Could not parse [{host}] - prefix length must be between 0 and {_BITS_6}")
    try:
        parsed = IPv6Address(address)
    except ValueError:
        raise ValueError(f"Could not parse [{address}]") from None
    if parsed.ipv4_mapped is not None:
        raise ValueError(f"Could not parse [{address}] - not an IPv6 address")
    return IPv6Network((parsed.packed, bits), strict=False)


@lru_cache(maxsize=20_000)
def _known_range(host: str) -> tuple[int, int, int] | None:
    """Return a range's IP version, its prefix as a number, and the number of bits after it; None for another text.

    The result is cached, because a decision may check the ranges of many ACLs.
    """
    try:
        network = parse_range(host)
    except ValueError:
        return None
    behind = network.max_prefixlen - network.prefixlen
    return network.version, int(network.network_address) >> behind, behind


@lru_cache(maxsize=1_000)
def _address(host: str) -> tuple[int, int] | None:
    """Return an address's version and number; None for text that is no address, and for 0.0.0.0, which no range has."""
    try:
        found = ip_address(host)
    except ValueError:
        return None
    return None if found == _NOWHERE else (found.version, int(found))


def covers(host: str, address: str) -> bool:
    """Whether an ACL's host covers a client's address."""
    if host in (WILDCARD, address):
        return True
    if not is_range(host):
        return False
    network, found = _known_range(host), _address(address)
    if network is None or found is None:
        return False
    version, prefix, behind = network
    return found[0] == version and found[1] >> behind == prefix
