"""Runs made up from known effects: in memory, or as a run folder on disk.

The numbers are drawn, not measured: log(primary) = log(typical) + log(effect) + what the block
does to every arm + noise. All other metrics follow from the primary, with noise of their own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from labctl.base.stopping import Stopping
from labctl.base.units import Better, Unit
from labctl.store.jsonfile import canonical
from labctl.store.run_folder import LoadedRun, LoadedTrial, RunFolder
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialFolder, TrialRecord, TrialStatus
from tests.unit.records import plan_of, run_of

Effect = float | Mapping[str, float]
"""A factor on the speed under every workload, or by workload."""

TUNINGS: Mapping[str, Mapping[str, Any]] = {
    "native": {"kind": "native", "twin": None, "description": "no guest"},
    "native+pinned": {"kind": "native", "twin": None, "description": "no guest, pinned"},
    "native+fifo": {"kind": "native", "twin": None, "description": "no guest, pinned, FIFO"},
    "baseline": {"kind": "guest", "twin": "native", "description": "virt-install's defaults"},
    "control": {"kind": "guest", "twin": "native", "description": "the baseline again"},
    "handicap": {"kind": "guest", "twin": "native", "description": "5 % of CPU time taken away"},
    "pinned": {"kind": "guest", "twin": "native+pinned", "description": "vCPUs pinned"},
    "pinned+fifo": {"kind": "guest", "twin": "native+fifo", "description": "pinned, SCHED_FIFO"},
}
"""The arms of `pinning --quick`."""

WORKLOADS: Mapping[str, Mapping[str, Any]] = {
    "sysbench-cpu": {
        "program": "sysbench-cpu",
        "parameters": {"max_prime": 2000},
        "duration_s": 2.0,
        "primary": "events_per_s",
        "margin": 0.05,
    },
    "fio-randread": {
        "program": "fio",
        "parameters": {"rw": "randread", "block_size": "4k"},
        "duration_s": 2.0,
        "primary": "iops",
        "margin": 0.05,
    },
}

EFFECTS: Mapping[str, Effect] = {
    "native": 12.0,
    "native+pinned": 11.0,
    "native+fifo": 14.0,
    "handicap": 0.95,
    "pinned": 0.77,
    "pinned+fifo": 2.73,
}
"""Roughly what a 2-core host showed under emulation; arms left out have no effect."""

_TYPICAL = {"events_per_s": 400.0, "iops": 900.0}
_EXIT_S = 2e-6
_NO_EXITS = "emulated: no VM exits"
_NO_STEAL = "the guest's steal stays 0 under emulation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a synthetic run is made of.

    `tunings`: names of `TUNINGS`, or any other name for a guest without a twin. `noise` and
    `block_noise`: standard deviations of log(primary), of one trial and of what all trials of a
    block share; `boot_noise`: by tuning, of what its trials of one boot share. `invalid` names
    trials (tuning, workload, block) of which no attempt is valid, `repeated` those of which the
    second attempt is. `exit_reasons`: VM exits per second by reason (under KVM). `primary_only`
    leaves every other metric out (fast, for simulations). `stopping`: the rule that the plan
    declares; all blocks are there.
    """

    seed: int = 1
    blocks: int = 10
    boots: int = 1
    tunings: Sequence[str] = tuple(TUNINGS)
    workloads: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: WORKLOADS)
    conditions: Sequence[str] = ("neighbour",)
    effects: Mapping[str, Effect] = field(default_factory=lambda: EFFECTS)
    noise: float = 0.02
    block_noise: float = 0.1
    boot_noise: Mapping[str, float] = field(default_factory=dict)
    accelerator: str = "tcg"
    status: str = "done"
    invalid: Collection[tuple[str, str, int]] = ()
    repeated: Collection[tuple[str, str, int]] = ()
    primary_only: bool = False
    stopping: Stopping | None = None
    exit_reasons: Mapping[str, float] = field(default_factory=dict)


