"""Coordinators' answers about groups, if they are not ready or refuse."""

from __future__ import annotations

import pytest

from kbroker.admin import groups
from kbroker.admin.errors import AdminError
from kbroker.protocol.messages.consumer_groups import ConsumerGroupDescribeResponse, DescribedGroup


def test_a_request_for_a_refused_group_says_why(monkeypatch):
    told = [DescribedGroup(error_code=14), DescribedGroup(error_code=30, error_message="not for you")]
    monkeypatch.setattr(groups, "ask_coordinator", lambda *_: ConsumerGroupDescribeResponse(groups=[told.pop(0)]))
    with pytest.raises(AdminError, match=r"^cannot describe group g: not for you \("):
        groups.describe_consumer_group(None, "g")
    assert told == []


class Loading:
    """An admin client whose coordinator needs a while."""

    def __init__(self) -> None:
        self.errors = ["[Error 14] CoordinatorLoadInProgressError: None", "[Error 16] NotCoordinatorError: None", None]

    def describe_groups(self, names):
        error = self.errors.pop(0)
        return {name: {"error": error, "group_state": "Dead", "members": []} for name in names}

    def list_groups(self, **_):
        return []


def test_a_coordinator_that_is_on_its_way_is_waited_for(monkeypatch):
    monkeypatch.setattr(groups, "describe_consumer_group", lambda _admin, _name: None)
    admin = Loading()
    assert groups.group_of(admin, "g") is None
    assert admin.errors == []
