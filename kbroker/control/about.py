"""Which requests to select: the declarations that the API and `kbroker requests` share.

Owns the fields. Never looks at a request: requests.py does.
"""

from __future__ import annotations

from typing import Final

from kbroker.control.values import Field

USUAL_LIMIT: Final = 100
ABOUT: Final = (
    Field("api", "string", 'Kafka\'s name of what was asked, as "Produce".'),
    Field("topic", "string", "Requests that name this topic."),
    Field("group", "string", "Requests that name this group."),
    Field("transactional_id", "string", "Requests that name this transactional id."),
    Field("client_id", "string", "Requests of this client."),
)
LIMIT: Final = Field(
    "limit", "integer", f"No more than the newest so many; without, {USUAL_LIMIT}.", least=0, most=1000
)