def synthetic_run(**options: Any) -> LoadedRun:
    """A run as `RunFolder.load` gives it, with nothing on disk. `options`: the fields of `Shape`,
    e.g. synthetic_run(seed=3, blocks=10, effects={"pinned": 1.2}, noise=0.05)."""
    shape = Shape(**options)
    entries = list(_planned(shape))
    rng = random.Random(shape.seed)
    shared = {
        (workload, block): rng.gauss(0.0, shape.block_noise)
        for workload in shape.workloads
        for block in range(1, shape.blocks + 1)
    }
    trials = tuple(trial for entry in entries for trial in _attempts(shape, entry, shared, rng))
    plan = plan_of(_plan_json(shape, entries))
    return LoadedRun("synthetic", run_of(_run_json(shape)), plan, trials, ())


def write_run(folder: Path, run: LoadedRun | None = None) -> RunFolder:
    """Write a run (by default `synthetic_run()`) as a run folder at `folder`."""
    run = synthetic_run() if run is None else run
    target = RunFolder.create(folder.parent, folder.name)
    target.write_run(run.run)
    if not run.plan.is_lost:
        target.write_plan(run.plan)
    for name, xml in run.run.xml.items():
        (target.path / xml).parent.mkdir(exist_ok=True)
        (target.path / xml).write_text(
            f"<domain type='qemu'><name>labctl</name><!-- {name} --></domain>\n"
        )
    for trial in run.trials:
        folder_of_trial = target.new_trial(trial.record.number, trial.record.attempt)
        folder_of_trial.write_record(trial.record)
        if trial.readings:
            folder_of_trial.write_readings(trial.readings)
        folder_of_trial.write_raw("stdout.txt", "synthetic: no tool ran\n")
    return target


def _planned(shape: Shape) -> Iterator[dict[str, Any]]:
    number = 0
    for block in range(1, shape.blocks + 1):
        arms = list(shape.tunings)
        random.Random(f"{shape.seed}/{block}").shuffle(arms)
        for position, tuning in enumerate(arms, start=1):
            for condition in shape.conditions:
                for workload in shape.workloads:
                    number += 1
                    yield {
                        "number": number,
                        "block": block,
                        "boot": 1 + (block - 1) * shape.boots // shape.blocks,
                        "position": position,
                        "cell": {"tuning": tuning, "workload": workload, "condition": condition},
                    }


def _attempts(
    shape: Shape,
    entry: Mapping[str, Any],
    shared: Mapping[tuple[str, int], float],
    rng: random.Random,
) -> Iterator[LoadedTrial]:
    tuning, workload = entry["cell"]["tuning"], entry["cell"]["workload"]
    here = (tuning, workload, entry["block"])
    # Drawn for invalid trials too: leaving one out must not change the others' numbers.
    log_effect = math.log(_effect(shape, tuning, workload))
    log_speed = log_effect + shared[workload, entry["block"]] + rng.gauss(0.0, shape.noise)
    log_speed += _of_boot(shape, tuning, workload, entry["boot"])
    readings = tuple(_readings(shape, tuning, workload, log_speed, rng))
    if here in shape.invalid or here in shape.repeated:
        reason = "vCPU 0 ran on CPUs 0-1, asked for CPU 1"
        yield _trial(entry, 1, TrialStatus.INVALID, (), (reason,))
    if here not in shape.invalid:
        yield _trial(entry, 2 if here in shape.repeated else 1, TrialStatus.DONE, readings, ())


def _trial(
    entry: Mapping[str, Any],
    attempt: int,
    status: TrialStatus,
    readings: tuple[Reading, ...],
    reasons: tuple[str, ...],
) -> LoadedTrial:
    native = entry["cell"]["tuning"].startswith("native")
    record = TrialRecord(
        number=entry["number"],
        attempt=attempt,
        block=entry["block"],
        boot=entry["boot"],
        position=entry["position"],
        cell=dict(entry["cell"]),
        status=status,
        reasons=reasons,
        measured_s=2.0,
        warmup_s=1.0,
        wall_s=3.4,
        started_at="2024-01-01T00:00:00+00:00",
        restored=not native,
        parsed_with={"kind": "native" if native else "guest"},
    )
    suffix = "" if attempt == 1 else f".{attempt}"
    return LoadedTrial(record, readings, TrialFolder(Path(f"trials/{record.number:04d}{suffix}")))


