"""The packages of a release: their contents, and that an installation works. No network is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import kbroker
from tests.package.smoke import Installed

ROOT = Path(kbroker.__file__).parents[1]
DATA = {
    "kbroker/console/static/console.css",
    "kbroker/console/static/console.js",
    "kbroker/console/static/icon.svg",
    *(f"kbroker/console/templates/{each.name}" for each in (ROOT / "kbroker/console/templates").iterdir()),
    "kbroker/py.typed",
    "kbroker/config/broker_keys.txt",
    "kbroker/config/cluster_keys.txt",
    "kbroker/config/group_keys.txt",
    "kbroker/config/topic_keys.txt",
    "kbroker/launcher/zookeeper.xml",
    "kbroker/config/client_metrics_keys.txt",
    "kbroker/metrics/names.txt",
}
SOURCES = {
    f"kbroker/log/{name}" for name in ("_record_scan.c", "_record_scan.h", "_record_delivery.c", "_record_headers.c")
}
COMPILED = "kbroker/log/_record_scan.abi3.so"

pytestmark = pytest.mark.long


def build(source: Path, into: Path, *targets: str) -> list[Path]:
    """Build from a directory, with the build backend of this environment: none is fetched."""
    options = [word for target in targets for word in ("-t", target)]
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(into), *options]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    return sorted(into.iterdir())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the wheel and the sdist of this checkout."""
    sdist, wheel = sorted(
        build(ROOT, tmp_path_factory.mktemp("dist"), "wheel", "sdist"), key=lambda each: each.suffix == ".whl"
    )
    assert sdist.name == f"kbroker-{kbroker.__version__}.tar.gz"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    tag = f"cp311-abi3-{platform}" if shutil.which("cc") else "py3-none-any"
    assert wheel.name == f"kbroker-{kbroker.__version__}-{tag}.whl"
    return wheel, sdist


def sources() -> set[str]:
    """Return the files of the package in this checkout, without others in its folders."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "kbroker"],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    if listed.returncode:  # no checkout: the directory itself
        return {str(each.relative_to(ROOT)) for each in (ROOT / "kbroker").rglob("*.*") if each.suffix != ".pyc"}
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def test_the_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    wheel, _ = built
    names = names_in(wheel)
    manual = {name for name in names if ".data/data/share/man/man1/" in name}
    assert {Path(name).name for name in manual} == {each.name for each in (ROOT / "man").iterdir()}
    package = {name for name in names - manual if ".dist-info/" not in name}
    compiled = {COMPILED} if shutil.which("cc") else set()
    assert package == sources() - SOURCES | compiled
    assert {name for name in package if not name.endswith(".py")} == DATA | compiled
    info = {name.partition(".dist-info/")[2] for name in names - manual - package}
    assert info == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}


def test_what_the_wheel_says_of_itself(built: tuple[Path, Path]) -> None:
    wheel, _ = built
    info = f"kbroker-{kbroker.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        told = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        entries = archive.read(f"{info}/entry_points.txt").decode().split("\n")
    assert (told["Name"], told["Version"], told["License-Expression"]) == ("kbroker", kbroker.__version__, "Apache-2.0")
    assert told["Requires-Python"] == ">=3.11"
    assert told["Description-Content-Type"] == "text/markdown"
    assert told.get_payload() == (ROOT / "README.md").read_text()
    assert set(told.get_all("Provides-Extra") or ()) >= {"control", "gssapi", "perf", "spark"}
    assert "kbroker = kbroker.cli.entry:main" in entries
    assert "kbroker = kbroker.pytest_plugin" in entries


def test_the_sdist_makes_the_same_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = built
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [unpacked] = tmp_path.iterdir()
    tops = {each.name for each in unpacked.iterdir()}
    assert tops == {
        ".gitignore",
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "SECURITY.md",
        "docs",
        "hatch_build.py",
        "kbroker",
        "man",
        "pyproject.toml",
    }
    [again] = build(unpacked, tmp_path / "dist", "wheel")
    assert names_in(again) == names_in(wheel)


def test_without_a_compiler_the_package_is_built_all_the_same(tmp_path: Path) -> None:
    """The package is then pure Python: the build warns, and the broker says so once when it starts."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path), "-t", "wheel"]
    environment = {**os.environ, "CC": "/nonexistent/cc"}
    done = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120, env=environment
    )  # fmt: skip
    assert "built without its compiled record scan" in done.stdout + done.stderr
    [wheel] = tmp_path.iterdir()
    assert wheel.name == f"kbroker-{kbroker.__version__}-py3-none-any.whl"
    assert COMPILED not in names_in(wheel)


def test_an_installed_wheel_works(built: tuple[Path, Path], tmp_path: Path) -> None:
    """It is used with this environment's dependencies, and before this environment's own kbroker, a checkout."""
    target, work = tmp_path / "installed", tmp_path / "work"
    work.mkdir()
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*command, str(built[0])], check=True, capture_output=True, timeout=120)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    installed = Installed(Path(sys.executable), work, environment)
    assert installed.location() == target / "kbroker"
    assert installed.version() == kbroker.__version__
    installed.try_broker()
    installed.try_plugin()
