"""`make bench`: how fast and how large labctl is here, next to what it is meant to be.

Every figure is measured now, on this host, but the image's own: its manifest holds them since its
build. A figure that misses its target, or can't be measured, is reported and fails nothing.
docs/speed.md says what each figure means.
"""

from __future__ import annotations

import itertools
import operator
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from labctl.base import yamlfile
from labctl.base.channel import Channel, runner_program
from labctl.base.command import Command
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, LabctlError
from labctl.base.events import Event, Listener, Note
from labctl.base.places import StatePlaces, host_lock
from labctl.base.process import run
from labctl.base.signals import ending_signals_interrupt
from labctl.base.tuning import Tuning
from labctl.domain.session import RunningGuest
from labctl.guest import seed
from labctl.guest.build import build
from labctl.guest.images import DISK
from labctl.guest.recipe import Recipe, RecipeFile, load_recipe
from labctl.host.accelerator import accelerator
from labctl.host.facts import host_facts
from labctl.host.lock import host_locked
from labctl.run.boots import Boots
from labctl.run.calibrate import Calibrations
from labctl.run.disks import make_overlay
from labctl.run.guests import RESTORE_S, answering, image_xml
from labctl.run.lab import Lab, open_lab
from labctl.run.leftovers import clean_up
from labctl.run.planning import Planned, SweepRequest, plan_sweep
from labctl.run.prepare import ImageSource, prepared_disk
from labctl.run.settle import Settler
from labctl.store.jsonfile import write_json
from labctl.store.run_folder import LoadedRun, RunFolder
from labctl.store.samples import Sample
from labctl.store.trial import TrialRecord
from labctl.study.study import Overrides

STUDY = "pinning"
IMAGE = "debian-12"
UNTRIMMED = Path(__file__).parent / "bench" / "guest-images" / "untrimmed.yaml"
LABCTL = Path(sys.executable).with_name("labctl")

REPEATS = 5
BOOT_PAIRS = 2
FIRST_BOOT_S = 600.0
SWEEP_S = 1800.0

# Full durations, one block, the four roles: under a neighbour, where what surrounds a trial is
# slowest (hogs are started and ended around each).
WORKLOADS = ("sysbench-cpu", "cyclictest")
CONDITION = "neighbour"
SWEEP_ARGUMENTS = shlex.split(
    f"sweep {STUDY} --blocks 1 --seed 1 --condition {CONDITION} --tuning baseline "
    + " ".join(f"--workload {name}" for name in WORKLOADS)
)

LABCTL_CPU = "host_cpu{thread=labctl}"

_COMPARISONS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "under": ("<", operator.lt),
    "at most": ("≤", operator.le),
    "at least": ("≥", operator.ge),
}

# The command as a user runs it, and the kernel's count of its peak when it is over: a child's
# rusage would include the QEMUs that it has waited for (getrusage(2)).
_WITH_PEAK = """\
import atexit, pathlib, sys
status = pathlib.Path(sys.argv.pop(1))
sys.argv[0] = "labctl"
atexit.register(lambda: status.write_text(pathlib.Path("/proc/self/status").read_text()))
from labctl.cli.main import main
main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured value and what it is meant to be. `value` is None where `note` says why."""

    name: str
    value: float | None
    unit: str
    comparison: str
    limit: float
    note: str = ""
    values: tuple[float, ...] = field(default_factory=tuple)
    """What the value was made of, in its unit."""

    @property
    def met(self) -> bool | None:
        """None when nothing was measured."""
        if self.value is None:
            return None
        return _COMPARISONS[self.comparison][1](self.value, self.limit)

    @property
    def target(self) -> str:
        return f"{_COMPARISONS[self.comparison][0]} {self.limit:g} {self.unit}".rstrip()

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "target": {"comparison": self.comparison, "limit": self.limit},
            "met": self.met,
            "note": self.note,
            "values": list(self.values),
        }


RESTORE = Figure(
    name="restore to first answered command",
    value=None,
    unit="s",
    comparison="at most",
    limit=1.5,
)
BOOT = Figure(
    name="boot, as share of the untrimmed image's",
    value=None,
    unit="",
    comparison="at most",
    limit=0.6,
)
AROUND = Figure(name="around a trial", value=None, unit="s", comparison="under", limit=0.5)
SHARE = Figure(
    name="measured + warm-up share of a sweep",
    value=None,
    unit="",
    comparison="at least",
    limit=0.75,
)
CPU = Figure(
    name="labctl's CPU while a trial is measured",
    value=None,
    unit="% of a CPU",
    comparison="under",
    limit=1.0,
)
HELP = Figure(name="labctl --help", value=None, unit="s", comparison="under", limit=0.3)
BUILD = Figure(name="image build", value=None, unit="s", comparison="under", limit=120.0)
DISK_SIZE = Figure(name="built qcow2", value=None, unit="MB", comparison="under", limit=500.0)
MEMORY = Figure(
    name="labctl's peak memory (RSS)", value=None, unit="MB", comparison="under", limit=200.0
)


