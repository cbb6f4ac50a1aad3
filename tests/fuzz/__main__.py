"""Fuzz the readers of what others wrote: `make fuzz SECONDS=3600 SEED=1`.

Each target runs in a process of its own, guided by coverage if atheris is installed, else at
random. All are forks of one process that has labctl loaded: to load it with atheris takes 20 s.
Exits with 1 if one crashed; the inputs lie in the folder that is printed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

from labctl.base.wording import counted

LARGEST = 64 << 10
"""Bytes of an input."""
HANGING_S = 120.0
"""Seconds beyond a target's share after which it hangs."""


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    asked.add_argument("--seconds", type=float, default=3600, help="of all targets together")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--target", action="append", help="only this one; may be repeated")
    asked.add_argument("--out", type=Path, default=Path(".fuzz"), help="folder of the crashes")
    given = asked.parse_args()
    with instrumented():
        from tests.fuzz import altering, targets
    altering.vocabulary()  # takes seconds, and each target's process has it then
    names = given.target or list(targets.TARGETS)
    if unknown := [name for name in names if name not in targets.TARGETS]:
        sys.exit(f"no target {', '.join(unknown)}; targets: {', '.join(targets.TARGETS)}")
    return campaign(names, given.seconds / len(names), given.seed, given.out)


def campaign(names: Sequence[str], seconds: float, seed: int, out: Path) -> int:
    """Run each target for so long; return 1 if one crashed."""
    guided = find_spec("atheris") is not None
    how = "guided by coverage" if guided else "at random, because atheris is not installed"
    click.echo(f"{counted(len(names), 'target')}, inputs altered {how}")
    crashed = 0
    for name in names:
        counts = _counts_of(name, seconds, seed, out)
        if isinstance(counts, dict) and not counts["accepted"]:
            counts = "no whole input is read"
        crashed += isinstance(counts, str) or bool(counts["crashes"])
        if isinstance(counts, str):
            click.echo(f"{name:26} {counts}")
            continue
        click.echo(
            f"{name:26} {counts['inputs']:>9,} inputs, {counts['accepted']:>9,} accepted, "
            f"slowest {counts['slowest_s']:.2f} s"
            + "".join(f"\n    {one}" for one in counts["crashes"]),
        )
    if crashed:
        click.echo(f"{counted(crashed, 'target')} crashed; inputs: {out}")
    return int(crashed > 0)


def _counts_of(name: str, seconds: float, seed: int, out: Path) -> dict[str, Any] | str:
    """Return what a target's process counted, or how it ended without counting."""
    here, there = Pipe(duplex=False)
    with TemporaryFile() as printed:
        process = get_context("fork").Process(
            target=_in_child, args=(name, seconds, seed, out, there, printed.fileno())
        )
        process.start()
        there.close()
        counts = None
        if here.poll(seconds + HANGING_S):
            with suppress(EOFError):
                counts = here.recv()
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
            return counts or "hangs"
        printed.seek(0)
        said = printed.read().decode(errors="replace")
        return counts or f"the process ended: {said.strip()[-300:]}"


def _in_child(
    name: str, seconds: float, seed: int, out: Path, counts: Connection, printed: int
) -> None:
    from tests.fuzz import targets, trying

    for stream in (1, 2):
        os.dup2(printed, stream)
    with targets.scratch() as place, trying.limits():
        tried = trying.Tried(name, targets.TARGETS[name], place)
        fuzz(tried, seconds, seed, out, counts)


@contextmanager
def instrumented() -> Iterator[None]:
    """Let atheris follow what is imported, if it is installed."""
    if find_spec("atheris") is None:
        yield
        return
    import atheris

    with atheris.instrument_imports(include=["labctl"]):
        yield


def fuzz(tried: Any, seconds: float, seed: int, out: Path, counts: Connection) -> None:
    """Try inputs until the time is over, then send the counts."""
    from tests.fuzz.trying import altered_inputs

    begun = time.monotonic()
    seeds = tried.target.seeds()
    for data in seeds:
        tried.try_one(data)

    def end() -> None:
        tried.keep(out)
        found = {name: getattr(tried, name) for name in ("inputs", "accepted", "slowest_s")}
        counts.send({**found, "crashes": list(tried.crashes)})

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
