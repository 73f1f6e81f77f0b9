"""How long each broker for tests takes to start, and its memory: `python -m compat_tests.compared.figures`.

Owns the measuring. Each kind is measured in a process of its own, kfake's own process for itself.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from compat_tests.compared.of_kbroker import OfKbroker
from compat_tests.compared.of_kfake import OfKfake
from compat_tests.compared.rdkafka_mock import RdkafkaMock
from compat_tests.compared.target import Target

_TIMES: Final = 20
_MAKERS: Final[dict[str, Callable[[], Target]]] = {
    "kbroker": OfKbroker,
    "kfake": OfKfake,
    "mock": lambda: RdkafkaMock(1),
}


def _kilobytes(pid: str) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def _measure(name: str) -> None:
    make = _MAKERS[name]
    took = []
    before = _kilobytes("self")
    for _ in range(_TIMES):
        began = time.perf_counter()
        with make() as target:
            took.append((time.perf_counter() - began) * 1000)
            process = getattr(target, "_process", None)
            size = _kilobytes(str(process.pid)) if process is not None else _kilobytes("self") - before
    print(f"{name}: ready after {statistics.median(took):.0f} ms, {size / 1024:.0f} MB")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _measure(sys.argv[1])
    else:
        for each in _MAKERS:
            subprocess.run([sys.executable, "-m", "compat_tests.compared.figures", each], check=True)
