"""What has to be typed once more before something is destroyed, and what is said where it was not.

Owns the comparison. Which actions ask, and by which field, their pages say (Action.confirms); the field of a form is
drawn by templates/parts.html.
"""

from __future__ import annotations

from kbroker.admin.errors import WrongInput
from kbroker.console.values import Values


def check_typed(values: Values, name_field: str) -> None:
    """Raise WrongInput unless the name was typed that this destroys."""
    if values.text("confirm") != values.needed(name_field, "the name"):
        raise WrongInput(f"type {values.text(name_field)} to confirm")
