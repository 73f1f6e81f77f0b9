"""Makes a change that the table `kbroker.changes` declares, in any Kafka cluster, and describes refusals in words.

Owns the choice of the broker that receives a change's requests, and the time for which these requests are retried.
Never prints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from kafka.errors import BrokerResponseError, KafkaError

from kbroker.admin.connection import patiently
from kbroker.admin.did_you_mean import no_such_group, no_such_topic
from kbroker.admin.errors import AdminError, Refusal, WrongInput, code_error, error_text
from kbroker.admin.groups import listed_groups
from kbroker.admin.own_request import ask_controller, ask_coordinator, coordinators_of
from kbroker.admin.visible_everywhere import wait_for_deletion, wait_for_topics
from kbroker.changes import Change, Failure, Unanswered, Values
from kbroker.fields import WrongValue
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.topics import DeleteTopicsRequest

Answer = TypeVar("Answer")
_MISSING: Final = {"topic": no_such_topic, "group": no_such_group}


class _Cluster:
    """Sends the requests of a change through an admin client.

    After the first answer, a part of the change may already be made. From then on a lost connection raises Unanswered,
    so that the caller's report contains every name.
    """

    def __init__(self, admin: Any) -> None:
        self._admin = admin
        self._is_begun = False

    def ask_coordinator(self, group: str, request: Any, kind: type[Answer], code: Callable[[Answer], int]) -> Answer:
        def ask() -> Answer:
            answer = ask_coordinator(self._admin, group, request, kind)
            if answer is None:
                api = type(request).__name__.removesuffix("Request")
                raise AdminError(f"this cluster does not serve {api}")
            return answer

        return self._answered(ask, code)

    def by_coordinator(self, groups: Sequence[str]) -> list[Sequence[str]]:
        found: dict[int, list[str]] = {}
        alone: list[Sequence[str]] = []
        coordinators = coordinators_of(self._admin, groups)
        for each in groups:
            node = coordinators.get(each)
            if node is None:
                alone.append([each])  # the request for this group finds the coordinator, or the reason for its absence
            else:
                found.setdefault(node, []).append(each)
        return [*found.values(), *alone]

    def ask_controller(self, request: Any, kind: type[Answer], code: Callable[[Answer], int]) -> Answer:
        if isinstance(request, DeleteTopicsRequest):  # Apache Kafka before 2.8 reads another field
            request.topic_names = [str(each.name) for each in request.topics]
        return self._answered(lambda: ask_controller(self._admin, request, kind), code)

    def type_of(self, group: str) -> str:
        listed = listed_groups(self._admin).get(group)
        return "" if listed is None else str(listed["type"]).lower()

    def partitions_of(self, topic: str) -> int:
        (found,) = self._admin.describe_topics([topic])
        return 0 if found["error_code"] else len(found["partitions"])

    def wait_for_partitions(self, topics: Sequence[str], count: int) -> None:
        with contextlib.suppress(KafkaError):  # the topics are already changed, whether or not the wait succeeds
            if count:
                wait_for_topics(self._admin, topics, count)
            else:
                wait_for_deletion(self._admin, topics)

    def _answered(self, ask: Callable[[], Answer], code: Callable[[Answer], int]) -> Answer:
        """Send a request, and repeat it while the answer has a retriable error; return the answer.

        Raises Unanswered if the error stays, or if the connection is lost after the first request was answered.
        """

        def once() -> Answer:
            answer = ask()
            error = code_error(code(answer))
            if error is not None and error.retriable and code(answer) != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise error
            return answer

        try:
            answer = patiently(once)
        except BrokerResponseError as error:
            raise Unanswered(error.errno, error.description) from error
        except KafkaError as error:
            if self._is_begun:
                raise Unanswered(ErrorCode.UNKNOWN_SERVER_ERROR, f"no broker answered: {error}") from error
            raise
        self._is_begun = True
        return answer


def carry_out(
    admin: Any, change: Change, names: Sequence[str], values: Values, *, if_exists: bool = False
) -> tuple[list[str], list[Refusal]]:
    """Make a change; return the names of the changed entities, and the refusals. Raises AdminError, WrongInput.

    With `if_exists` an entity that does not exist is in neither list. A name that is given twice counts once.
    """
    names = list(dict.fromkeys(names))
    if not names:
        return [], []
    try:
        failures = change.make(_Cluster(admin), names, values)
    except WrongValue as error:
        raise WrongInput(str(error)) from None
    except Unanswered as error:
        failures = [Failure(each, error.code, message=str(error)) for each in names]
    failed = {each.name for each in failures}
    told = [each for each in failures if not (if_exists and each.missing == change.of)]
    missing = {(each.missing, each.about): _MISSING[each.missing](admin, each.about) for each in told if each.missing}
    refusals = [_refusal(change, each, values, missing.get((each.missing, each.about))) for each in told]
    return [each for each in names if each not in failed], list(dict.fromkeys(refusals))


def _refusal(change: Change, failure: Failure, values: Values, missing: str | None) -> Refusal:
    error: Any = code_error(failure.code)
    if missing is not None:
        return Refusal(error.message, missing)
    doing = change.text(change.doing, failure.name, values)
    about = f"{failure.about}: " if failure.about else ""
    return Refusal(error.message, f"cannot {doing}: {about}{error_text(error, failure.message)}")
