"""Hosts of ACLs: every host, one address, or a range."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.authorizer.hosts import covers, is_range, parse_range


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("10.0.0.0/33", "Value [33] not in range [0,32]"),
        ("10.0.256.999/33", "Value [256] not in range [0,255]"),
        ("10.0.0/8", "Could not parse [10.0.0/8]"),
        ("10.0.0.0/", "Could not parse [10.0.0.0/]"),
        ("10.0.0.0/8/8", "Could not parse [10.0.0.0/8/8]"),
        ("/8", "Could not parse [/8]"),
        ("host/8", "Could not parse [host/8]"),
        ("*/8", "Could not parse [*/8]"),
        ("10.0.0.٣/8", "Could not parse [10.0.0.٣/8]"),
        ("2001:db8::/x", "Could not parse [2001:db8::/x] - invalid prefix length"),
        ("2001:db8::/", "Could not parse [2001:db8::/] - invalid prefix length"),
        ("2001:db8::/64/3", "Could not parse [2001:db8::/64/3] - invalid prefix length"),
        ("2001:db8::/129", "Could not parse [2001:db8::/129] - prefix length must be between 0 and 128"),
        ("2001:db8::/-1", "Could not parse [2001:db8::/-1] - prefix length must be between 0 and 128"),
        ("::ffff:10.0.0.1/96", "Could not parse [::ffff:10.0.0.1] - not an IPv6 address"),
        (":::/64", "Could not parse [:::]"),
    ],
)
def test_what_is_no_range_is_refused_in_kafkas_words(host: str, text: str) -> None:
    assert is_range(host)
    with pytest.raises(ValueError) as refused:
        parse_range(host)
    assert str(refused.value) == text
    assert not covers(host, "10.0.0.1")
    assert covers(host, host), "the text itself, as ever"


def test_hosts_that_are_no_ranges() -> None:
    assert covers("*", "10.0.0.1")
    assert covers("10.0.0.1", "10.0.0.1")
    assert not covers("10.0.0.1", "10.0.0.2")
    assert not covers("10.0.0.0/8", "a-name")
    assert not covers("0.0.0.0/0", "0.0.0.0"), "as in Kafka, an address of all"
    assert covers("0.0.0.0/0", "255.255.255.255")
    assert not covers("::/0", "10.0.0.1")
    assert not covers("0.0.0.0/0", "::1")
    assert covers("::1/+128", "::1")


four = st.integers(1, 2**32 - 1).map(IPv4Address)
six = st.integers(0, 2**128 - 1).map(IPv6Address).filter(lambda each: each.ipv4_mapped is None)


@given(st.tuples(four, four, st.integers(0, 32)) | st.tuples(six, six, st.integers(0, 128)), st.booleans())
def test_ranges_against_a_model(
    case: tuple[IPv4Address | IPv6Address, IPv4Address | IPv6Address, int], near: bool
) -> None:
    first, second, bits = case
    address = first if near else second
    host = f"{first}/{bits}"
    shift = address.max_prefixlen - bits
    assert covers(host, str(address)) == (int(first) >> shift == int(address) >> shift)
    assert parse_range(host) == ip_network(host, strict=False)
