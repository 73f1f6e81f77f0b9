"""CRC-32C: the published check value, in pieces, of any buffer, and without the package that would load much more."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from kbroker.protocol import checksum
from kbroker.protocol.checksum import crc32c

CHECK = 0xE3069283  # of b"123456789", as in the catalogue of CRC algorithms


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_the_check_value(kind: type) -> None:
    assert crc32c(kind(b"123456789")) == CHECK
    assert crc32c(kind(b"56789"), crc32c(kind(b"1234"))) == CHECK


def test_the_package_serves_where_its_extension_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "crc32c._crc32c", raising=False)
    monkeypatch.setattr(checksum, "PathFinder", SimpleNamespace(find_spec=lambda *_: None))
    found = checksum._extension()
    assert found.__name__ == "crc32c"
    assert found.crc32c(b"123456789") == CHECK


def test_a_broker_starts_without_what_few_brokers_need() -> None:
    """Each of these costs milliseconds of a start and megabytes of an idle broker."""
    heavy = {"importlib.metadata", "email", "argparse", "difflib", "re2", "snappy", "cramjam", "numpy", "kafka"}
    code = "import sys, kbroker.cli.main, kbroker.broker.node; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert heavy.isdisjoint(loaded.stdout.split())
