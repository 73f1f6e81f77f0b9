"""The client ids and names with which the verbs appear at a broker."""

from __future__ import annotations

import logging

import pytest
from click.testing import CliRunner

from kbroker import Broker
from kbroker.cli.main import cli


@pytest.mark.parametrize(("words", "client_id"), [([], "kbroker-cli"), (["-X", "client.id=mine"], "mine")])
def test_the_client_id_of_a_verb(words, client_id, caplog):
    caplog.set_level(logging.DEBUG, "kafka.request.logger")
    with Broker() as broker:
        done = CliRunner().invoke(cli, ["topic", "list", "-b", broker.bootstrap_servers, *words])
    assert (done.exit_code, done.stderr) == (0, "")
    told = [record.getMessage() for record in caplog.records if record.name == "kafka.request.logger"]
    assert any("Metadata" in line for line in told)
    assert all(client_id in line for line in told)
