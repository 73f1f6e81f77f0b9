"""The pages agree with the code."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import kbroker
from kbroker import handlers
from kbroker.cli.main import VERBS
from kbroker.control.application import OPERATIONS
from kbroker.control.known_faults import KINDS
from kbroker.handlers.registry import APIS
from kbroker.pipeline.spark.session import NOT_WHOLE, TRIED

ROOT = Path(__file__).parents[1]
handlers.load_all()


@pytest.mark.parametrize(("page", "name"), [("README.md", "test_orders"), ("docs/security.md", "test_rights")])
def test_an_example_on_a_page_is_the_tested_one(page, name):
    example = (ROOT / f"tests/examples/{name}.py").read_text()
    indented = "".join("    " + line if line.strip() else line for line in example.splitlines(keepends=True))
    assert indented in (ROOT / page).read_text()


def test_the_example_for_those_who_come_from_testcontainers_is_the_tested_one():
    example = (ROOT / "tests/examples/test_from_testcontainers.py").read_text()
    assert f"```python\n{example}```\n" in (ROOT / "docs/from-testcontainers.md").read_text()


def test_the_pages_list_every_recipe():
    files = sorted(path.name for path in (ROOT / "examples/recipes").glob("test_*.py"))
    for page in ("docs/testing.md", "examples/recipes/README.md"):
        assert sorted(re.findall(r"^\| \[(test_\w+\.py)\]", (ROOT / page).read_text(), re.MULTILINE)) == files


@pytest.mark.parametrize("name", ["Orders.java", "orders_test.go", "orders.test.mjs"])
def test_an_example_in_another_language_is_the_tested_one(name):
    example = (ROOT / f"tests/examples/languages/{name}").read_text()
    assert f"\n{example}```\n" in (ROOT / "docs/testing-other-languages.md").read_text()


def test_the_page_for_other_languages_names_every_path_of_the_control_api():
    page = (ROOT / "docs/testing-other-languages.md").read_text()
    for each in OPERATIONS:
        shown = re.sub(r"{(\w+)(:\w+)?}", lambda found: "NAME" if found[1] == "topic" else "ID", each.path)
        assert f"{each.method} {shown}" in page, each.path
    for kind in KINDS:
        assert f"`{kind}`" in page


def test_no_page_and_no_hint_installs_a_package_that_is_not_published():
    of_an_index = re.compile(r"pip install(?: (?!in )[^ \n#]+)*? ['\"]?kbroker(?=[\['\"\s`])")
    where = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "mkdocs.yml"]
    for folder in ("kbroker", "docs", "docker", "examples", "benchmarks", "compat_tests", "man"):
        where += [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    found = [path for path in where if of_an_index.search(path.read_bytes().decode(errors="replace"))]
    assert found == []


def test_extras_that_hints_name_are_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for path in (ROOT / "kbroker").rglob("*.py"):
        for extra in re.findall(r"how_to_install\([\"'](\w+)", path.read_text()):
            assert extra in extras, path


def test_the_readme_names_every_verb():
    readme = (ROOT / "README.md").read_text()
    for verb in VERBS:
        assert f"kbroker {verb}" in readme or f"|{verb}" in readme


def test_the_page_of_the_command_line_names_verbs_that_there_are():
    page = (ROOT / "docs/cli.md").read_text()
    assert set(re.findall(r"`kbroker ([a-z-]+)", page)) <= VERBS.keys()
    named = set(re.findall(r"`([a-z][a-z-]*) ([a-z][a-z-]*)", page.replace("`kbroker ", "`")))
    assert len(named) > 50
    for verb, below in named:
        assert verb in VERBS, verb
        command = import_module(f"kbroker.cli.{verb.replace('-', '_')}").command
        assert below in getattr(command, "commands", {}), f"{verb} {below}"


def test_every_handler_says_its_api_and_versions():
    for api in APIS.values():
        module = __import__(api.handler.__module__, fromlist=["x"])
        low, high = api.versions.low, api.versions.high
        said = module.__doc__ or ""
        assert f"{api.name} (key {api.key})" in said, api.name
        assert f"{low}-{high}" in said or (low == high and f"version {low}" in said), api.name


def test_the_architecture_page_names_every_module_of_the_top_level():
    page = (ROOT / "docs/architecture.md").read_text()
    for path in (ROOT / "kbroker").iterdir():
        name = path.stem
        if path.suffix == ".py" and not name.startswith("__"):
            known = name in page or name.split("_")[0] + "*" in page
            assert known, f"{path.name} is not on docs/architecture.md"


@pytest.mark.parametrize(
    ("name", "letter", "count"), [("durability", "S", 15), ("groups", "G", 10), ("exactly-once", "T", 16)]
)
def test_the_pages_of_promises_name_tests_that_there_are(name, letter, count):
    page = (ROOT / f"docs/{name}.md").read_text()
    rows = {row.partition(" | ")[0]: row for row in re.findall(r"^\| (.*)", page, re.MULTILINE)}
    for number in (f"{letter}{n}" for n in range(1, count + 1)):
        assert "`tests/" in rows[number], number
    named = re.findall(r"`(tests/[^`]+)`", page)
    for name in named:
        path, _, test = name.partition("::")
        source = (ROOT / path).read_text()
        assert not test or f"def {test}(" in source, name


def test_every_rule_of_transactions_has_a_test_that_names_its_number():
    page = (ROOT / "docs/exactly-once.md").read_text()
    for number in range(1, 17):
        (row,) = re.findall(rf"^\| T{number} \|.*$", page, re.MULTILINE)
        tests = re.findall(r"`tests/[^`:]+::(test_[^`]+)`", row)
        assert tests, f"T{number}"
        assert any(f"t{number}_" in test for test in tests), f"T{number}"


def test_the_pages_and_the_extra_name_the_versions_of_spark_that_were_tried():
    page = (ROOT / "docs/pipeline.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (pyspark,) = (
        each for each in map(Requirement, project["optional-dependencies"]["spark"]) if each.name == "pyspark"
    )
    minor = {f"{series}.{patch}" for series in ("3.4", "3.5") for patch in range(10)}
    minor |= {f"{series}.{patch}" for series in ("4.0", "4.1", "4.2", "4.3") for patch in range(6)} - {"4.1.5"}
    assert set(pyspark.specifier.filter(minor)) == set(TRIED)
    for version in (*TRIED, *NOT_WHOLE):
        assert version in page


def test_the_changelog_begins_with_the_version_that_this_is():
    heading = re.search(r"^## \[(.+?)\]( - \d{4}-\d\d-\d\d)?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading is not None
    assert (heading[1], heading[2] is None) == (
        ("Unreleased", True) if ".dev" in kbroker.__version__ else (kbroker.__version__, False)
    )
