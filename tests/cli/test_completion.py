"""Completion in shells: what the scripts request, and a real shell if one is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.cli.main import VERBS
from kbroker.cli.main import cli as whole
from tests.cli.conftest import CommandLine

WITHOUT_SPARK_OR_CLIENT = ("pyspark", "kafka", "kbroker.broker")


def completed(*words: str) -> dict[str, str]:
    """Return the completions of the last word after `kbroker`, with their descriptions."""
    environment = {"_KBROKER_COMPLETE": "fish_complete", "COMP_WORDS": " ".join(["kbroker", *words[:-1]])}
    environment["COMP_CWORD"] = words[-1]
    done = CliRunner().invoke(whole, [], prog_name="kbroker", env=environment)
    assert done.exit_code == 0, done.output
    items = [line.split(",", 1)[1].split("\t") for line in done.output.splitlines() if line]
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


@pytest.fixture
def asked(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setenv("KBROKER_BOOTSTRAP", cli.bootstrap)
    return cli


def test_names_of_the_cluster(asked: CommandLine, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked.ok("topic", "create", f"{name}-1", f"{name}-2")
    asked.ok("group", "reset", f"{name}-g", "--topic", f"{name}-1", "--to-latest", "--execute")
    topics = {f"{name}-1", f"{name}-2"}
    for words in (["topic", "describe"], ["topic", "delete", "x"], ["consume"], ["produce"], ["perf", "produce"]):
        assert set(completed(*words, name)) == topics, words
    assert set(completed("record", "find", f"{name}-2")) == {f"{name}-2"}
    for words in (["group", "describe"], ["group", "reset"], ["consume", f"{name}-1", "-g"]):
        assert set(completed(*words, name)) == {f"{name}-g"}, words
    for words in (["broker", "describe"], ["broker", "drain"], ["config", "describe", "--broker"]):
        assert set(completed(*words, "")) == {"1"}, words
    assert not any(each.startswith("__") for each in completed("topic", "describe", ""))
    assert "__consumer_offsets" in completed("topic", "describe", "__")
    monkeypatch.setenv("KBROKER_BOOTSTRAP", "127.0.0.1:1")
    assert set(completed("topic", "describe", "-b", asked.bootstrap, name)) == topics


def test_nothing_is_completed_nor_told_where_no_broker_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBROKER_BOOTSTRAP", "127.0.0.1:1")
    assert completed("topic", "describe", "") == {}
    monkeypatch.setenv("KBROKER_BOOTSTRAP", "no address at all")
    assert completed("group", "describe", "") == {}


def test_a_cluster_that_does_not_answer_is_waited_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("KBROKER_BOOTSTRAP", f"127.0.0.1:{silent.getsockname()[1]}")
        begin = time.monotonic()
        assert completed("topic", "describe", "") == {}
        assert time.monotonic() - begin < 5


def test_profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    CommandLine("").ok("profile", "add", "staging", "-b", "h:1")
    assert set(completed("topic", "list", "--profile", "sta")) == {"staging"}


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
    done = CliRunner().invoke(whole, ["completion", shell], prog_name="kbroker")
    assert done.exit_code == 0, done.output
    assert f"_KBROKER_COMPLETE={shell}_complete" in done.output


def test_another_shell_is_refused() -> None:
    assert CliRunner().invoke(whole, ["completion", "tcsh"], prog_name="kbroker").exit_code == 2


@pytest.fixture
def environment(tmp_path: Path, cli: CommandLine) -> dict[str, str]:
    """Return the environment in which a shell finds this kbroker, and a cluster."""
    program = tmp_path / "kbroker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kbroker "$@"\n')
    program.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "KBROKER_BOOTSTRAP": cli.bootstrap, "HOME": str(tmp_path)}


def said(shell: list[str], script: str, environment: dict[str, str]) -> list[str]:
    done = subprocess.run([*shell, script], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_in_bash(environment: dict[str, str], cli: CommandLine, name: str) -> None:
    cli.ok("topic", "create", name)

    def completes(*words: str) -> list[str]:
        line = " ".join(["kbroker", *words])
        script = f"""
            eval "$(kbroker completion bash)"
            COMP_WORDS=({line}); COMP_CWORD={len(words)}
            _kbroker_completion kbroker {words[-1]} {words[-2]}
            echo "${{COMPREPLY[@]}}"
        """
        return said(["bash", "-c"], script, environment)

    assert completes("consume", "--fr") == ["--from-beginning"]
    assert completes("topic", "describe", name[:-2]) == [name]


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_in_fish(environment: dict[str, str], cli: CommandLine, name: str) -> None:
    cli.ok("topic", "create", name)
    script = f"kbroker completion fish | source; complete -C 'kbroker topic describe {name[:-2]}'"
    assert said(["fish", "--no-config", "-c"], script, environment) == [name]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_in_zsh(environment: dict[str, str], cli: CommandLine, name: str) -> None:
    """Tests what its script passes to the shell, because zsh completes only at a terminal."""
    cli.ok("topic", "create", name)
    script = f"""
        compdef() {{ }}; compadd() {{ }}; _describe() {{ print -l -- $completions $completions_with_descriptions }}
        compadd() {{ print -l -- $completions }}
        eval "$(kbroker completion zsh)"
        words=(kbroker topic describe {name[:-2]}); CURRENT=4
        _kbroker_completion
    """
    assert name in said(["zsh", "-f", "-c"], script, environment)
