"""`python -m tests.simulation`: see the package's docstring.

Each world runs in its own process, forked from this one, so that a seed alone and a seed after others have the same
outcome.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

STEPS_EACH = 40_000


def main() -> int:
    options = _options()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # With this, sets of names have the same order in every run.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    from tests.simulation import machine

    machine.install()
    logging.basicConfig(level=options.log.upper(), format="%(created).3f %(levelname)s %(name)s %(message)s")
    from tests.simulation.world import Outcome

    outcomes: list[Outcome] = []
    done = 0
    seed = options.seed
    while not outcomes or (done < options.steps and not outcomes[-1].violation):
        outcome = Outcome(**_in_child(options, seed))
        outcomes.append(outcome)
        done += outcome.steps
        seed += 1
        if not options.quiet:
            print(_line([outcome]), flush=True)
        if outcome.violation:
            print(*outcome.notes, sep="\n")
            print(f"seed {outcome.seed}: {outcome.violation}")
            print(f"again: python -m tests.simulation --seed {outcome.seed} --each {options.each}", flush=True)
    if len(outcomes) > 1:
        print(_line(outcomes), flush=True)
    return int(any(each.violation for each in outcomes))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1, help="go on with the next seeds until so many are done")
    parser.add_argument("--each", type=int, default=STEPS_EACH, help="steps of one world, before it is mended")
    parser.add_argument("--faults", help="kinds, with commas between; none for none")
    parser.add_argument("--trace", help="a file for what each step did")
    parser.add_argument("--log", default="critical", help="the level of the brokers' own log")
    parser.add_argument("--quiet", action="store_true", help="one line at the end")
    return parser.parse_args()


def _in_child(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Run one world in a forked process, and return its outcome."""
    out, into = os.pipe()
    child = os.fork()
    if child:
        os.close(into)
        with os.fdopen(out, "rb") as file:
            text = file.read()
        status = os.waitpid(child, 0)[1]
        if not text:
            return {"seed": seed, "violation": f"the process ended with {status}"}
        found: dict[str, Any] = json.loads(text)
        return found
    status = 1
    try:
        from tests.simulation.world import run

        with ExitStack() as stack:
            trace: Callable[[str], None] | None = None
            if options.trace:
                file = stack.enter_context(open(options.trace, "w", encoding="utf-8"))

                def trace(line: str) -> None:
                    file.write(line + "\n")

            kinds = options.faults.split(",") if options.faults else None
            outcome = run(seed, options.each, kinds, trace)
        with os.fdopen(into, "wb") as pipe:
            pipe.write(json.dumps(asdict(outcome)).encode())
        status = 0
    except BaseException:
        logging.getLogger(__name__).critical("seed %d", seed, exc_info=True)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _line(outcomes: list[Any]) -> str:
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for each in outcomes:
        faults.update(each.faults)
        counts.update(each.counts)
    which = f"seed {outcomes[0].seed}" if len(outcomes) == 1 else f"seeds {outcomes[0].seed} to {outcomes[-1].seed}"
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
    steps = sum(each.steps for each in outcomes)
    seconds = sum(each.seconds for each in outcomes)
    violations = sum(bool(each.violation) for each in outcomes)
    digest = f", digest {outcomes[0].digest:08x}" if len(outcomes) == 1 else ""
    return (
        f"{which}: {steps} steps, {seconds:.0f} virtual seconds, {sum(faults.values())} faults ({kinds}), "
        f"{counts['acknowledged']} records acknowledged, {counts['read']} read, {counts['transactions']} transactions, "
        f"{counts['commits']} commits in {counts['generations joined']} joined generations, "
        f"{counts['shared records']} records delivered to a share group and {counts['accepted']} accepted, "
        f"{counts['reassignments']} partitions moved, {counts['unclean elections']} unclean elections, "
        f"{counts['topics created again']} topics created again, {sum(each.messages for each in outcomes)} messages, "
        f"{sum(each.batches for each in outcomes)} batches equal, {violations} violations{digest}"
    )


if __name__ == "__main__":
    sys.exit(main())
