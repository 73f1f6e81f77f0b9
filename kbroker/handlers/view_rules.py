"""The rules for views: the rights to create and change a view, its configs, and the requests that it refuses.

Owns the checks before a view is stored. A view has two configs and no others, because it stores nothing. Its creator
needs the right to read the source: otherwise a client with the right to create topics could read all topics. Readers of
the view need no right on the source. Never stores anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.cluster_state import VIEW_FILTER, VIEW_SOURCE, TopicState, view_of
from kbroker.filters.filtering import compile_filter
from kbroker.filters.tokens import FilterError
from kbroker.handlers.registry import RequestContext
from kbroker.handlers.services import Services
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.topics import CreatableTopic
from kbroker.protocol.wire import new_uuid
from kbroker.security.authorizer.acls import Operation, ResourceType
from kbroker.topic_names import INTERNAL_TOPICS

MOST_VIEWS: Final = 2000
"""The maximum number of views of one topic.

A change of the topic's leaders also changes the leaders of all its views, in one step of some ms.
"""
_OWN: Final = frozenset({VIEW_SOURCE, VIEW_FILTER})


def is_view(services: Services, topic: str) -> bool:
    """Whether a topic is a view."""
    return services.views.topic(topic) is not None


def read_only(topic: str) -> str:
    """Return the text that refuses a change of a view."""
    return f"Topic '{topic}' is a view of another topic (config {VIEW_SOURCE}): it stores nothing and can only be read."


def plan_view(ctx: RequestContext, topic: CreatableTopic, configs: Mapping[str, str]) -> TopicState:
    """Return the plan of a requested view.

    Raises ApiError. The caller has checked each config, and that the name is free.
    """
    name, source = topic.name, configs.get(VIEW_SOURCE, "")
    if not source:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{VIEW_FILTER} needs {VIEW_SOURCE}, the topic that the view shows")
    _check_configs(configs)
    if name in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"The broker's own topic '{name}' cannot be a view.")
    _check_reads(ctx, source)
    state = ctx.services.controller.decided
    known = state.topics.get(source)
    if known is None or name == source:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{VIEW_SOURCE}: the topic '{source}' does not exist")
    if known.source is not None:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, f"{VIEW_SOURCE}: '{source}' is itself a view; there are no views of views"
        )
    if state.views.get(name):
        text = f"{VIEW_SOURCE}: topic '{name}' has views itself, such as '{min(state.views[name])}'"
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{text}; there are no views of views")
    if len(state.views.get(source, ())) >= MOST_VIEWS:
        raise ApiError(ErrorCode.POLICY_VIOLATION, f"'{source}' has {MOST_VIEWS} views, and cannot have more")
    count, factor = len(known.partitions), len(known.partitions[0].replicas)
    if topic.assignments or topic.num_partitions not in (-1, count):
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"A view has the {count} partition(s) of its source '{source}'.")
    if topic.replication_factor not in (-1, factor):
        text = f"A view has the {factor} replica(s) of its source '{source}'."
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    return view_of(TopicState(name, new_uuid(), (), dict(configs)), known)


def check_change(ctx: RequestContext, topic: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise ApiError if these configs may not replace a topic's configs.

    A topic cannot become a view, a view cannot change its source, and only a view may have a filter. The new configs of
    a view must be valid. If they differ from the old configs, the client must have the right to read the source.
    """
    source = before.get(VIEW_SOURCE, "")
    if after.get(VIEW_SOURCE, "") != source:
        what = "cannot become a view" if not source else "is a view of its source for ever"
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{VIEW_SOURCE}: topic '{topic}' {what}: create another topic")
    if not source:
        if after.get(VIEW_FILTER):
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{VIEW_FILTER}: topic '{topic}' is no view")
        return
    _check_configs(after)
    if after != before:
        _check_reads(ctx, source)


def _check_configs(configs: Mapping[str, str]) -> None:
    others = sorted(configs.keys() - _OWN)
    if others:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"a view stores nothing, so it cannot have {', '.join(others)}")
    text = configs.get(VIEW_FILTER, "")
    if not text:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"a view needs {VIEW_FILTER}; * selects all records")
    try:
        compile_filter(text)
    except FilterError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{VIEW_FILTER}: {error}") from error


def _check_reads(ctx: RequestContext, source: str) -> None:
    """Raise ApiError unless the client may read the source."""
    if ctx.services.authorizer is None:
        return
    # the guard of the request has set the rights; a request of the test kit has no rights here, and may do everything
    rights = ctx.rights
    if rights is not None and not rights.may(Operation.READ, ResourceType.TOPIC, source):
        text = f"a view needs the right to read its source '{source}'"
        raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)
