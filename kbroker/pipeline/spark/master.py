"""Where a standalone cluster's master is, and how this machine is called on the way there.

Owns the look before Spark starts: Spark itself tries for a minute and then says it in pages. Never speaks to a master.
"""

from __future__ import annotations

import re
import socket
from typing import Final

from kbroker.pipeline.errors import PipelineError

_URL: Final = re.compile(r"spark://([^/]+)")
_PATIENCE_S: Final = 10.0


def address_towards(master: str) -> str | None:
    """Return the address of this machine that the master of `spark://HOST:PORT[,HOST:PORT]` sees, as Spark writes it.

    None for another kind of master, or a name that Spark will refuse. Raises PipelineError when nobody answers.
    """
    found = _URL.fullmatch(master)
    places = [place.rpartition(":") for place in found[1].split(",")] if found else []
    if not places or not all(host and port.isdecimal() for host, _, port in places):
        return None
    reasons = []
    for host, _, port in places:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_S) as connection:
                own = str(connection.getsockname()[0])
                return f"[{own}]" if ":" in own else own
        except TimeoutError:
            reasons.append(f"{host}:{port}: no answer")
        except (OSError, UnicodeError, OverflowError) as err:
            reasons.append(f"{host}:{port}: {(getattr(err, 'strerror', None) or str(err)).lower()}")
    raise PipelineError(f"no Spark master answers at {'; '.join(reasons)}")
