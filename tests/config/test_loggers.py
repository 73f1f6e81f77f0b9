"""Levels of loggers by Kafka's names; the exchanges with Apache Kafka are in compat_tests/wire."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from kbroker.config.loggers import ALIASES, KAFKA_LOGGERS, check_levels, levels, parse_level, set_level, set_levels
from kbroker.config.model import InvalidConfig
from kbroker.config.operations import Op

NAME = "kbroker.config.loggers"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    touched = [logging.getLogger(name) for name in ("", NAME, "kazoo.client", *KAFKA_LOGGERS, *ALIASES.values())]
    before = [each.level for each in touched]
    yield
    for each, level in zip(touched, before, strict=True):
        each.setLevel(level)


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("TRACE", 5),
        ("DEBUG", logging.DEBUG),
        ("INFO", logging.INFO),
        ("WARN", logging.WARNING),
        ("ERROR", logging.ERROR),
        ("FATAL", logging.CRITICAL),
    ],
)
def test_levels_have_kafkas_names(name: str, level: int) -> None:
    set_levels([("root", Op.SET, name), (NAME, Op.DELETE, None)])
    assert logging.root.level == level
    assert levels()["root"] == levels()[NAME] == name


def test_a_level_between_two_is_told_as_the_one_that_lets_through_no_more() -> None:
    logging.root.setLevel(25)
    assert levels()["root"] == "WARN"
    logging.root.setLevel(60)
    assert levels()["root"] == "FATAL"


def test_a_level_is_set_and_inherited_again() -> None:
    set_levels([("root", Op.SET, "ERROR"), (NAME, Op.SET, "DEBUG")])
    assert levels()[NAME] == "DEBUG"
    set_levels([(NAME, Op.DELETE, None)])
    assert levels()[NAME] == "ERROR"


def test_only_this_packages_loggers_are_listed() -> None:
    logging.getLogger("kbroker_of_somebody_else")
    others = {name for name in levels() if name.partition(".")[0] != "kbroker"}
    assert others == {"root", *KAFKA_LOGGERS, *ALIASES}
    with pytest.raises(InvalidConfig, match="Logger kbroker_of_somebody_else does not exist!"):
        check_levels([("kbroker_of_somebody_else", Op.SET, "INFO")])


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("kafka.controller", "kbroker.controller.cluster.topics"),
        ("org.apache.kafka.controller", "kbroker.controller.controller"),
        ("kafka.log.LogCleaner", "kbroker.log.cleaner.manager"),
        ("org.apache.kafka.storage.internals.log.LogCleaner", "kbroker.log.cleaner.worker_pool"),
        ("kafka", "kbroker.group_coordinator.shard"),
        ("org.apache.kafka", "kbroker.network.server"),
    ],
)
def test_kafkas_names_stand_for_the_loggers_that_do_the_same(name: str, module: str) -> None:
    assert find_spec(module) is not None
    check_levels([(name, Op.SET, "TRACE")])
    set_levels([("root", Op.SET, "ERROR"), (name, Op.SET, "TRACE")])
    assert levels()[name] == levels()[ALIASES[name]] == "TRACE"
    assert logging.getLogger(module).getEffectiveLevel() == 5
    set_levels([(name, Op.DELETE, None)])
    assert levels()[name] == levels()[ALIASES[name]] == "ERROR"


@pytest.mark.parametrize("name", KAFKA_LOGGERS)
def test_the_loggers_of_kafkas_names_have_levels_of_their_own(name: str) -> None:
    check_levels([(name, Op.SET, "FATAL")])
    set_levels([(name, Op.SET, "FATAL")])
    assert logging.getLogger(name).level == logging.CRITICAL
    assert levels()[name] == "FATAL"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("DEBUG", ("root", "DEBUG")),
        ("warning", ("root", "WARN")),
        ("root=Fatal", ("root", "FATAL")),
        ("kafka.request.logger=debug", ("kafka.request.logger", "DEBUG")),
        ("kafka.controller=CRITICAL", ("kafka.controller", "FATAL")),
        ("kbroker.audit=OFF", None),
        ("kbroker.pipeline=INFO", ("kbroker.pipeline", "INFO")),  # a module that this process has not imported
        ("kazoo.client=TRACE", ("kazoo.client", "TRACE")),
        ("LOUD", None),
        ("=INFO", None),
        ("kafka.network.Processor=INFO", None),
        ("kbroker.nothing=INFO", None),
        ("kbroker.nothing.at.all=INFO", None),
        ("", None),
    ],
)
def test_levels_of_the_command_line(text: str, meant: tuple[str, str] | None) -> None:
    if meant is None:
        with pytest.raises(ValueError, match=r"is none of DEBUG, ERROR, FATAL|there is no logger"):
            parse_level(text)
        return
    assert parse_level(text) == meant
    set_level(*meant)
    name, level = meant
    assert _effective(name) == level


def _effective(name: str) -> str:
    known = levels()
    if name in known:
        return known[name]
    number = logging.getLogger(name).getEffectiveLevel()
    return "TRACE" if number == 5 else logging.getLevelName(number)
