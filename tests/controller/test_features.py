"""Feature levels: which changes are allowed, and that they are stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cluster_state import ClusterState
from kbroker.controller.features import (
    BOOTSTRAP,
    GROUP_VERSION,
    METADATA_VERSION,
    SHARE_VERSION,
    STREAMS_VERSION,
    TRANSACTION_VERSION,
    FeatureUpdate,
    updated,
)
from kbroker.long_work import whole
from kbroker.protocol.errors import ApiError, ErrorCode

from .test_controller import controller_in

UP, SAFE, UNSAFE = 1, 2, 3


@pytest.mark.parametrize(
    ("current", "level", "kind", "allowed"),
    [
        (2, 2, UP, True),
        (2, 1, UP, False),
        (2, 1, SAFE, True),
        (2, 0, UNSAFE, True),
        (1, 2, UP, True),
        (1, 2, SAFE, False),
        (2, 3, UP, False),
        (2, -1, SAFE, False),
        (2, 1, 0, False),
        (2, 1, 9, False),
    ],
)
def test_which_levels_may_be_set(current: int, level: int, kind: int, allowed: bool) -> None:
    levels = {TRANSACTION_VERSION: current}
    update = FeatureUpdate(TRANSACTION_VERSION, level, kind)
    if allowed:
        assert updated(levels, [update], 1) == {TRANSACTION_VERSION: level}
        return
    with pytest.raises(ApiError) as caught:
        updated(levels, [update], 1)
    assert caught.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert "for feature transaction.version." in (caught.value.message or "")


@pytest.mark.parametrize("level", [0, 1])
def test_a_feature_that_is_not_there(level: int) -> None:
    with pytest.raises(ApiError):
        updated({}, [FeatureUpdate("no.such", level, UP)], 1)


def test_levels_are_kept_and_all_are_changed_or_none(tmp_path: Path) -> None:
    directory = str(tmp_path)
    controller = controller_in(directory)
    assert controller.state.features == BOOTSTRAP
    assert BOOTSTRAP == {
        GROUP_VERSION: 1,
        METADATA_VERSION: 33,
        SHARE_VERSION: 2,
        STREAMS_VERSION: 1,
        TRANSACTION_VERSION: 2,
    }
    assert controller.state.features_epoch == 0
    lowered = {**BOOTSTRAP, TRANSACTION_VERSION: 1}
    seen: list[ClusterState] = []
    controller.subscribe(lambda _old, new: seen.append(new))
    lower = FeatureUpdate(TRANSACTION_VERSION, 1, SAFE)
    whole(controller.update_features([lower], validate_only=True))
    with pytest.raises(ApiError):
        whole(controller.update_features([lower, FeatureUpdate("no.such", 1, UP)], validate_only=False))
    assert seen == []
    whole(controller.update_features([lower], validate_only=False))
    assert [(state.features, state.features_epoch) for state in seen] == [(lowered, 1)]
    again = controller_in(directory)
    assert (again.state.features, again.state.features_epoch) == (lowered, 1)


@pytest.mark.parametrize(("kind", "why"), [(SAFE, "might delete metadata"), (UNSAFE, "not supported in this version")])
def test_the_metadata_version_cannot_be_lowered(kind: int, why: str) -> None:
    assert updated(BOOTSTRAP, [FeatureUpdate(METADATA_VERSION, 33, UP)], 1) == BOOTSTRAP
    with pytest.raises(ApiError, match=r"downgrade from 33 to 29\. .*" + why) as caught:
        updated(BOOTSTRAP, [FeatureUpdate(METADATA_VERSION, 29, kind)], 1)
    assert caught.value.code is ErrorCode.INVALID_UPDATE_VERSION
