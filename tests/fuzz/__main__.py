"""Fuzz the readers of what others wrote: `make fuzz SECONDS=3600 SEED=1`.

Each target runs in a process of its own, guided by coverage if atheris is installed, else at
random. Exits with 1 if one crashed; the inputs lie in the folder that is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from labctl.base.wording import counted

LARGEST = 64 << 10
"""Bytes of an input."""
HANGING_S = 300.0
"""Seconds beyond a target's share after which it hangs: a busy host takes long to load labctl."""


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    asked.add_argument("--seconds", type=float, default=3600, help="of all targets together")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--target", action="append", help="only this one; may be repeated")
    asked.add_argument("--out", type=Path, default=Path(".fuzz"), help="folder of the crashes")
    asked.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.one:
        with instrumented():
            from tests.fuzz import targets, trying
        with targets.scratch() as place, trying.limits():
            tried = trying.Tried(given.target[0], targets.TARGETS[given.target[0]], place)
            fuzz(tried, given.seconds, given.seed, given.out)
        return 0
    return campaign(given)


def campaign(given: argparse.Namespace) -> int:
    """Run each target for its share of the time; return 1 if one crashed."""
    from tests.fuzz.targets import TARGETS

    names = given.target or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        sys.exit(f"no target {', '.join(unknown)}; there are: {', '.join(TARGETS)}")
    guided = find_spec("atheris") is not None
    how = "guided by coverage" if guided else "at random, because atheris is not installed"
    click.echo(f"{counted(len(names), 'target')}, inputs altered {how}")
    crashed = 0
    for name in names:
        words = ["--one", "--target", name, "--seed", str(given.seed), "--out", str(given.out)]
        share = given.seconds / len(names)
        argv = [sys.executable, "-m", "tests.fuzz", *words, "--seconds", str(share)]
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, check=False, timeout=share + HANGING_S
            )
            said = json.loads(done.stdout.strip().splitlines()[-1])
        except subprocess.TimeoutExpired:
            crashed += 1
            click.echo(f"{name:26} hangs")
            continue
        except (ValueError, IndexError):
            crashed += 1
            click.echo(f"{name:26} the process ended: {done.stderr.strip()[-300:]}")
            continue
        crashed += bool(said["crashes"])
        click.echo(
            f"{name:26} {said['inputs']:>9,} inputs, {said['accepted']:>9,} accepted, "
            f"slowest {said['slowest_s']:.2f} s"
            + "".join(f"\n    {one}" for one in said["crashes"]),
        )
    if crashed:
        click.echo(f"{counted(crashed, 'target')} crashed; inputs: {given.out}")
    return int(crashed > 0)


@contextmanager
def instrumented() -> Iterator[None]:
    """Let atheris follow what is imported, if it is installed."""
    if find_spec("atheris") is None:
        yield
        return
    import atheris

    with atheris.instrument_imports(include=["labctl"]):
        yield


def fuzz(tried: Any, seconds: float, seed: int, out: Path) -> None:
    """Try inputs until the time is over; print the counts as JSON."""
    from tests.fuzz.trying import altered_inputs

    begun = time.monotonic()
    seeds = tried.target.seeds()
    for data in seeds:
        tried.try_one(data)

    def end() -> None:
        tried.keep(out)
        counts = {name: getattr(tried, name) for name in ("inputs", "accepted", "slowest_s")}
        click.echo(json.dumps({**counts, "crashes": list(tried.crashes)}))

    if find_spec("atheris") is None:
        for data in altered_inputs(tried.target, random.Random(seed), seeds):
            if time.monotonic() - begun > seconds:
                break
            tried.try_one(data)
        end()
        return
    import atheris

    def one(data: bytes) -> None:
        tried.try_one(data)
        if time.monotonic() - begun > seconds:
            end()
            tried.clear()
            os._exit(0)

    def mutate(data: bytes, most: int, number: int) -> bytes:
        chance = random.Random(number)
        if chance.random() < 0.3:
            return atheris.Mutate(data, most)
        with suppress(IndexError, ValueError, OverflowError):
            return tried.target.mutate(data or chance.choice(seeds), chance)[:most]
        return atheris.Mutate(data, most)

    corpus = tried.corpus(seeds)
    atheris.Setup(
        [
            sys.argv[0],
            f"-seed={seed}",
            f"-max_len={LARGEST}",
            "-timeout=120",
            "-rss_limit_mb=4096",
            "-verbosity=0",
            "-print_final_stats=0",
            str(corpus),
        ],
        one,
        custom_mutator=mutate,
        internal_libfuzzer=True,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
