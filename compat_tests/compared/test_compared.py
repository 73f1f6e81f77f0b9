"""docs/testing-compared.md says about brokers for tests what the trials show."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat_tests.compared.of_kfake import built
from compat_tests.compared.rdkafka_mock import library
from compat_tests.compared.table import NAMES, expected, tried
from compat_tests.compared.target import Lacking
from compat_tests.compared.trials import TRIALS, Trial
from tests.tries import FORM

_NEEDED: dict[str, Callable[[], object]] = {"kfake": built, "librdkafka's mock": library}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.what)
def test_the_page_is_true(trial: Trial, name: str) -> None:
    if FORM != "long":
        pytest.skip("brokers are tried beside each other only with KBROKER_TESTS=long")
    if name in _NEEDED:
        try:
            _NEEDED[name]()
        except Lacking as error:
            pytest.skip(str(error))
    said = expected()[trial.what][name]
    found = tried(trial, name)
    assert found.partition(":")[0] == said.partition(":")[0].partition(" ")[0], (
        f"the page says {said!r}, now: {found!r}"
    )


def test_the_page_has_every_trial() -> None:
    assert list(expected()) == [each.what for each in TRIALS]
