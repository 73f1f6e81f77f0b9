"""Faults over HTTP. Owns the operations; known_faults.py has the faults and their fields."""

from __future__ import annotations

from typing import Any, Final

from kbroker.control.known_faults import FIELDS
from kbroker.control.operations import Control, Operation, until
from kbroker.control.values import TIMEOUT, Refused, Values
from kbroker.fields import Field


async def _wait(control: Control, values: Values) -> dict[str, Any]:
    fault, hits = control.known.fault(values["id"]), values.get("hits", 1)
    if not await until(lambda: fault.hits >= hits, values.get("timeout_ms"), control.ending):
        raise Refused(504, f"fault {values['id']} was met {fault.hits} times in the time given, not {hits} times")
    return control.known.as_json(values["id"])


OPERATIONS: Final = (
    Operation(
        "GET", "/faults", "listFaults", "The faults that were set with this API, each with its number of hits.",
        "Faults", work=lambda control, _: {"faults": control.known.all()},
    ),
    Operation(
        "POST", "/faults", "addFault", "Set a fault.", "Fault", status=201, body=FIELDS,
        work=lambda control, values: control.known.add(values),
    ),
    Operation(
        "DELETE", "/faults", "clearFaults", "Remove all faults; the answer has their final state.",
        "Faults", work=lambda control, _: {"faults": control.known.clear()},
    ),
    Operation(
        "GET", "/faults/{id:int}", "getFault", "One fault.", "Fault",
        work=lambda control, values: control.known.as_json(values["id"]),
    ),
    Operation(
        "DELETE", "/faults/{id:int}", "removeFault", "Remove a fault; the answer tells how it ended.", "Fault",
        work=lambda control, values: control.known.remove(values["id"]),
    ),
    Operation(
        "GET", "/faults/{id:int}/wait", "waitForFault",
        "Wait until so many requests have met a fault; 504 when they have not in time.", "Fault", wait=_wait,
        query=(Field("hits", "integer", "The number of requests to wait for; the default is one.", least=0), TIMEOUT),
    ),
)  # fmt: skip
