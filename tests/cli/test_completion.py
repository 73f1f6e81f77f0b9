"""Completion of the command line in shells: what the scripts ask for, and a real shell where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.cli.main import VERBS, cli

WITHOUT_SPARK_OR_CLIENT = ("pyspark", "kafka", "kbroker.broker")


def completed(*words: str) -> dict[str, str]:
    """Return what fits the last of the words after `kbroker`, with what is said of each."""
    environment = {"_KBROKER_COMPLETE": "fish_complete", "COMP_WORDS": " ".join(["kbroker", *words[:-1]])}
    environment["COMP_CWORD"] = words[-1]
    done = CliRunner().invoke(cli, [], prog_name="kbroker", env=environment)
    assert done.exit_code == 0, done.output
    items = [line.split(",", 1)[1].split("\t") for line in done.output.splitlines()]
    return {item[0]: item[1] if len(item) > 1 else "" for item in items}


def test_verbs() -> None:
    assert completed("") == VERBS
    assert set(completed("to")) == {"topic", "token"}
    assert "container" not in completed("c")


def test_verbs_within_verbs_and_options() -> None:
    assert {"create", "describe", "delete"} <= set(completed("topic", ""))
    assert "--from-beginning" in completed("consume", "t", "--fr")
    assert set(completed("start", "--log-format", "")) == {"text", "json"}
    assert set(completed("completion", "")) == {"bash", "zsh", "fish"}


def test_a_list_of_verbs_imports_none() -> None:
    code = (
        "import sys; from kbroker.cli.main import main\n"
        "try: main([])\n"
        f"except SystemExit: print([m for m in {WITHOUT_SPARK_OR_CLIENT} if m in sys.modules])"
    )
    variables = {"_KBROKER_COMPLETE": "fish_complete", "COMP_WORDS": "kbroker", "COMP_CWORD": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    *verbs, imported = done.stdout.splitlines()
    assert len(verbs) == len(VERBS)
    assert imported == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_ask_this_command(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell], prog_name="kbroker")
    assert done.exit_code == 0, done.output
    assert f"_KBROKER_COMPLETE={shell}_complete" in done.output


def test_another_shell_is_refused() -> None:
    assert CliRunner().invoke(cli, ["completion", "tcsh"], prog_name="kbroker").exit_code == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_in_bash(tmp_path: Path) -> None:
    program = tmp_path / "kbroker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kbroker "$@"\n')
    program.chmod(0o755)
    script = """
        eval "$(kbroker completion bash)"
        COMP_WORDS=(kbroker consume --fr); COMP_CWORD=2
        _kbroker_completion kbroker --fr consume
        echo "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("--from-beginning\n", "")
