"""CRC-32C (Castagnoli) of bytes: the checksum of record batches, of producer snapshots and of the metadata journal.

Owns the source of `crc32c(data, value=0)`: the extension module of the crc32c package, which uses the hardware if
possible. An import of the package itself would read the package's version from the metadata of installed packages. This
took 20 ms and 3 MB of each start (of 200 ms and 43 MB), so the extension is loaded without the package.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Final

_PACKAGE: Final = "crc32c"
_EXTENSION: Final = "crc32c._crc32c"


def _extension() -> ModuleType:
    loaded = sys.modules.get(_EXTENSION)
    if loaded is not None:
        return loaded
    package = find_spec(_PACKAGE)
    spec = package and PathFinder.find_spec(_EXTENSION, package.submodule_search_locations)
    if not spec or not spec.loader:
        # The package is zipped or frozen, or a later version is built differently: import it by its documented name.
        import crc32c

        return crc32c
    extension = module_from_spec(spec)
    spec.loader.exec_module(extension)
    return sys.modules.setdefault(_EXTENSION, extension)


if TYPE_CHECKING:
    from crc32c import crc32c
else:
    crc32c = _extension().crc32c

__all__ = ["crc32c"]