def _of_boot(shape: Shape, tuning: str, workload: str, boot: int) -> float:
    """From a generator of its own: boots must not change the other numbers of a seed."""
    if tuning not in shape.boot_noise:
        return 0.0
    own = random.Random(f"{shape.seed}/{tuning}/{workload}/{boot}")
    return own.gauss(0.0, shape.boot_noise[tuning])


def _effect(shape: Shape, tuning: str, workload: str) -> float:
    effect = shape.effects.get(tuning, 1.0)
    return effect.get(workload, 1.0) if isinstance(effect, Mapping) else effect


def _readings(
    shape: Shape, tuning: str, workload: str, log_speed: float, rng: random.Random
) -> Iterator[Reading]:
    primary = shape.workloads[workload]["primary"]
    speed = math.exp(log_speed)
    rate = _TYPICAL.get(primary, 100.0) * speed

    def noisy(value: float) -> float:
        return value * math.exp(rng.gauss(0.0, shape.noise))

    def sample(
        metric: str, value: float, unit: Unit, better: Better, source: str, /, **labels: str
    ) -> Sample:
        return Sample(
            metric=metric, value=value, unit=unit, better=better, labels=labels, source=source
        )

    higher, lower, neither = Better.HIGHER, Better.LOWER, Better.NEITHER
    yield sample(primary, rate, Unit.PER_SECOND, higher, "stdout.txt")
    if shape.primary_only:
        return
    native = tuning_entry(tuning)["kind"] == "native"
    typical_latency = 1.0 / rate
    for name, factor in (("p50", 0.9), ("p95", 1.6), ("p99", 3.0), ("max", 20.0)):
        latency = noisy(factor * typical_latency)
        yield sample(f"latency_{name}", latency, Unit.SECONDS, lower, "stdout.txt")
    if workload.startswith("sysbench"):
        yield sample(
            "ipc",
            noisy(0.25 * speed),
            Unit.INSTRUCTIONS_PER_CYCLE,
            higher,
            "stdout.txt",
            source="calibrated",
        )
    else:
        yield Unavailable(metric="ipc", reason="no PMU, and nothing to calibrate a fio job with")
        yield sample("bandwidth", 4096 * rate, Unit.BYTES_PER_SECOND, higher, "stdout.txt")
    busy = min(0.95, noisy(0.5))
    yield sample("ops_per_cpu_s", rate / busy, Unit.OPERATIONS_PER_CPU_SECOND, higher, "host.json")
    for kind in ("voluntary", "involuntary"):
        switches = float(rng.randrange(0, 40))
        yield sample(
            "ctx_switches",
            switches,
            Unit.PER_SECOND,
            neither,
            "runner.json",
            kind=kind,
            of="workload",
        )
    if not native:
        for thread, share in (("vcpu", busy), ("emulator", noisy(0.02)), ("iothread", 0.0)):
            yield sample("host_cpu", share, Unit.CPUS, lower, "host.json", thread=thread)
        yield sample("run_delay", noisy(0.4 / speed), Unit.CPUS, lower, "host.json")
        if shape.accelerator == "tcg":
            yield Unavailable(metric="steal", reason=_NO_STEAL)
            yield Unavailable(metric="exits", reason=_NO_EXITS)
        else:
            yield sample("steal", noisy(0.1 / speed), Unit.FRACTION, lower, "runner.json")
            yield sample("exits", noisy(12.0), Unit.PER_OPERATION, lower, "host.json")
            for reason, rate_of in shape.exit_reasons.items():
                exits = noisy(rate_of)
                yield sample("exits", exits, Unit.PER_SECOND, lower, "kvm.txt", reason=reason)
                if reason != "HLT":
                    seconds = _EXIT_S * exits
                    yield sample("exit_time", seconds, Unit.CPUS, lower, "kvm.txt", reason=reason)
    yield sample(
        "neighbour_ops_per_s",
        noisy(1e4 / math.sqrt(speed)),
        Unit.PER_SECOND,
        higher,
        "neighbour.json",
    )


