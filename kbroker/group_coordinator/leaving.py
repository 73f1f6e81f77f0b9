"""A LeaveGroup in progress, whose list of members may be long.

Owns the reduction of the list to the entries that can be members of the group, and the answer for each entry of the
list. Never decides which members leave: classic/membership.py and consumer/classic_members.py decide.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.group_coordinator.groups.classic_group import ClassicGroup
from kbroker.group_coordinator.groups.share_group import ShareGroup
from kbroker.group_coordinator.groups.store import Group
from kbroker.long_work import turn
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import LeaveGroupResponse, MemberIdentity, MemberResponse

_UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID


class Leaving:
    """The members in a request.

    The group decides about `members`. Before a call of `sift`, these are all members of the request.
    """

    def __init__(self, named: Sequence[MemberIdentity]) -> None:
        self._named = named
        self._places: list[int] | None = None
        self._repeated: dict[int, int] = {}
        self.members: list[MemberIdentity] = list(named)

    async def sift(self, group: Group | None) -> None:
        """Keep only entries that can be members of the group, each once. All other entries are certainly unknown."""
        places: list[int] = []
        first: dict[tuple[str, str | None], int] = {}
        for place, identity in enumerate(self._named):
            if _may_be_member(group, identity):
                key = (identity.member_id, identity.group_instance_id)
                if first.setdefault(key, place) == place:
                    places.append(place)
                else:
                    self._repeated[place] = first[key]
            await turn
        self._places = places
        self.members = [self._named[place] for place in places]

    def failed(self, code: ErrorCode, _message: str | None) -> LeaveGroupResponse:
        """Return the answer for a group that refuses the complete request with one error."""
        if code is not _UNKNOWN:
            return LeaveGroupResponse(error_code=code)
        return LeaveGroupResponse(members=[_answer(identity, code) for identity in self.members])

    async def answer(self, decided: LeaveGroupResponse) -> LeaveGroupResponse:
        """Return the answer for all named members.

        If a member that has left is repeated, its later entries get UNKNOWN_MEMBER_ID.
        """
        if self._places is None or decided.error_code:
            return decided
        by_place = dict(zip(self._places, decided.members, strict=True))
        answers = []
        for place, identity in enumerate(self._named):
            answer = by_place.get(place)
            if answer is None:
                before = by_place.get(self._repeated.get(place, -1))
                code = before.error_code if before is not None else _UNKNOWN
                answer = _answer(identity, code or _UNKNOWN)
            answers.append(answer)
            await turn
        return LeaveGroupResponse(members=answers)


def _answer(identity: MemberIdentity, code: int) -> MemberResponse:
    return MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code)


def _may_be_member(group: Group | None, identity: MemberIdentity) -> bool:
    """Return whether a group knows a member id or an instance id."""
    if group is None or isinstance(group, ShareGroup):
        return False
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if member_id in group.members or (instance_id is not None and instance_id in group.static_members):
        return True
    return isinstance(group, ClassicGroup) and member_id in group.pending_joins
