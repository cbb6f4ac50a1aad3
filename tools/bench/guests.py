"""Measure how long a guest takes to its first answer: restored, and booted."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace
from pathlib import Path

from labctl.base import yaml
from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.events import Note
from labctl.base.process import Deadline
from labctl.base.runner_messages import runner_archive
from labctl.base.tuning import Tuning
from labctl.domain.session import RunningGuest
from labctl.guest import seed
from labctl.guest.build import build
from labctl.guest.recipe import Recipe, RecipeFile
from labctl.run.collectors.calibrate import Calibrations
from labctl.run.guests.base_guest import prepared_disk
from labctl.run.guests.boots import Boots
from labctl.run.guests.lab import Lab
from labctl.run.guests.lab_opening import open_image
from labctl.run.guests.started import RESTORE_S, answering, hand_over, image_xml
from labctl.run.resources.disks import make_overlay
from labctl.run.trials.engine import PostBootSetup
from labctl.run.trials.proof import Proof
from tools.bench.benchmark import Benchmark
from tools.bench.figures import Figure, measured

UNTRIMMED = Path(__file__).parent / "guest-images" / "untrimmed.yaml"

REPEATS = 5
BOOT_PAIRS = 2
FIRST_BOOT_S = 600.0

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


def restore(benchmark: Benchmark) -> list[Figure]:
    planned = benchmark.planned()
    baseline = planned.tunings["baseline"]
    with benchmark.open_lab(planned) as lab:
        calibrations = Calibrations(lab, planned.plan.workloads)
        calibrations.count_natively()
        proof = Proof(lab, planned.plan)
        post_boot = PostBootSetup(lab, planned.plan, calibrations, proof)
        boots = Boots(lab, lab.source.disks(lab, baseline), baseline, post_boot.set_up)
        boots.saved(1)
        times = []
        for _ in range(REPEATS):
            started = time.monotonic()
            with boots.restored(1, baseline) as paused:
                times.append(answered_at(lab, paused.running, RESTORE_S) - started)
    return [measured(RESTORE, times, f"median of {REPEATS}; without the clock setting")]


def boot(benchmark: Benchmark) -> list[Figure]:
    planned = benchmark.planned()
    baseline = planned.tunings["baseline"]
    recipe = Recipe("untrimmed", yaml.load(RecipeFile, UNTRIMMED))
    untrimmed = build(recipe, benchmark.places, benchmark.listener)
    with benchmark.open_lab(planned) as lab:
        prepared = prepared_disk(lab, baseline)
        untrimmed.prepared_dir.mkdir(exist_ok=True)
        open_image(untrimmed, lab.qemu_ids[1])
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


def boot_s(lab: Lab, tuning: Tuning, prepared: Path, seed_disk: Path | None = None) -> float:
    """Return seconds from a prepared disk to the first command that its guest has answered."""
    overlay = lab.work / "bench.qcow2"
    started = time.monotonic()
    make_overlay(prepared, overlay)
    hand_over(lab, overlay)
    running = lab.session.start(image_xml(lab, tuning, overlay, seed_disk))
    try:
        return answered_at(lab, running, lab.boot_s) - started
    finally:
        running.end()


def answered_at(lab: Lab, running: RunningGuest, seconds: float) -> float:
    """Resume a paused guest; the moment (CLOCK_MONOTONIC) at which its first command was over.

    The clock isn't set before, as `labctl.run.guests.started.answering` does.
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
    """Return the untrimmed image's disk after its first boot, and the seed for all later ones.

    Unlike a prepared image's, its cloud-init stays on and finds its seed in every boot.
    """
    files = seed.render(
        hostname="labctl-guest",
        instance_id="labctl-1",
        user=str(lab.image.manifest["user"]),
        runner=runner_archive(),
    )
    disk = lab.image.prepared_dir / f"{seed.seed_digest(files)[:12]}.qcow2"
    seed_disk = lab.work / "seed.iso"
    seed.write_seed(seed_disk, files)
    hand_over(lab, seed_disk)
    if disk.is_file():
        return disk, seed_disk
    lab.listener(Note(text="First boot of the untrimmed image (once)."))
    aside = disk.with_name(f".{disk.name}.new")
    make_overlay(lab.image.disk, aside)
    hand_over(lab, aside)
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
    os.chown(aside, os.geteuid(), lab.qemu_ids[1])
    aside.chmod(0o640)
    aside.rename(disk)
    return disk, seed_disk
