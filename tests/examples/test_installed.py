"""The examples with nothing but what a user installs: outside of the checkout, in an environment of their own."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.tries import FORM

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600
CLIENTS = ["pytest", "mypy", "confluent-kafka", "aiokafka", "faststream[confluent]", "pytest-asyncio"]
SOURCES = sorted((ROOT / "examples").rglob("*.py"))


def run(directory: Path, *command: str) -> str:
    unset = ("PYTHON", "KAFKA", "MYPY", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-5_000:]}{done.stderr[-5_000:]}"
    return done.stdout


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "examples")))
def test_an_example_imports_only_what_a_user_installs(path: Path) -> None:
    """The short form of the test below, which installs it."""
    named = {name.partition("[")[0].replace("-", "_") for name in CLIENTS}
    installed = named | {"kbroker", "kafka"}  # kbroker needs kafka-python
    own = {each.stem for each in path.parent.iterdir()} | {"orders", "conftest"}
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    assert found <= installed | sys.stdlib_module_names | own


@pytest.mark.skipif(FORM != "long", reason="installs packages, and checks types anew: only with KBROKER_TESTS=long")
def test_the_examples_need_only_what_a_user_installs(tmp_path: Path) -> None:
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(tmp_path, sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert all(name.startswith("kbroker") for name in names), "examples and tests are no part of it"
    assert "kbroker/py.typed" in names

    run(tmp_path, sys.executable, "-m", "venv", "environment")
    python = str(tmp_path / "environment/bin/python")
    run(tmp_path, python, *pip, "install", str(wheel), *CLIENTS)
    examples = tmp_path / "examples"
    shutil.copytree(ROOT / "examples", examples)
    assert "no issues found" in run(examples, python, "-m", "mypy", "--strict", "--config-file", "mypy.ini", ".")
    run(examples / "orders", python, "-m", "pytest", "-q", "tests/test_outbox.py")
    run(examples / "recipes", python, "-m", "pytest", "-q", "test_flaky_consumer.py", "test_asyncio.py")
