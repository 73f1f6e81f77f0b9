"""The table in docs/testing-compared.md: tried, read, and rewritten by `python -m compat_tests.compared.table`.

Owns its form, and the settings with which each trial's brokers start. Never tries anything itself.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from compat_tests.compared.of_kbroker import ALLOWED, OfKbroker, OfKbrokerCluster
from compat_tests.compared.of_kfake import OfKfake
from compat_tests.compared.rdkafka_mock import RdkafkaMock
from compat_tests.compared.target import Lacking, Target
from compat_tests.compared.trials import TRIALS, Trial
from kbroker.embed_security import Certificates

PAGE: Final = Path(__file__).parents[2] / "docs" / "testing-compared.md"
NAMES: Final = ("kbroker", "kfake", "librdkafka's mock")
_BEGIN, _END = "<!-- tried: begin -->\n", "<!-- tried: end -->\n"
_PLAIN: Final = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}


def _kbroker(trial: Trial) -> Target:
    started = trial.started
    if "brokers" in started:
        return OfKbrokerCluster()
    if "users" in started:
        return OfKbroker(users={"alice": "secret"})
    if "acls" in started:
        return OfKbroker(config={"super.users": "User:ANONYMOUS"}, acls=[ALLOWED])
    return OfKbroker(keeps="keeps" in started, tls="tls" in started)


def _kfake(trial: Trial) -> Target:
    started = trial.started
    if "tls" in started:
        made = Certificates("127.0.0.1")
        atexit.register(made.remove)
        both = made.settings["ssl.keystore.location"]
        return OfKfake("-cert", both, "-key", both, settings={"security.protocol": "SSL", "ssl.ca.location": made.ca})
    if "users" in started or "acls" in started:
        login = {**_PLAIN, "sasl.password": "secret"}
        return OfKfake("-sasl", *(["-acls"] if "acls" in started else []), settings=login)
    return OfKfake(*(["-brokers", "3"] if "brokers" in started else []), keeps="keeps" in started)


def _mock(trial: Trial) -> Target:
    for each in ("users", "acls", "tls"):
        if each in trial.started:
            raise Lacking("its listeners have no such option")
    return RdkafkaMock(3 if "brokers" in trial.started else 1)


MAKERS: Final[dict[str, Callable[[Trial], Target]]] = dict(zip(NAMES, (_kbroker, _kfake, _mock), strict=True))


def tried(trial: Trial, name: str) -> str:
    """Return "yes", or "no" with what happened instead."""
    try:
        with MAKERS[name](trial) as target:
            trial.run(target)
    except Lacking as error:
        return f"no: {error}"
    except Exception as error:  # noqa: BLE001 - whatever a client says of it
        return f"no: {_short(error)}"
    return "yes"


def _short(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    for mark in ('str="', 'str=\\"'):
        if mark in text:
            text = text.partition(mark)[2].partition('"')[0]
    return text.replace("|", "/")[:110]


def expected() -> dict[str, dict[str, str]]:
    """Return what the page says about each trial, for each broker."""
    found: dict[str, dict[str, str]] = {}
    for line in PAGE.read_text().partition(_BEGIN)[2].partition(_END)[0].splitlines()[2:]:
        cells = [each.strip() for each in line.strip().strip("|").split(" | ")]
        found[cells[0]] = dict(zip(NAMES, cells[1:], strict=True))
    return found


def main(only: list[str]) -> None:
    """Try all features, or those whose name contains one of the words, and write the page."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    page = expected()
    lines = [f"| | {' | '.join(NAMES)} |", "|---|---|---|---|"]
    for trial in TRIALS:
        cells = page.get(trial.what)
        if cells is None or not only or any(word in trial.what for word in only):
            cells = {name: tried(trial, name) for name in NAMES}
            print(trial.what, cells, flush=True)
        lines.append(f"| {trial.what} | {' | '.join(cells[name] for name in NAMES)} |")
    PAGE.write_text(before + _BEGIN + "\n".join(lines) + "\n" + _END + rest.partition(_END)[2])


if __name__ == "__main__":
    main(sys.argv[1:])
