"""DeleteTopics (key 20): delete topics, by name or, from v6, by id."""

from kbroker.protocol.schema import Uuid, f, i16, i32, message, struct


@struct
class DeleteTopicState:
    name: str | None = f("6+", nullable="6+", default=None)
    topic_id: Uuid = f("6+")


@message(key=20, versions="1-6", flexible="4+")
class DeleteTopicsRequest:
    topics: list[DeleteTopicState] = f("6+")
    topic_names: list[str] = f("0-5")
    timeout_ms: i32 = f()


@struct
class DeletableTopicResult:
    name: str | None = f(nullable="6+")
    topic_id: Uuid = f("6+")
    error_code: i16 = f()
    error_message: str | None = f("5+", nullable="5+", default=None)


@message(key=20, versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    throttle_time_ms: i32 = f("1+")
    responses: list[DeletableTopicResult] = f()
