"""The known assignors by name, and the choice for a group: the default if its members prefer none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbroker.group_coordinator.assignors.range import range_assignor
from kbroker.group_coordinator.assignors.spec import Assign
from kbroker.group_coordinator.assignors.uniform import uniform

ASSIGNORS: dict[str, Assign] = {"uniform": uniform, "range": range_assignor}
_CLASS_PACKAGE = "org.apache.kafka.coordinator.group.assignor."
_CLASSES = {_CLASS_PACKAGE + "UniformAssignor": "uniform", _CLASS_PACKAGE + "RangeAssignor": "range"}


def assignor_names(configured: Iterable[str]) -> tuple[str, ...]:
    """Return the assignors of group.consumer.assignors, where Kafka's two may be class names; raises ValueError."""
    names = tuple(_CLASSES.get(each, each) for each in configured)
    for name in names:
        if name not in ASSIGNORS:
            raise ValueError(f"{name} is no assignor of this broker; it has {' and '.join(ASSIGNORS)}")
    return names


def choose(preferred: str | None, configured: Sequence[str]) -> str:
    """Return the assignor that members prefer, if group.consumer.assignors has it, else the first of these."""
    return configured[0] if preferred is None or preferred not in configured else preferred
