"""The output of the verbs while the broker is down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen

import pytest

from compat_tests.harness.brokers import free_port
from kbroker import Broker
from kbroker.cli.outage import Outage
from kbroker.testing.waiting import hold
from tests.cli.conftest import CommandLine


def test_two_looks_in_a_row_make_an_outage():
    outage = Outage()
    said = [outage.after(each) for each in ("gone", None, "gone", "gone", "gone", None, None, "gone")]
    assert said == [None, None, None, "gone", None, "the broker answers again", None, None]


@contextmanager
def broker_on(port: int, directory: str) -> Iterator[Broker]:
    with Broker({"group.initial.rebalance.delay.ms": 0}, port=port, data_dir=directory) as broker:
        yield broker


def next_line(process: Popen[bytes]) -> str:
    """Return the next line on stderr; the process is killed after a minute, which ends the wait."""
    assert process.stderr is not None
    return process.stderr.readline().decode().strip()


@pytest.mark.long
@pytest.mark.parametrize("how", [["--from-beginning"], ["--share", "g"]], ids=["alone", "share"])
def test_consume_tells_that_the_broker_is_gone_and_back(tmp_path, how):
    port = free_port()
    cli = CommandLine(f"127.0.0.1:{port}")
    with broker_on(port, str(tmp_path)):
        cli.ok("topic", "create", "t")
        cli.ok("config", "set", "share.auto.offset.reset=earliest", "--group", "g")
        cli.ok("produce", "t", stdin=b"one\n")
        consuming = cli.started("consume", "t", *how, "--count", "2")
        process = consuming.__enter__()
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        if "--share" in how:  # otherwise the acknowledgement may come too late, and a line reports that
            hold(lambda: cli.ok("group", "describe", "g", "--json").json[0]["partitions"][0]["lag"] == 0, 20)
    try:
        assert next_line(process) == f"kbroker: no broker answers at 127.0.0.1:{port}: connection refused; trying on"
        with broker_on(port, str(tmp_path)):
            assert next_line(process) == "kbroker: the broker answers again"
            cli.ok("produce", "t", stdin=b"two\n")
            assert process.stdout.readline() == b"two\n"
            assert process.wait(20) == 0
    finally:
        consuming.__exit__(None, None, None)


@pytest.mark.long
def test_produce_tells_that_the_broker_is_gone_and_back(tmp_path):
    port = free_port()
    cli = CommandLine(f"127.0.0.1:{port}")
    with broker_on(port, str(tmp_path)):
        cli.ok("topic", "create", "t")
        producing = cli.started("produce", "t", "--sync")
        process = producing.__enter__()
        assert process.stdin is not None
        process.stdin.write(b"zero\none\n")
        process.stdin.flush()
        # The second is sent once the first is acknowledged: otherwise the verb would end, because nothing had worked
        # before.
        assert cli.ok("consume", "t", "--from-beginning", "--count", "2").out == b"zero\none\n"
    try:
        process.stdin.write(b"two\n")
        process.stdin.flush()
        assert next_line(process) == f"kbroker: no broker answers at 127.0.0.1:{port}: connection refused; trying on"
        with broker_on(port, str(tmp_path)):
            assert next_line(process) == "kbroker: the broker answers again"
            process.stdin.close()
            assert process.wait(20) == 0
            assert next_line(process) == "3 records written to t"
    finally:
        producing.__exit__(None, None, None)
