"""`kbroker cluster` with fake brokers: the tests run it in a separate process."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from kbroker.cli import cluster
from kbroker.cli.main import main
from kbroker.launcher.start_and_stop import LocalCluster

FAKE = (sys.executable, str(Path(__file__).with_name("fake_broker.py")))

if __name__ == "__main__":
    cluster.LocalCluster = functools.partial(LocalCluster, program=FAKE)
    main(["cluster", *sys.argv[1:]])
