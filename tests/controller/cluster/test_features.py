"""Which features a cluster's controller finalizes, automatically and by request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import pytest

from kbroker.controller.cluster.features import initial, supported_by
from kbroker.controller.features import (
    GROUP_VERSION,
    NEW_CLUSTER,
    REGISTERED,
    SHARE_VERSION,
    TRANSACTION_VERSION,
    FeatureUpdate,
    Others,
)
from kbroker.controller.tree.znode import Create, Delete, SetData
from kbroker.controller.znodes import BROKER_IDS, FEATURE, Endpoint, Features, Registration, read
from kbroker.protocol.errors import ApiError, ErrorCode

from .world import World, run, until

UP, SAFE = 1, 2
KBROKER: Final = supported_by(Registration((), {}, features=REGISTERED))
JAVA: Final = supported_by(Registration((), {}))
OLDER: Final = supported_by(Registration((), {}, features={TRANSACTION_VERSION: {"min_version": 1, "max_version": 1}}))
WITHOUT_SHARE_GROUPS: Final = {name: KBROKER[name] for name in KBROKER if name != SHARE_VERSION}


@pytest.mark.parametrize(
    ("brokers", "is_new", "levels"),
    [
        (Others({1: KBROKER}), True, NEW_CLUSTER),
        (Others({1: KBROKER, 2: KBROKER}), True, NEW_CLUSTER),
        (Others({1: KBROKER, 2: JAVA}), True, {}),
        (Others({1: KBROKER, 2: OLDER}), True, {}),
        (Others({1: KBROKER, 2: WITHOUT_SHARE_GROUPS}), True, {}),
        (Others({1: KBROKER}, {2}), True, {}),
        (Others({1: KBROKER}), False, {}),
    ],
)
def test_the_levels_of_a_cluster_without_any(brokers: Others, is_new: bool, levels: Mapping[str, int]) -> None:
    assert initial(brokers, is_new=is_new) == levels


def in_world(scenario: Callable[[World], Awaitable[None]], kbroker: tuple[int, ...]) -> None:
    """Run a scenario in a world in which some running brokers are kbroker's."""

    async def whole() -> None:
        async with World() as world:
            world.features.update(dict.fromkeys(kbroker, REGISTERED))
            await scenario(world)

    run(whole())


def finalized(world: World) -> Mapping[str, int]:
    return read(FEATURE, world.data(FEATURE), Features.decode).levels


async def change(world: World, name: str, level: int, kind: int, *, validate_only: bool = False) -> int:
    controller = world.active.controller
    changed = await controller.update_features([FeatureUpdate(name, level, kind)], validate_only=validate_only)
    await world.settle()
    return changed


async def refused(world: World, name: str, level: int, kind: int = UP) -> str:
    with pytest.raises(ApiError) as caught:
        await change(world, name, level, kind)
    assert caught.value.code is ErrorCode.INVALID_UPDATE_VERSION
    return caught.value.message or ""


def test_a_new_cluster_of_kbroker_has_all_in_kafkas_form() -> None:
    async def scenario(world: World) -> None:
        await world.start(1, 2)
        assert json.loads(world.data(FEATURE)) == {
            "features": {
                "group.version": {"max_version_level": 1},
                "share.version": {"max_version_level": 2},
                "streams.version": {"max_version_level": 1},
                "transaction.version": {"max_version_level": 2},
            },
            "version": 2,
            "status": 1,
        }
        assert json.loads(world.data(f"{BROKER_IDS}/1"))["features"] == {
            "group.version": {"min_version": 1, "max_version": 1},
            "share.version": {"min_version": 1, "max_version": 2},
            "streams.version": {"min_version": 1, "max_version": 1},
            "transaction.version": {"min_version": 1, "max_version": 2},
        }

    in_world(scenario, (1, 2))


def test_beside_a_java_broker_there_are_none_and_later_neither() -> None:
    async def scenario(world: World) -> None:
        # Broker 2 is registered before the first controller is elected, as if both had started together.
        path, java = (
            f"{BROKER_IDS}/2",
            Registration((Endpoint("PLAINTEXT", "localhost", 1),), {"PLAINTEXT": "PLAINTEXT"}),
        )
        await world.tool.commit([Create(path, java.encode())])
        await world.start_unsettled(1)
        await until(lambda: world.exists(FEATURE) and world.nodes[1].controller.is_active)
        assert finalized(world) == {}
        said = await refused(world, TRANSACTION_VERSION, 2)
        assert "Broker 2 does not support this feature." in said
        await world.tool.commit([Delete(path)])
        await world.settle()
        await world.kill(1)
        await world.start(1)
        assert finalized(world) == {}, "only who asks for it gets it"
        assert await change(world, TRANSACTION_VERSION, 2, UP, validate_only=True) == 0
        assert finalized(world) == {}
        assert await change(world, TRANSACTION_VERSION, 2, UP) == 1
        assert finalized(world) == {TRANSACTION_VERSION: 2}

    in_world(scenario, (1,))


