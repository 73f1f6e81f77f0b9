"""Hints about the installation of kbroker's optional parts.

Owns the text of every hint; never checks what is installed.
"""

from __future__ import annotations

import os
import sys


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra of pyproject.toml.

    The command needs a checkout: no package index has kbroker.

    If the virtual environment is not activated, the command names its Python, because the shell's pip belongs to
    another Python.
    """
    is_usual = sys.prefix == sys.base_prefix or os.environ.get("VIRTUAL_ENV") == sys.prefix
    pip = "pip" if is_usual else f"{sys.executable} -m pip"
    return f"{pip} install '.[{extra}]' in a checkout of kbroker"