def measured(figure: Figure, values: Sequence[float], note: str) -> Figure:
    """The figure with the median of its values."""
    return replace(figure, value=statistics.median(values), values=tuple(values), note=note)


# What a sweep's folder tells. Pure.


def inside_trials(records: Sequence[TrialRecord]) -> list[float]:
    """Seconds of each measured attempt that were neither warm-up nor workload."""
    return [r.wall_s - r.measured_s - r.warmup_s for r in records if r.measured_s > 0]


def between_trials(records: Sequence[TrialRecord]) -> list[float]:
    """Seconds from the end of a trial to the start of the next one of the same restore: parsing
    it, writing its records, asking whether the guest is still there."""
    started = sorted((r for r in records if r.started_at), key=lambda r: r.started_at)
    gaps = []
    for former, latter in itertools.pairwise(started):
        if _restore_of(former) == _restore_of(latter):
            ended = datetime.fromisoformat(former.started_at).timestamp() + former.wall_s
            gaps.append(datetime.fromisoformat(latter.started_at).timestamp() - ended)
    return gaps


def _restore_of(record: TrialRecord) -> tuple[int, int, int, int]:
    # An invalid trial is repeated on a restore of its own.
    return record.block, record.position, record.boot, record.attempt


def sweep_figures(loaded: LoadedRun, wall_s: float, peak_bytes: int) -> list[Figure]:
    """The figures of a sweep that took `wall_s` from its command to its report."""
    records = [trial.record for trial in loaded.trials]
    inside, between = inside_trials(records), between_trials(records)
    used = sum(r.measured_s + r.warmup_s for r in records)
    invalid = sum(bool(r.reasons) for r in records)
    attempts = f"{len(records)} attempts, {invalid} of them invalid"
    cpu = [
        reading.value * 100
        for trial in loaded.trials
        for reading in trial.readings
        if isinstance(reading, Sample) and reading.key == LABCTL_CPU
    ]
    if not inside or not between or not cpu:
        raise BrokenError(f"the sweep measured too little to tell ({attempts})")
    around = statistics.median(inside) + statistics.median(between)
    return [
        replace(
            AROUND,
            value=around,
            values=tuple(inside),
            note=f"median: {statistics.median(inside):.2f} s in it, "
            f"{statistics.median(between):.2f} s until the next",
        ),
        replace(
            SHARE,
            value=used / wall_s,
            values=(used, wall_s),
            note=f"{used:.0f} of {wall_s:.0f} s; {attempts}; set-up, boot and report included",
        ),
        replace(
            CPU,
            value=max(cpu),
            values=tuple(cpu),
            note=f"the worst trial; median {statistics.median(cpu):.3f}",
        ),
        replace(
            MEMORY, value=peak_bytes / 1e6, values=(peak_bytes / 1e6,), note="the sweep, to its end"
        ),
    ]


def peak_rss_bytes(status: str) -> int:
    """VmHWM of a /proc/PID/status, in bytes (proc(5))."""
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise BrokenError("/proc/self/status names no VmHWM")


