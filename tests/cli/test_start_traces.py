"""`kbroker start --traces`: a process whose requests reach a collector as spans."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from compat_tests.wire.client import WireClient
from kbroker.cli import beside, start
from kbroker.cli.beside import traces_place
from kbroker.config.model import ConfigError
from kbroker.extras import how_to_install
from kbroker.protocol.messages.cluster import MetadataRequest
from tests.cli.conftest import CommandLine
from tests.cli.test_start_control import started
from tests.traces.collector import attributes_of, collecting


@pytest.mark.long
def test_a_process_exports_what_it_was_asked(tmp_path: Path) -> None:
    with collecting() as collector, started(tmp_path, "--traces", collector.url) as (process, ready):
        with WireClient(ready["bootstrap_servers"], "app") as client:
            client.ask(MetadataRequest(topics=[]), 12)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        spans = [span for span in collector.spans() if span.name == "Metadata"]
        assert [attributes_of(span)["messaging.client.id"] for span in spans] == ["app"]
        assert collector.resource()["service.instance.id"] == str(ready["node_id"])


def test_a_ratio_is_a_share() -> None:
    result = CliRunner().invoke(start.command, ["--memory", "--traces", "--traces-ratio", "1.5"])
    assert result.exit_code == 2
    assert "1.5 is not in the range 0<=x<=1" in result.output


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "ftp://127.0.0.1", "http://"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ConfigError, match="--traces takes a URL"):
        traces_place(url, 1.0)


@pytest.mark.parametrize("lacking", ["kbroker.no_such_module", "no_such_module.at_all"])
def test_without_the_extra_the_start_is_one_line(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    monkeypatch.setattr(beside, "_OF_TRACES", ("kbroker", lacking))
    line = cli.fails("start", "--memory", "--listen", "127.0.0.1:0", "--traces")
    assert line.startswith(f"--traces needs more than kbroker alone: {how_to_install('traces')}")
