"""Make the tables of a fleet of many hosts: `python -m tools.fleet_scale FOLDER`.

Each host's run is resampled of a recorded one: blocks of all arms drawn with replacement, as many
as make about so many trials, every value of a trial moved by the host's own speed, the arm's own
effect there and noise. Control is baseline once more, with noise of its own: blocks that are drawn
several times would make a difference by chance one beyond doubt. It is judged as any run.
docs/scale.md has what reading them back takes.
"""

from __future__ import annotations

import time
from array import array
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
import numpy as np

from labctl import __version__
from labctl.fleet.fleet_folder import FleetFolder
from labctl.fleet.sweep_hosts import FleetSweep, Status, SweepFolder
from labctl.fleet.table import EFFECTS, SAMPLES, write_run
from labctl.store.run_folder import LoadedRun, LoadedTrial
from labctl.store.run_places import find_run
from labctl.store.samples import Kinds, Readings
from labctl.store.trial import TrialStatus

RECORDED = Path(__file__).parents[1] / "results"
BOOTS = 5
TAU, SPEED, NOISE = 0.02, 0.03, 0.01
"""Standard deviations, on the log scale: of arms' true effects between hosts, of hosts' speeds, and
of a trial beyond what was recorded."""
DIGEST = "made by tools.fleet_scale"


def resampled(run: LoadedRun, trials: int, rng: np.random.Generator) -> LoadedRun:
    """Return a run of about so many trials, of the recorded one's blocks."""
    by_block: dict[int, list[LoadedTrial]] = defaultdict(list)
    for trial in run.trials:
        if trial.record.status is TrialStatus.DONE:
            by_block[trial.record.block].append(trial)
    whole = max(map(len, by_block.values()))
    known = sorted(block for block, trials in by_block.items() if len(trials) == whole)
    blocks = max(1, round(trials / whole))
    speed = SPEED * rng.standard_normal()
    effects: dict[str | None, float] = defaultdict(lambda: TAU * rng.standard_normal())
    kinds = Kinds()
    made: list[LoadedTrial] = []
    for block, source in enumerate(rng.choice(known, blocks), start=1):
        baseline = {
            _place(trial): trial
            for trial in by_block[int(source)]
            if trial.record.cell["tuning"] == run.plan.baseline
        }
        for trial in by_block[int(source)]:
            arm, drawn = trial.record.cell["tuning"], trial
            is_control = arm == run.plan.control
            if is_control:
                drawn = baseline.get(_place(trial), trial)
            own = effects[run.plan.baseline if is_control else arm]
            shift = speed + own + NOISE * rng.standard_normal()
            readings = kinds.pack(drawn.readings)
            values = np.frombuffer(readings.values) * np.exp(shift)
            record = replace(
                trial.record,
                number=len(made) + 1,
                block=block,
                boot=1 + (block - 1) * BOOTS // blocks,
            )
            made.append(
                replace(trial, record=record, readings=Readings(readings.kinds, array("d", values)))
            )
    plan = run.plan.but(stopping=None, blocks=blocks)
    return replace(run, plan=plan, trials=tuple(made))


def _place(trial: LoadedTrial) -> tuple[str | None, str | None]:
    cell = trial.record.cell
    return cell.get("workload"), cell.get("condition")


def fleet(folder: Path, hosts: int) -> FleetFolder:
    """Return a fleet's folder whose hosts are done."""
    names = [f"rack{number // 40:02d}-{number % 40:02d}" for number in range(hosts)]
    record = FleetSweep(
        study="pinning",
        study_digest="",
        seed=1,
        labctl=__version__,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=("tools/fleet_scale.py",),
        inventory=(),
        serial="100%",
        batches=(tuple(names),),
    )
    made = SweepFolder.create(folder, record)
    for name in names:
        made.change(name, status=Status.DONE, digest=DIGEST)
    return FleetFolder.open(folder)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=False))
@click.option("--hosts", default=1000, show_default=True)
@click.option("--trials", default=1000, show_default=True)
@click.option("--seed", default=1, show_default=True)
def main(folder: Path, hosts: int, trials: int, seed: int) -> None:
    """Write the tables of HOSTS hosts of about TRIALS trials each."""
    recorded = find_run(RECORDED, "example").load()
    made = fleet(folder, hosts)
    started = time.perf_counter()
    count = 0
    for number, host in enumerate(made.hosts()):
        rng = np.random.default_rng([seed, number])
        run = resampled(recorded, trials, rng)
        count += sum(len(trial.readings) for trial in run.trials)
        write_run(made, host, run)
    took = time.perf_counter() - started
    click.echo(
        f"{hosts:,} hosts of {len(run.trials):,} trials, {count:,} rows of samples: {took:.0f} s"
    )
    for table in (EFFECTS, SAMPLES):
        size = sum(path.stat().st_size for path in (made.data / table).rglob("*.parquet"))
        click.echo(f"{table}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