# Measuring.


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What all measurements share."""

    places: StatePlaces
    listener: Listener

    @contextmanager
    def open_lab(self, planned: Planned) -> Iterator[Lab]:
        """The host for guests of the trimmed image, as a sweep has it; left as it was found."""
        image = build(load_recipe(IMAGE), self.places, self.listener)
        with host_locked(host_lock(), what="make bench"):
            clean_up(self.places, self.listener)
            with open_lab(
                self.places,
                planned,
                image=image,
                source=ImageSource(image),
                accelerator=accelerator("auto", image.kernel, self.places),
                listener=self.listener,
            ) as lab:
                yield lab

    def planned(self) -> Planned:
        """The plan of the sweep that is measured."""
        overrides = Overrides(
            tunings=("baseline",), workloads=WORKLOADS, conditions=(CONDITION,), blocks=1
        )
        return plan_sweep(
            SweepRequest(
                study=STUDY, places=self.places, results=Path("."), overrides=overrides, seed=1
            )
        )

    def help(self) -> list[Figure]:
        times = []
        for _ in range(REPEATS):
            deadline = Deadline.after(60, "labctl --help")
            times.append(run([LABCTL, "--help"], deadline=deadline).wall_s)
        return [measured(HELP, times, f"median of {REPEATS}")]

    def image(self) -> list[Figure]:
        manifest = build(load_recipe(IMAGE), self.places, self.listener).manifest
        size_mb = manifest["files"][DISK]["bytes"] / 1e6
        note = f"from the manifest; built {manifest['built_at']}"
        return [
            measured(BUILD, [manifest["build_s"]], note),
            measured(DISK_SIZE, [size_mb], "compressed with zstd"),
        ]

    def restore(self) -> list[Figure]:
        planned = self.planned()
        baseline = planned.tunings["baseline"]
        with self.open_lab(planned) as lab:
            calibrations = Calibrations(lab, planned.plan)
            calibrations.count_natively()
            settler = Settler(lab, planned.plan, calibrations)
            boots = Boots(lab, lab.source.disks(lab, baseline), baseline, settler.settle)
            boots.saved(1)
            times = []
            for _ in range(REPEATS):
                started = time.monotonic()
                with boots.restored(1, baseline) as paused:
                    times.append(answered_at(lab, paused.running, RESTORE_S) - started)
        return [measured(RESTORE, times, f"median of {REPEATS}; without the clock setting")]

    def boot(self) -> list[Figure]:
        planned = self.planned()
        baseline = planned.tunings["baseline"]
        recipe = Recipe("untrimmed", yamlfile.load(RecipeFile, UNTRIMMED))
        untrimmed = build(recipe, self.places, self.listener)
        with self.open_lab(planned) as lab:
            prepared = prepared_disk(lab, baseline)
            other = replace(lab, image=untrimmed)
            other_prepared, other_seed = provisioned(other, baseline)
            ours: list[float] = []
            theirs: list[float] = []
            for _ in range(BOOT_PAIRS):
                ours.append(boot_s(lab, baseline, prepared))
                theirs.append(boot_s(other, baseline, other_prepared, other_seed))
        trimmed_s, untrimmed_s = statistics.median(ours), statistics.median(theirs)
        return [
            replace(
                BOOT,
                value=trimmed_s / untrimmed_s,
                values=(*ours, *theirs),
                note=f"{trimmed_s:.1f} s against {untrimmed_s:.1f} s; "
                f"medians of {BOOT_PAIRS}, interleaved",
            )
        ]

    def sweep(self) -> list[Figure]:
        with tempfile.TemporaryDirectory(prefix="labctl-bench-") as name:
            folder = Path(name)
            status = folder / "status"
            arguments = ["--state-dir", str(self.places.root), *SWEEP_ARGUMENTS]
            arguments += ["--quiet", "--json", "--results", str(folder / "results")]
            done = run(
                [sys.executable, "-c", _WITH_PEAK, status, *arguments],
                deadline=Deadline.after(SWEEP_S, "the sweep"),
            )
            (made,) = RunFolder.all(folder / "results")
            return sweep_figures(made.load(), done.wall_s, peak_rss_bytes(status.read_text()))


def boot_s(lab: Lab, tuning: Tuning, prepared: Path, seed_disk: Path | None = None) -> float:
    """Seconds from a prepared disk to the first command that its guest has answered."""
    overlay = lab.work / "bench.qcow2"
    started = time.monotonic()
    make_overlay(prepared, overlay)
    running = lab.session.start(image_xml(lab, tuning, overlay, seed_disk))
    try:
        return answered_at(lab, running, lab.boot_s) - started
    finally:
        running.end()


def answered_at(lab: Lab, running: RunningGuest, seconds: float) -> float:
    """Resume a paused guest; the moment (CLOCK_MONOTONIC) at which its first command was over.

    The clock isn't set before, as `labctl.run.guests.answering` does.
    """
    deadline = Deadline.after(seconds, "the guest's first answer")
    with Channel.connected(lab.runner_socket, "the guest", deadline) as channel:
        running.resume()
        channel.wait_ready(deadline)
        result = channel.run(Command(argv=("true",)), seconds=30)
        if result.returncode != 0:
            raise BrokenError(f"'true' ended with status {result.returncode} in the guest")
        return time.monotonic()


def provisioned(lab: Lab, tuning: Tuning) -> tuple[Path, Path]:
    """The untrimmed image's disk after its first boot, and the seed for all later ones.

    Unlike a prepared image's, its cloud-init stays on and finds its seed in every boot.
    """
    files = seed.render(
        hostname="labctl-guest",
        instance_id="labctl-1",
        user=str(lab.image.manifest["user"]),
        runner_program=runner_program(),
    )
    disk = lab.image.prepared_dir / f"{seed.seed_digest(files)[:12]}.qcow2"
    seed_disk = lab.work / "seed.iso"
    seed.write_seed(seed_disk, files)
    if disk.is_file():
        return disk, seed_disk
    lab.listener(Note(text="First boot of the untrimmed image (once)."))
    lab.image.prepared_dir.mkdir(exist_ok=True)
    aside = disk.with_name(f".{disk.name}.new")
    make_overlay(lab.image.disk, aside)
    running = lab.session.start(image_xml(lab, tuning, aside, seed_disk))
    with answering(lab, running, FIRST_BOOT_S, is_booting=True) as channel:
        channel.run(Command(argv=("cloud-init", "status", "--wait")), seconds=FIRST_BOOT_S)
        result = channel.read([seed.RESULT_PATH], Deadline.after(30, "cloud-init's result"))
        # The distribution's modules for locales and ssh fail without those packages, once per
        # instance; what matters here is that cloud-init is at work.
        if "DataSourceNoCloud" not in (result[seed.RESULT_PATH] or ""):
            raise BrokenError("cloud-init found no seed in the untrimmed image")
        # A clean file system: else each boot would pay for the journal's recovery. SysRq's
        # remount also succeeds while journald has its files open.
        script = "sync && echo u > /proc/sysrq-trigger && sync"
        if channel.run(Command(argv=("sh", "-c", script)), seconds=60).returncode != 0:
            raise BrokenError("the untrimmed guest's disk can't be made clean")
    aside.rename(disk)
    return disk, seed_disk


GROUPS: dict[str, tuple[Callable[[Benchmark], list[Figure]], tuple[Figure, ...]]] = {
    "help": (Benchmark.help, (HELP,)),
    "image": (Benchmark.image, (BUILD, DISK_SIZE)),
    "restore": (Benchmark.restore, (RESTORE,)),
    "boot": (Benchmark.boot, (BOOT,)),
    "sweep": (Benchmark.sweep, (AROUND, SHARE, CPU, MEMORY)),
}
"""Group to what measures it and to its figures."""


def measure(benchmark: Benchmark, names: Sequence[str]) -> list[Figure]:
    """The figures of the groups; those that can't be measured, with the reason."""
    figures: list[Figure] = []
    for name in names:
        function, empty = GROUPS[name]
        benchmark.listener(Note(text=f"Measuring: {', '.join(figure.name for figure in empty)}"))
        try:
            figures += function(benchmark)
        except LabctlError as error:
            why = f"not measured: {error.message.splitlines()[0]}"
            figures += [replace(figure, note=why) for figure in empty]
    return figures


