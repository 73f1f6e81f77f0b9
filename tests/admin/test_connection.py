"""What is asked again, and what is not."""

from __future__ import annotations

import pytest
from kafka.errors import KafkaConnectionError, NodeNotReadyError

from kbroker.admin.connection import patiently


@pytest.mark.parametrize("error", [KafkaConnectionError("111 ECONNREFUSED"), NodeNotReadyError(1)])
def test_what_only_reads_is_asked_again_when_its_broker_is_gone(error):
    answers = iter([error, error, "told"])

    def ask():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently(ask, reads=True) == "told"
    answers = iter([error])
    with pytest.raises(type(error)):
        patiently(ask)
