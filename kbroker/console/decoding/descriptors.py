"""Values of Protobuf messages, by a descriptor set from protoc.

Owns which messages exist. Never loads code: descriptors are data, from which the classes are made.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Final

from kbroker.admin.errors import WrongInput
from kbroker.extras import how_to_install

_MOST_MESSAGES: Final = 100


def decoders(data: bytes) -> dict[str, Callable[[bytes], Any]]:
    """Return decoders of values by the full names of messages; raises WrongInput."""
    if importlib.util.find_spec("google.protobuf") is None:
        raise WrongInput(f"Protobuf by descriptors needs protobuf: {how_to_install('schemas')}")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(data)
    except DecodeError:
        raise WrongInput("this is not a descriptor set") from None
    pool = descriptor_pool.DescriptorPool()
    found: dict[str, Callable[[bytes], Any]] = {}
    try:
        for file in files.file:
            pool.Add(file)
        for file in files.file:
            for descriptor in pool.FindFileByName(file.name).message_types_by_name.values():
                found[descriptor.full_name] = _decoder(message_factory.GetMessageClass(descriptor))
    except (TypeError, KeyError) as error:
        raise WrongInput(f"this descriptor set is incomplete (--include_imports): {str(error)[:200]}") from None
    if len(found) > _MOST_MESSAGES:
        raise WrongInput(f"a descriptor set has at most {_MOST_MESSAGES} messages")
    return found


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message import DecodeError

        message = kind()
        try:
            message.ParseFromString(data)
            return MessageToDict(message, preserving_proto_field_name=True)
        except (DecodeError, ValueError, TypeError, RecursionError):
            raise ValueError("does not match this Protobuf message") from None

    return decode
