"""Build step of the package: compiles its one extension, which scans records, searches and rewrites their headers.

Where there is no compiler, or it fails, the package is built without it, and says so; kbroker then reads records in
Python, with the same verdicts and more time. The extension uses the stable ABI: one wheel serves all Pythons
from 3.11 on.

Why C: a record of 20 to 500 bytes takes 0.031 us with it, 0.88 us with the walk in Python, and 0.125 us with that walk
compiled by mypyc, which needs a build of 1.4 MB for each Python.
"""

from __future__ import annotations

import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = tuple(f"kbroker/log/_record_{part}.c" for part in ("scan", "delivery", "headers"))
MODULE = "kbroker.log._record_scan"


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the extension to a wheel, or puts it beside its source for an editable install."""

    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell hatchling what came of it."""
        if self.target_name != "wheel" or sys.implementation.name != "cpython":
            return
        editable = version == "editable"
        self._scratch = tempfile.TemporaryDirectory(prefix="kbroker-build-")
        try:
            built = compile_extension(Path(self.root), Path(self._scratch.name), in_place=editable)
        except Exception as error:  # noqa: BLE001 - whatever a compiler or its driver raises: the package works without
            self.app.display_warning(f"kbroker is built without its compiled record scan: {error}")
            return
        if not editable:
            build_data["force_include"][str(built)] = f"{MODULE.replace('.', '/')}.abi3.so"
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"cp311-abi3-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what the compiler wrote, which is in the wheel by now."""
        if self._scratch is not None:
            self._scratch.cleanup()


def compile_extension(root: Path, scratch: Path, *, in_place: bool) -> Path:
    """Return the path of the compiled module; raises whatever the compiler's driver does."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    extension = Extension(MODULE, [str(root / each) for each in SOURCES], py_limited_api=True)
    command = build_ext(Distribution({"name": "kbroker", "ext_modules": [extension]}))
    command.build_temp = str(scratch)
    command.build_lib = str(root if in_place else scratch)
    command.force = True
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath(MODULE))