def test_a_cluster_that_has_topics_is_no_new_one() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1]})
        await world.start(1)
        assert finalized(world) == {}

    in_world(scenario, (1,))


def test_nothing_is_raised_for_a_broker_with_replicas_that_does_not_run() -> None:
    async def scenario(world: World) -> None:
        await world.tool.commit([Create(FEATURE, Features({}).encode())])
        await world.start(1, 2)
        await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        await world.kill(2)
        await world.settle()
        said = await refused(world, GROUP_VERSION, 1)
        assert "The features of broker 2 are not known" in said
        await world.start(2)
        await change(world, GROUP_VERSION, 1, UP)
        assert finalized(world) == {GROUP_VERSION: 1}

    in_world(scenario, (1, 2))


def test_what_was_lowered_stays_so_whoever_is_the_controller() -> None:
    async def scenario(world: World) -> None:
        await world.start(1, 2)
        said = await refused(world, TRANSACTION_VERSION, 0)
        assert "Can't downgrade" in said
        await change(world, TRANSACTION_VERSION, 1, SAFE)
        assert finalized(world) == {**NEW_CLUSTER, TRANSACTION_VERSION: 1}
        for name in NEW_CLUSTER:
            await change(world, name, 0, SAFE)
        assert finalized(world) == {}, "a level of 0 has no number in ZooKeeper"
        await world.kill(1)
        await world.settle()
        assert world.active.number == 2
        assert finalized(world) == {}
        assert await change(world, GROUP_VERSION, 0, SAFE) == 5, "what is so already is no change"

    in_world(scenario, (1, 2))


def test_a_broker_that_lacks_what_is_finalized_is_not_taken_for_live_until_that_is_lowered() -> None:
    async def scenario(world: World) -> None:
        await world.start(1)
        await world.start_unsettled(3)
        await world.settle()
        assert set(world.context.brokers) == {1}
        for name in NEW_CLUSTER:
            await change(world, name, 0, SAFE)
        assert set(world.context.brokers) == {1, 3}
        assert "Broker 3 does not support this feature." in await refused(world, GROUP_VERSION, 1)

    in_world(scenario, (1,))


def test_a_broker_that_is_not_taken_for_live_is_watched_once() -> None:
    async def scenario(world: World) -> None:
        await world.start(1, 2)
        await world.start_unsettled(3)
        await world.tool.commit([Create(f"{BROKER_IDS}/7", b"nonsense")])
        for _ in range(3):
            await world.kill(2)
            await world.settle()
            await world.start(2)
        assert set(world.context.brokers) == {1, 2}
        watches = world.active.tree.tree._data_watches
        assert {number: len(watches[f"{BROKER_IDS}/{number}"]) for number in (1, 2, 3, 7)} == dict.fromkeys(
            (1, 2, 3, 7), 1
        )
        registered = world.nodes[3].registration().encode()
        for features in ({}, REGISTERED):
            world.features[3] = features
            await world.tool.commit([SetData(f"{BROKER_IDS}/3", world.nodes[3].registration().encode())])
            await world.settle()
        assert set(world.context.brokers) == {1, 2, 3}
        assert world.nodes[3].registration().encode() != registered

    in_world(scenario, (1, 2))


def test_a_change_goes_on_what_stands_and_is_made_once() -> None:
    async def scenario(world: World) -> None:
        await world.start(1)
        await world.tool.commit([SetData(FEATURE, Features({TRANSACTION_VERSION: 1}).encode())])
        world.active.tree.loses_answers = 1
        assert await change(world, GROUP_VERSION, 1, UP) == 2
        assert finalized(world) == {TRANSACTION_VERSION: 1, GROUP_VERSION: 1}
        await world.tool.commit([Delete(FEATURE)])
        assert await change(world, GROUP_VERSION, 1, UP) == 1
        assert finalized(world) == {GROUP_VERSION: 1}

    in_world(scenario, (1,))


def test_only_features_of_a_cluster_can_be_changed_and_only_by_its_controller() -> None:
    async def scenario(world: World) -> None:
        await world.start(1, 2)
        assert "does not support this feature" in await refused(world, "metadata.version", 20)
        assert "only supports versions 0-2" in await refused(world, TRANSACTION_VERSION, 3)
        with pytest.raises(ApiError) as caught:
            await world.nodes[2].controller.update_features([], validate_only=True)
        assert caught.value.code is ErrorCode.NOT_CONTROLLER
        await asyncio.sleep(0)
        assert finalized(world) == NEW_CLUSTER

    in_world(scenario, (1, 2))


def test_what_is_disabled_is_enabled_without_levels() -> None:
    async def scenario(world: World) -> None:
        await world.tool.commit([Create(FEATURE, Features({TRANSACTION_VERSION: 2}, enabled=False).encode())])
        await world.start(1)
        assert read(FEATURE, world.data(FEATURE), Features.decode) == Features({})

    in_world(scenario, (1,))
