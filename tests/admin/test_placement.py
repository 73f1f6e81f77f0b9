"""The placement of replicas, computed without a broker."""

from __future__ import annotations

from kbroker.admin.placement import drain_plan


def test_where_replicas_go() -> None:
    replicas = {("t", 0): [1, 2], ("t", 1): [2, 3], ("u", 0): [3, 4]}
    targets, stuck = drain_plan(2, replicas, {1: "a", 2: "b", 3: "b", 4: "a"})
    assert targets == {("t", 0): [1, 3], ("t", 1): [1, 3]}, "in another rack than the other replica"
    assert not stuck
    targets, stuck = drain_plan(2, {("t", 0): [1, 2]}, {1: None, 2: None})
    assert (targets, stuck) == ({}, [("t", 0)])