def tuning_entry(tuning: str) -> Mapping[str, Any]:
    """The plan's entry for a tuning; an unknown name is a guest without a twin."""
    entry = TUNINGS.get(tuning, {"kind": "guest", "twin": None, "description": tuning})
    return {**entry, "restore": True, "exercised_by": ["sysbench-cpu"]}


def _plan_json(shape: Shape, planned: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def if_there(name: str) -> str | None:
        return name if name in shape.tunings else None

    content = {
        "study": "pinning",
        "title": "What pinning and real-time policies do",
        "study_digest": "0" * 64,
        "seed": shape.seed,
        "quick": True,
        "factors": ["tuning", "workload", "condition"],
        "blocks": shape.blocks,
        "boots": shape.boots,
        "baseline": if_there("baseline"),
        "control": if_there("control"),
        "handicap": if_there("handicap"),
        "tunings": {name: dict(tuning_entry(name)) for name in shape.tunings},
        "workloads": {name: dict(entry) for name, entry in shape.workloads.items()},
        "conditions": list(shape.conditions),
        "limits": {"attempts": 3, "other_cpu": 0.1},
        "trials": [dict(entry) for entry in planned],
        **({"stopping": shape.stopping.to_json()} if shape.stopping else {}),
    }
    return {"schema": 1, "digest": sha256(canonical(content).encode()).hexdigest(), **content}


def _run_json(shape: Shape) -> dict[str, Any]:
    tcg = shape.accelerator == "tcg"
    return {
        "schema": 1,
        "name": "synthetic",
        "labctl": "0.1.0",
        "status": shape.status,
        "started_at": "2024-01-01T00:00:00+00:00",
        "ended_at": "2024-01-01T00:10:00+00:00" if shape.status == "done" else None,
        "command": "labctl sweep pinning --quick",
        "study": "pinning",
        "seed": shape.seed,
        "quick": True,
        "accelerator": shape.accelerator,
        "accelerator_reason": "no kernel boots with KVM here" if tcg else "a kernel booted",
        "connection": "qemu:///embed?root=/var/lib/labctl/lv",
        "host": {"kernel": "6.12.0-host", "cpus": 2, "cpu_model": "Synthetic CPU"},
        "guest": {"kernel": "6.1.0-guest", "cpus": 1},
        "same_kernel": False,
        "kernel_sentence": (
            "The host runs kernel 6.12.0-host and the guest 6.1.0-guest: the native-versus-guest "
            "ratio is a stack difference, not virtualization overhead."
        ),
        "binaries": {"sysbench": {"guest": "a" * 64, "native": "a" * 64}},
        "hashed": {
            side: {"checks": 2, "files": {"/usr/bin/sysbench": "a" * 64}}
            for side in ("native", "guest")
        }
        | {"unproven": []},
        "pin_plan": {
            "picture": "CPU 0  housekeeping: emulator\nCPU 1  vCPU 0",
            "reasons": ["Two CPUs leave none for housekeeping alone."],
            "data": {"vcpus": {"0": 1}, "emulator": "0", "iothreads": {}, "housekeeping": "0"},
            "layout": [
                {
                    "title": "package 0, node 0, L3 of CPUs 0-1",
                    "cores": [
                        {"core": 0, "cpus": {"0": ["emulator", "housekeeping"]}},
                        {"core": 1, "cpus": {"1": ["vCPU 0"]}},
                    ],
                    "free": "",
                }
            ],
        },
        "notes": [],
        "warnings": [],
        "skipped": {},
        "restored_state": True,
        "xml": {
            name: f"xml/{name}.xml"
            for name in shape.tunings
            if tuning_entry(name)["kind"] == "guest"
        },
        "vcpus": 1,
        "memory_mib": 1024,
    }


def one_tuning_run(seed: int, pinned: float = 1.5) -> LoadedRun:
    """A run under KVM that says that 'pinned' gains so much, or that verifies another that does."""
    return synthetic_run(
        seed=seed,
        noise=0.01,
        accelerator="kvm",
        boots=5,
        tunings=["baseline", "control", "handicap", "pinned"],
        effects={"handicap": 0.95, "pinned": pinned},
        workloads={"sysbench-cpu": WORKLOADS["sysbench-cpu"]},
        primary_only=True,
    )
