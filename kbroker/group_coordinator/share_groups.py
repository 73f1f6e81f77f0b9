"""The APIs of share groups, for which the group coordinator needs the share coordinator.

Owns the order of the steps: a decision of the shard, the share coordinator's answer for each share partition, and the
decision that records the result. Each request runs as a separate task, which continues even if the client's connection
ends, so that no step is skipped. Never decides about a group: heartbeat.py and state_partitions.py decide.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from kbroker.coordination.runtime import Runtime
from kbroker.coordination.shard import Outcome, answerable
from kbroker.group_coordinator.consumer.heartbeat import distinct_topics
from kbroker.group_coordinator.describe import describe_share_group
from kbroker.group_coordinator.shard import GroupShard
from kbroker.group_coordinator.share.heartbeat import Heartbeat, validate
from kbroker.group_coordinator.share.state_partitions import Deletion, Initialization, OffsetsToDelete, ShareTopics
from kbroker.group_coordinator.topics import Topics
from kbroker.long_work import awaited, every, in_slices, turn
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.protocol.messages import share_groups as messages
from kbroker.protocol.messages.groups import DeletableGroupResult
from kbroker.protocol.records import wrap
from kbroker.protocol.wire import ZERO_UUID, uuid_text
from kbroker.share_coordinator.persister import Done, Persister, Summary

log = logging.getLogger(__name__)

R = TypeVar("R")
A = TypeVar("A", Done, Summary)
LatestOffset = tuple[ErrorCode, int]
FEW_TOPICS = 100
_AT_ONCE = 100
"""The maximum number of concurrent questions to the share coordinator. The questions are sent in a few requests."""
_UNEXPECTED = "The server experienced an unexpected error when processing the request."
_NO_GROUP_ID = "The group id is invalid."
_UNKNOWN_PARTITION = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@dataclass(frozen=True, slots=True)
class Sharing:
    """The parts of the broker that share groups use.

    For each of a topic's partitions, `latest_offsets` returns an error, or the offset after the last visible record.
    `forget` notifies the leader of a share partition that the partition's state was deleted, if this broker is the
    leader. The leader then reads the state again.
    """

    persister: Persister
    latest_offsets: Callable[[str, Iterable[int]], Awaitable[Mapping[int, LatestOffset]]]
    forget: Callable[[str, bytes, int], None]


class ShareGroups:
    """All share groups that this broker coordinates. `most_bytes` returns the maximum batch size of a partition."""

    def __init__(
        self,
        runtime: Runtime[GroupShard],
        partition_for: Callable[[str], int],
        topics: Topics,
        sharing: Sharing,
        assignor: str,
        most_bytes: Callable[[int], int],
    ) -> None:
        self._runtime = runtime
        self._partition_for = partition_for
        self._topics = topics
        self._sharing = sharing
        self._assignor = assignor
        self._most_bytes = most_bytes
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def close(self) -> None:
        """Cancel the remaining steps; the next heartbeat or request begins them again."""
        for task in list(self._tasks):
            task.cancel()

    # -- tasks

    def _begin(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Start work as a task, which continues even if no caller waits for it."""
        task = asyncio.get_running_loop().create_task(in_slices(work))
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the work on a share group failed", exc_info=error)

    async def _apart(self, work: Coroutine[Any, Any, R], failed: Callable[[ErrorCode], R]) -> R:
        """Return the result of work. The work continues even if the caller stops waiting for it."""
        task = self._begin(work)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task.add_done_callback(partial(_resolve, ended))
        await ended
        if task.cancelled():
            return failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return failed(ErrorCode.UNKNOWN_SERVER_ERROR) if task.exception() is not None else task.result()

    async def _note(self, group_id: str, decide: Callable[[GroupShard], Outcome]) -> ErrorCode:
        """Write the result that the share coordinator returned; return the error of the write."""

        def decided(shard: GroupShard, now_ms: int) -> Outcome:
            out = decide(shard.at(now_ms))
            out.reply = ErrorCode.NONE
            return out

        answer: Any = self._runtime.run(self._partition_for(group_id), decided, lambda code, _message: code)
        code: ErrorCode = await awaited(answer)
        return code

    # -- membership

    async def heartbeat(
        self, request: messages.ShareGroupHeartbeatRequest, client_id: str, client_host: str
    ) -> messages.ShareGroupHeartbeatResponse:
        """Handle a ShareGroupHeartbeat. New share partitions of the group are initialised after the answer."""
        partition = self._partition_for(request.group_id)

        def failed(code: ErrorCode, message: str | None) -> messages.ShareGroupHeartbeatResponse:
            text = message or DEFAULT_MESSAGES.get(code)
            return messages.ShareGroupHeartbeatResponse(error_code=code, error_message=text)

        try:
            validate(request)
        except ApiError as err:
            return failed(err.code, err.message)
        names = request.subscribed_topic_names
        if names is not None and len(names) > FEW_TOPICS:
            distinct = await distinct_topics(names, self._most_bytes(partition))
            if distinct is None:
                return failed(answerable(ErrorCode.MESSAGE_TOO_LARGE), None)
            request.subscribed_topic_names = distinct
            await self._topics.prepared(distinct)
        answer: Any = self._runtime.run(
            partition,
            lambda shard, now: shard.at(now).share_heartbeats.heartbeat(request, client_id, client_host, now),
            failed,
        )
        reply: Heartbeat | messages.ShareGroupHeartbeatResponse = await awaited(answer)
        if not isinstance(reply, Heartbeat):
            return reply
        if reply.initialization is not None:
            self._begin(self._initialize(reply.initialization))
        return reply.response

    async def _initialize(self, wanted: Initialization) -> dict[bytes, dict[int, Done]]:
        """Let the share coordinator create the state of share partitions; record the result and return the answers."""
        answers = await self._ask_to_initialize(wanted)
        topics = {topic_id: list(of_topic) for topic_id, of_topic in answers.items()}
        failed = _first_error(answers)
        if failed is None:
            code = await self._note(
                wanted.group_id, lambda shard: shard.share_state.initialized(wanted.group_id, topics)
            )
            if code is ErrorCode.NONE:
                return answers
            log.warning("group %s: initialised share partitions were not recorded: %s", wanted.group_id, code.name)
        else:
            log.warning("group %s: share partitions were not initialised: %s", wanted.group_id, failed.error_code.name)
        await self._note(wanted.group_id, lambda shard: shard.share_state.not_initialized(wanted.group_id, topics))
        return answers

    async def _ask_to_initialize(self, wanted: Initialization) -> dict[bytes, dict[int, Done]]:
        persister = self._sharing.persister
        answers: dict[bytes, dict[int, Done]] = {}
        for topic_id, offsets in wanted.offsets.items():
            answers[topic_id] = await _all(
                list(offsets),
                lambda index, topic_id=topic_id, offsets=offsets: persister.initialize(  # type: ignore[misc]
                    wanted.group_id, topic_id, index, wanted.state_epoch, offsets[index]
                ),
            )
        return answers

    async def describe(self, group_ids: Iterable[str]) -> list[messages.DescribedGroup]:
        """Handle a ShareGroupDescribe: return an answer for each group, in order."""
        return await every(group_ids, self._describe)

    async def _describe(self, group_id: str) -> messages.DescribedGroup:
        if not group_id:
            return messages.DescribedGroup(error_code=ErrorCode.INVALID_GROUP_ID)
        try:
            shard = self._runtime.shard(self._partition_for(group_id))
            return await describe_share_group(shard.groups, group_id, self._assignor, self._topics)
        except ApiError as err:
            return messages.DescribedGroup(group_id=group_id, error_code=err.code, error_message=err.message)

    # -- offsets

    async def describe_offsets(
        self, asked: messages.DescribeShareGroupOffsetsRequestGroup
    ) -> messages.DescribeShareGroupOffsetsResponseGroup:
        """Answer one group of a DescribeShareGroupOffsets.

        If the request names no topics, include all initialised partitions. A group that does not exist has no state, so
        its offsets are -1. As in Kafka, a negative partition number causes an error for the complete group.
        """
        group_id = asked.group_id
        answer = messages.DescribeShareGroupOffsetsResponseGroup(group_id=group_id)
        wanted: dict[str, list[int]] = {}
        if asked.topics is None:
            try:
                shard = self._runtime.shard(self._partition_for(group_id))
            except ApiError as err:
                answer.error_code, answer.error_message = err.code, err.message or DEFAULT_MESSAGES.get(err.code)
                return answer
            group = shard.groups.share(group_id)
            for topic_id, used in {} if group is None else group.initialized.items():
                name = self._topics.name_of(topic_id)
                if name is not None:
                    wanted[name] = sorted(used.partitions)
                await turn
        else:
            for topic in asked.topics:
                wanted[topic.topic_name] = topic.partitions
                if min(topic.partitions, default=0) < 0 and self._topics.id_of(topic.topic_name) is not None:
                    answer.error_code, answer.error_message = ErrorCode.UNKNOWN_SERVER_ERROR, _UNEXPECTED
                    return answer
                await turn
        for name, partitions in wanted.items():
            answer.topics.append(await self._describe_topic(group_id, name, partitions))
            await turn
        return answer

    async def _describe_topic(
        self, group_id: str, name: str, partitions: Iterable[int]
    ) -> messages.DescribeShareGroupOffsetsResponseTopic:
        topic_id = self._topics.id_of(name)
        answer = messages.DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id or ZERO_UUID)
        asked = list(partitions)
        persister = self._sharing.persister
        found: Mapping[int, Summary] = {}
        if topic_id is not None:
            found = await _all(asked, lambda index: persister.read_summary(group_id, topic_id, index, -1))
        counted = [index for index, summary in found.items() if _has_lag(summary)]
        latest = await self._sharing.latest_offsets(name, counted) if counted else {}
        for index in asked:
            summary = found.get(index, Summary(_UNKNOWN_PARTITION))
            answer.partitions.append(_described(index, summary, latest.get(index)))
            await turn
        return answer

    async def alter_offsets(
        self, request: messages.AlterShareGroupOffsetsRequest
    ) -> messages.AlterShareGroupOffsetsResponse:
        """Handle an AlterShareGroupOffsets for a group without members; create the group if it does not exist."""
        return await self._apart(
            self._alter(request), lambda code: messages.AlterShareGroupOffsetsResponse(error_code=code)
        )

    async def _alter(self, request: messages.AlterShareGroupOffsetsRequest) -> messages.AlterShareGroupOffsetsResponse:
        group_id = request.group_id
        if not group_id:
            return messages.AlterShareGroupOffsetsResponse(
                error_code=ErrorCode.INVALID_GROUP_ID, error_message=_NO_GROUP_ID
            )
        offsets: dict[bytes, dict[int, int]] = {}
        negative: str | None = None
        for topic in request.topics:
            topic_id = self._topics.id_of(topic.topic_name)
            if topic_id is None:
                continue
            count = self._topics.count_of(topic_id)
            for each in topic.partitions:
                if each.partition_index < 0:
                    negative = negative or f"{group_id} {uuid_text(topic_id)} {each.partition_index}"
                elif each.partition_index < count:
                    offsets.setdefault(topic_id, {})[each.partition_index] = each.start_offset
                await turn
            await turn
        if negative is not None:
            offsets.clear()
        answer: Any = self._runtime.run(
            self._partition_for(group_id),
            lambda shard, now: shard.at(now).share_state.alter(group_id, offsets),
            lambda code, message: messages.AlterShareGroupOffsetsResponse(
                error_code=code, error_message=message or DEFAULT_MESSAGES.get(code)
            ),
        )
        decided: Initialization | messages.AlterShareGroupOffsetsResponse = await awaited(answer)
        if not isinstance(decided, Initialization):
            return decided
        if negative is not None:
            text = f"Initialize share group parameters has invalid partitionId - {negative}"
            return messages.AlterShareGroupOffsetsResponse(
                error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=text
            )
        done = await self._initialize(decided) if decided.offsets else {}
        for topic_id, of_topic in done.items():
            for index in of_topic:
                self._sharing.forget(group_id, topic_id, index)
                await turn
        return messages.AlterShareGroupOffsetsResponse(
            responses=await every(request.topics, lambda topic: self._altered(topic, done))
        )

    async def _altered(
        self, topic: messages.AlterShareGroupOffsetsRequestTopic, done: Mapping[bytes, Mapping[int, Done]]
    ) -> messages.AlterShareGroupOffsetsResponseTopic:
        topic_id = self._topics.id_of(topic.topic_name)
        of_topic = {} if topic_id is None else done.get(topic_id, {})
        answer = messages.AlterShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name, topic_id=topic_id or ZERO_UUID
        )
        unknown = Done(_UNKNOWN_PARTITION, DEFAULT_MESSAGES[_UNKNOWN_PARTITION])
        for each in topic.partitions:
            index = each.partition_index
            code, text = of_topic.get(index, unknown)
            answer.partitions.append(messages.AlterShareGroupOffsetsResponsePartition(index, code, text))
            await turn
        return answer

    async def delete_offsets(
        self, request: messages.DeleteShareGroupOffsetsRequest
    ) -> messages.DeleteShareGroupOffsetsResponse:
        """Handle a DeleteShareGroupOffsets for a group without members."""
        return await self._apart(
            self._delete_offsets(request), lambda code: messages.DeleteShareGroupOffsetsResponse(error_code=code)
        )

    async def _delete_offsets(
        self, request: messages.DeleteShareGroupOffsetsRequest
    ) -> messages.DeleteShareGroupOffsetsResponse:
        group_id = request.group_id
        if not group_id:
            return messages.DeleteShareGroupOffsetsResponse(
                error_code=ErrorCode.INVALID_GROUP_ID, error_message=_NO_GROUP_ID
            )
        names: dict[str, None] = {}
        for topic in request.topics:
            names[topic.topic_name] = None
            await turn
        answer: Any = self._runtime.run(
            self._partition_for(group_id),
            lambda shard, now: shard.at(now).share_state.delete_offsets(group_id, names),
            lambda code, message: messages.DeleteShareGroupOffsetsResponse(
                error_code=code, error_message=message or DEFAULT_MESSAGES.get(code)
            ),
        )
        decided: OffsetsToDelete | messages.DeleteShareGroupOffsetsResponse = await awaited(answer)
        if not isinstance(decided, OffsetsToDelete):
            return decided
        results: list[messages.DeleteShareGroupOffsetsResponseTopic] = []
        failed: list[messages.DeleteShareGroupOffsetsResponseTopic] = []
        deleted = []
        for topic_id, failure in (await self._delete(group_id, decided.topics)).items():
            if failure is None:
                deleted.append(topic_id)
            (results if failure is None else failed).append(self._offsets_deleted(topic_id, failure))
            await turn
        if deleted:
            code = await self._note(group_id, lambda shard: shard.share_state.offsets_deleted(group_id, deleted))
            if code:
                return messages.DeleteShareGroupOffsetsResponse(error_code=code)
        return messages.DeleteShareGroupOffsetsResponse(responses=[*results, *decided.refused, *failed])

    def _offsets_deleted(self, topic_id: bytes, failure: Done | None) -> messages.DeleteShareGroupOffsetsResponseTopic:
        name = self._topics.name_of(topic_id) or ""
        answer = messages.DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id)
        if failure is not None:
            answer.error_code = failure.error_code
            answer.error_message = DEFAULT_MESSAGES.get(failure.error_code, failure.message)
        return answer

    # -- deletion

    async def delete(
        self,
        partition: int,
        group_ids: list[str],
        delete_groups: Callable[[list[str]], Any],
    ) -> list[DeletableGroupResult]:
        """Handle a DeleteGroups for one partition's groups: delete states of share groups first, then all groups."""

        def failed(code: ErrorCode) -> list[DeletableGroupResult]:
            return [DeletableGroupResult(group_id=each, error_code=code) for each in group_ids]

        async def deleted() -> list[DeletableGroupResult]:
            refused = await self._delete_states(partition, group_ids)
            results = [DeletableGroupResult(group_id=each, error_code=code) for each, code in refused.items()]
            left = [each for each in group_ids if each not in refused]
            if left:
                results += await awaited(delete_groups(left))
            return results

        return await self._apart(deleted(), failed)

    async def _delete_states(self, partition: int, group_ids: list[str]) -> dict[str, ErrorCode]:
        """Delete the states of the share groups among these groups; return the groups whose deletion failed."""
        answer: Any = self._runtime.run(
            partition,
            lambda shard, now: shard.at(now).share_state.delete_groups(group_ids),
            lambda code, _message: dict.fromkeys(group_ids, code),
        )
        found: dict[str, Deletion | ErrorCode] = await awaited(answer)
        failed: dict[str, ErrorCode] = {}
        for group_id, wanted in found.items():
            if not isinstance(wanted, Deletion):
                failed[group_id] = wanted
                continue
            for failure in (await self._delete(group_id, wanted.topics)).values():
                if failure is not None:
                    failed[group_id] = failure.error_code
            await turn
        return failed

    async def _delete(self, group_id: str, topics: ShareTopics) -> dict[bytes, Done | None]:
        """Delete states at the share coordinator and at the leaders; return the first error of each topic."""
        failures: dict[bytes, Done | None] = {}
        persister = self._sharing.persister
        for topic_id, indexes in topics.items():
            failures[topic_id] = None
            done = await _all(
                indexes,
                lambda index, topic_id=topic_id: persister.delete(group_id, topic_id, index),  # type: ignore[misc]
            )
            for index, answer in done.items():
                if not answer.error_code:
                    self._sharing.forget(group_id, topic_id, index)
                elif failures[topic_id] is None:
                    failures[topic_id] = answer
                await turn
        return failures


