"""Carries out a change of the table `kbroker.changes` on any Kafka, and puts refusals into words.

Owns which broker gets its requests, and for how long they are sent again. Never prints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from kafka.errors import KafkaError

from kbroker.admin.connection import patiently
from kbroker.admin.did_you_mean import no_such_group, no_such_topic
from kbroker.admin.errors import AdminError, Refusal, WrongInput, code_error, error_text
from kbroker.admin.own_request import ask_controller, ask_coordinator
from kbroker.admin.visible_everywhere import wait_for_deletion, wait_for_topics
from kbroker.changes import NO_CONTROLLER, NO_COORDINATOR, Change, Failure, Values
from kbroker.protocol.messages.topics import DeleteTopicsRequest

Answer = TypeVar("Answer")
_MISSING: Final = {"topic": no_such_topic, "group": no_such_group}


class _Cluster:
    """An admin client as the sender of a change's requests."""

    def __init__(self, admin: Any) -> None:
        self._admin = admin

    def ask_coordinator(self, group: str, request: Any, kind: type[Answer], code: Callable[[Answer], int]) -> Answer:
        def ask() -> Answer:
            answer = ask_coordinator(self._admin, group, request, kind)
            if answer is None:
                api = type(request).__name__.removesuffix("Request")
                raise AdminError(f"this cluster does not serve {api}")
            if code(answer) in NO_COORDINATOR:
                raise code_error(code(answer))  # type: ignore[misc]  # a class of the client
            return answer

        return patiently(ask)

    def ask_controller(self, request: Any, kind: type[Answer], code: Callable[[Answer], int]) -> Answer:
        if isinstance(request, DeleteTopicsRequest):  # Apache Kafka before 2.8 reads the names of another field
            request.topic_names = [str(each.name) for each in request.topics]

        def ask() -> Answer:
            answer = ask_controller(self._admin, request, kind)
            if code(answer) in NO_CONTROLLER:
                raise code_error(code(answer))  # type: ignore[misc]  # a class of the client
            return answer

        return patiently(ask)

    def partitions_of(self, topic: str) -> int:
        (found,) = self._admin.describe_topics([topic])
        return 0 if found["error_code"] else len(found["partitions"])

    def wait_for_partitions(self, topics: Sequence[str], count: int) -> None:
        with contextlib.suppress(KafkaError):  # they are changed in any case
            if count:
                wait_for_topics(self._admin, topics, count)
            else:
                wait_for_deletion(self._admin, topics)


def carry_out(
    admin: Any, change: Change, names: Sequence[str], values: Values, *, if_exists: bool = False
) -> tuple[list[str], list[Refusal]]:
    """Make a change; return the names of the changed entities, and the refusals. Raises AdminError, WrongInput.

    With `if_exists` an entity that does not exist is neither.
    """
    if not names:
        return [], []
    try:
        failures = change.make(_Cluster(admin), names, values)
    except ValueError as error:
        raise WrongInput(str(error)) from None
    failed = {each.name for each in failures}
    told = [each for each in failures if not (if_exists and each.missing == change.of)]
    return [each for each in names if each not in failed], [_refusal(admin, change, each) for each in told]


def _refusal(admin: Any, change: Change, failure: Failure) -> Refusal:
    error: Any = code_error(failure.code)
    if failure.missing:
        return Refusal(error.message, _MISSING[failure.missing](admin, failure.about))
    text = f"cannot {change.name} {failure.about}: {error_text(error, failure.message)}"
    return Refusal(error.message, text)