def labels(places: StatePlaces, tell: Listener) -> dict[str, str]:
    """What the figures hold for: host class, accelerator, command, moment."""
    facts = host_facts(places)
    try:
        image = build(load_recipe(IMAGE), places, tell)
        accelerated: str = accelerator("auto", image.kernel, places).name
    except LabctlError as error:
        accelerated = f"unknown: {error.message}"
    return {
        "host": f"{facts['cpus_allowed']} × {facts['cpu_model']}, "
        f"{facts['memory_bytes'] / 2**30:.0f} GiB, {facts['os']}, "
        f"hypervisor below: {facts['hypervisor_vendor']}",
        "accelerator": f"{accelerated} (QEMU {facts['qemu']}, libvirt {facts['libvirt']})",
        "load": f"{os.getloadavg()[0]:.1f} before the first measurement",
        "at": datetime.now(UTC).isoformat(timespec="minutes"),
        "command": shlex.join(["make", "bench", *_make_arguments(sys.argv[1:])]),
        "sweep": shlex.join(["labctl", *SWEEP_ARGUMENTS]),
    }


def _make_arguments(arguments: Sequence[str]) -> list[str]:
    return [f"ARGS={shlex.join(arguments)}"] if arguments else []


def show(console: Console, figures: Sequence[Figure], said: dict[str, str]) -> None:
    table = Table("figure", "measured", "target", "met", "how")
    for figure in figures:
        value = "" if figure.value is None else f"{figure.value:.3g} {figure.unit}".rstrip()
        met = {True: "yes", False: "NO", None: "?"}[figure.met]
        table.add_row(figure.name, value, figure.target, met, escape(figure.note))
    console.print(table)
    for name, text in said.items():
        console.print(escape(f"{name}: {text}"), soft_wrap=True)


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures.")
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice(list(GROUPS)),
    help="Only these groups of figures (default: all).",
)
@click.option("--state-dir", type=click.Path(path_type=Path), help="As labctl's.")
def main(json_file: Path | None, names: tuple[str, ...], state_dir: Path | None) -> None:
    """Measure labctl's speed and size on this host."""
    places = StatePlaces(state_dir.resolve()) if state_dir else StatePlaces.default()

    def tell(event: Event) -> None:
        if isinstance(event, Note):
            click.echo(event.text, err=True)

    with ending_signals_interrupt():
        said = labels(places, tell)
        figures = measure(Benchmark(places, tell), names or list(GROUPS))
    show(Console(highlight=False, width=None if sys.stdout.isatty() else 120), figures, said)
    if json_file is not None:
        found = [figure.to_json() for figure in figures]
        write_json(json_file, {"schema": 1, **said, "figures": found})


if __name__ == "__main__":
    main()