async def _all(indexes: Sequence[int], ask: Callable[[int], Coroutine[Any, Any, A]]) -> dict[int, A]:
    """Return the share coordinator's answer for each of a topic's partitions.

    The questions are asked concurrently, so that one request contains many of them.
    """
    answers: dict[int, A] = {}
    for first in range(0, len(indexes), _AT_ONCE):
        some = indexes[first : first + _AT_ONCE]
        answers.update(zip(some, await asyncio.gather(*map(ask, some)), strict=True))
        await turn
    return answers


def _has_lag(found: Summary) -> bool:
    return not found.error_code and found.start_offset != -1 and found.delivery_complete_count != -1


def _described(
    index: int, found: Summary, latest: LatestOffset | None
) -> messages.DescribeShareGroupOffsetsResponsePartition:
    """Return a partition's start offset and lag. As in Kafka, the offset is -1 on an error of the share coordinator."""
    described = messages.DescribeShareGroupOffsetsResponsePartition(partition_index=index, start_offset=-1)
    if found.error_code:
        return described
    if latest is None:
        described.start_offset, described.leader_epoch = found.start_offset, found.leader_epoch
        return described
    code, offset = latest
    if code:
        described.start_offset = 0
        described.error_code, described.error_message = code, DEFAULT_MESSAGES.get(code)
        return described
    described.start_offset, described.leader_epoch = found.start_offset, found.leader_epoch
    described.lag = wrap(offset - found.start_offset - found.delivery_complete_count)
    return described


def _resolve(ended: asyncio.Future[None], _task: object) -> None:
    if not ended.done():
        ended.set_result(None)


def _first_error(answers: Mapping[bytes, Mapping[int, Done]]) -> Done | None:
    return next((done for of_topic in answers.values() for done in of_topic.values() if done.error_code), None)
