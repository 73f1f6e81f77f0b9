"""Principals and their text."""

import pytest

from kbroker.security.principal import ANONYMOUS, Principal


def test_a_principal_and_its_text():
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert Principal.parse("User:CN=a,OU=b:c") == Principal("User", "CN=a,OU=b:c")
    assert Principal.parse("User:") == Principal("User", "")
    assert Principal("User", "alice") != Principal("User", "Alice") != Principal("user", "Alice")


@pytest.mark.parametrize("text", ["", "alice", ":alice"])
def test_what_is_no_principal(text):
    with pytest.raises(ValueError, match="not a principal"):
        Principal.parse(text)
