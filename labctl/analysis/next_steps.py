"""Say what to do next: the command that follows a run's answer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from labctl.analysis.answer_record import FEWEST_BOOTS, Grade, Next, TuningAnswer
from labctl.analysis.model import Standing
from labctl.analysis.stopping import last_block
from labctl.analysis.verdict_table import Says, Verdict, says
from labctl.analysis.wall_time import wall_time
from labctl.base.stopping import FEWEST_BLOCKS
from labctl.base.wording import counted
from labctl.store.run_folder import LoadedRun

_SAFE = re.compile(r"[A-Za-z0-9@%+=:,./_-]+")
"""Words of a recorded command that no shell takes for anything else."""

_REPLACED = ("--seed", "--blocks", "--blocks-per-boot", "--out", "--html")
"""Options with a value that a command to be run again does not keep."""

_MOST_BLOCKS = 100
"""Blocks beyond which another design is better advice than more of the same."""


def next_steps(
    run: LoadedRun, ranked: Sequence[Standing], best: TuningAnswer | None
) -> Iterator[Next]:
    """Yield what to do next, the first thing first. `best`: the tuning that the answer is about."""
    name = shlex.quote(run.name)
    if run.run.status != "done":
        yield from _go_on(run, name)
        return
    if run.run.imported:
        # Whoever measured decides; labctl can't measure it again.
        return
    if best is not None and best.grade is Grade.CONFIRMED:
        yield Next(command=f"labctl advise {name}", text="how to roll it out, and what it takes")
    elif best is not None and best.grade is Grade.CANDIDATE:
        yield from _confirm(run, name, best)
    elif best is not None and (wants := _wants(run, best)):
        yield wants
    else:
        yield from _more_blocks(run, ranked)


def _go_on(run: LoadedRun, name: str) -> Iterator[Next]:
    if run.run.status == "running":
        yield Next(command=None, text="wait for the run to end")
    elif run.run.status is not None:
        yield Next(command=f"labctl sweep --resume {name}", text="goes on with the run")


def _confirm(run: LoadedRun, name: str, best: TuningAnswer) -> Iterator[Next]:
    if not any(one.agrees for one in best.fresh):
        seconds = verify_seconds(run, best.tuning)
        yield Next(
            command=f"labctl advise {name} --verify",
            text="measures it once more, in fresh guests",
            seconds=seconds,
        )
    if run.run.is_emulated:
        yield Next(
            command=_again(run, "--accel kvm"), text="on a host with KVM: emulation can't confirm"
        )
    yield Next(command=f"labctl advise {name}", text="what it takes, and how to roll it out")


def verify_seconds(run: LoadedRun, tuning: str) -> float | None:
    """Return about how long `labctl advise --verify` takes: this run's time, by the share of its
    trials that are of the arms that are measured again. None where its time isn't known."""
    spent = wall_time(run)
    arms = run.plan.tunings
    if spent is None or not run.plan.trials:
        return None
    roles = {run.plan.baseline, run.plan.control, run.plan.handicap, run.plan.native, tuning}
    twins = {arms[arm].twin for arm in roles if arm in arms}
    kept = sum(trial.cell.get("tuning") in roles | twins for trial in run.plan.trials)
    return spent.total * kept / len(run.plan.trials)


def _wants(run: LoadedRun, best: TuningAnswer) -> Next | None:
    """Return what would mend the first thing that keeps a tuning which improves from its grade;
    None where it is no matter of the run's size."""
    lacking = {ground.name for ground in best.grounds if not ground.met}
    if "improvement" in lacking:
        return None
    if run.run.host_is_emulated:
        return Next(
            command=None,
            text="run the study on a host of real CPUs: the times of an emulated one say nothing "
            "about it",
        )
    if "boots" in lacking and not lacking & {"control", "whole folder"}:
        blocks = run.plan.blocks or FEWEST_BLOCKS
        return Next(
            command=_again(run, "--blocks-per-boot 1"),
            text=f"gives each of {counted(blocks, 'block')} a boot of its own, where a grade takes "
            f"{FEWEST_BOOTS}",
            seconds=None,
        )
    if "open-loop latency" in lacking:
        return Next(
            command=f"labctl run reparse {shlex.quote(run.name)}",
            text="adds latencies that count what a stall hides; a new run is judged by them",
        )
    return None


def _more_blocks(run: LoadedRun, ranked: Sequence[Standing]) -> Iterator[Next]:
    """Yield how many blocks would show what this run left open."""
    judged = [c for of in ranked for c in of.judged]
    if not judged:
        return
    if all(c.verdict is Verdict.DEMONSTRATION for c in judged):
        yield Next(
            command=_again(run, f"--blocks {FEWEST_BLOCKS}"),
            text=f"a verdict takes {FEWEST_BLOCKS} blocks",
        )
        return
    open_ = [c for c in judged if says(c.verdict, Says.OPEN)]
    if not open_:
        return
    done = max(1, last_block(run))
    needed = [c.blocks_needed for c in open_ if c.blocks_needed is not None]
    most, least = max(needed, default=2 * done), min(needed, default=2 * done)
    if least > _MOST_BLOCKS:
        yield Next(
            command=None,
            text=f"more of the same would take {most} blocks: a quieter host, or longer trials, "
            "narrow the intervals sooner",
        )
        return
    blocks = most if most <= _MOST_BLOCKS else least
    if not needed:
        text = "twice the blocks make intervals narrower by about 30 %"
    elif blocks == most:
        text = "so many blocks show an effect as large as the threshold"
    else:
        text = f"so many blocks show it in one place; in another it takes {most}"
    spent = wall_time(run)
    yield Next(
        command=_again(run, f"--blocks {blocks}"),
        text=text,
        seconds=None if spent is None else spent.total * blocks / done,
    )


def _again(run: LoadedRun, more: str) -> str | None:
    """Return the command that made a run, with other options; None where it isn't known.

    A run folder may come from anywhere, so only a plain command of words is repeated.
    """
    try:
        words = shlex.split(run.run.command or "")
    except ValueError:
        return None
    if words[:2] != ["labctl", "sweep"] or not all(_SAFE.fullmatch(word) for word in words):
        return None
    if any(word in ("--resume", "--extend", "--detach") for word in words):
        return None
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in _REPLACED:
            skip = True
        elif not word.startswith(tuple(f"{option}=" for option in _REPLACED)):
            kept.append(word)
    return f"{' '.join(kept)} {more}"


def step_text(step: Next) -> str:
    """Return a step in words: the command, what it does, and about how long it takes."""
    return f"{step.command}  ({step.told})" if step.command else step.told
