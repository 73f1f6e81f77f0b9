"""One declared argument of a change, a fault or a question: its name, kind, meaning and bounds.

The command line, the console, the control API and the test kit derive options, forms and checks from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class WrongValue(ValueError):  # noqa: N818 - an outcome
    """A value is invalid; the error's text is a line for people."""


@dataclass(frozen=True, slots=True)
class Field:
    """One named argument. `kind` is a key of the table in control/values.py; `least` and `most` bound numbers."""

    name: str
    kind: str
    meaning: str
    required: bool = False
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    form: str = ""
    """The placeholder for the value in help texts, like TOPIC[:P,...]."""

    def check(self, value: Any) -> None:
        """Raise WrongValue for a value of this kind that the field does not accept."""
        if self.choices and value not in self.choices:
            raise WrongValue(f"{self.name} is one of {', '.join(self.choices)}, not {value[:100]!r}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.least is not None and value < self.least:
                raise WrongValue(f"{self.name} is at least {self.least:g}, not {value}")
            if self.most is not None and value > self.most:
                raise WrongValue(f"{self.name} is at most {self.most:g}, not {value}")
