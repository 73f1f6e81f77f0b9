"""The headers before every request and response.

The client id is never compact, so that any broker can read it (RequestHeader.json).
"""

from kbroker.protocol.schema import f, i16, i32, message


@message(key=-1, versions="1-2", flexible="2+")
class RequestHeader:
    request_api_key: i16 = f()
    request_api_version: i16 = f()
    correlation_id: i32 = f()
    client_id: str | None = f("1+", nullable="1+", flexible="none")


@message(key=-1, versions="0-1", flexible="1+")
class ResponseHeader:
    correlation_id: i32 = f()
