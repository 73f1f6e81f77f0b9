"""`kbroker feature`: levels are shown and changed."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker import Broker
from tests.cli.conftest import CommandLine


def level(cli: CommandLine, name: str) -> Any:
    return next(each["level"] for each in cli.ok("feature", "list", "--json").json if each["feature"] == name)


def test_features_are_listed_with_what_is_supported(anywhere: CommandLine) -> None:
    found = {each["feature"]: each for each in anywhere.ok("feature", "list", "--json").json}
    assert {"group.version", "metadata.version", "transaction.version"} <= found.keys()
    for each in found.values():
        assert each["lowest"] <= each["highest"]
        assert each["level"] <= each["highest"]


def test_a_level_goes_down_and_up_again() -> None:
    with Broker() as broker:
        cli = CommandLine(broker.bootstrap_servers)
        assert level(cli, "transaction.version") == 2
        said = cli.ok("feature", "downgrade", "transaction.version=1", "--dry-run").text
        assert said == "transaction.version: level 1 is possible\n"
        assert level(cli, "transaction.version") == 2
        cli.ok("feature", "downgrade", "transaction.version=1")
        assert level(cli, "transaction.version") == 1
        cli.ok("feature", "disable", "transaction.version")
        assert level(cli, "transaction.version") == 0
        assert cli.ok("feature", "upgrade", "transaction.version=2").text == "transaction.version: level 2\n"
        assert level(cli, "transaction.version") == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("upgrade", "no.such.feature=1"),
        ("upgrade", "transaction.version=99"),
        ("upgrade", "transaction.version=99", "--dry-run"),
        ("downgrade", "metadata.version=1"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(anywhere: CommandLine, arguments: tuple[str, ...]) -> None:
    before = anywhere.ok("feature", "list", "--json").json
    assert anywhere.fails("feature", *arguments)
    assert anywhere.ok("feature", "list", "--json").json == before


@pytest.mark.parametrize("text", ["transaction.version", "=1", "a=b", "a=-1", "a=99999"])
def test_a_level_is_a_number(cli: CommandLine, text: str) -> None:
    done = cli("feature", "upgrade", text)
    assert done.status == 2
    assert "FEATURE=LEVEL" in done.err
