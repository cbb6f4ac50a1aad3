"""Measure what needs no guest: commands as a user waits for them, the image, the pin plan."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from labctl.base.errors import BrokenError, ExitCode, UsageError
from labctl.base.process import Deadline, run
from labctl.base.tuning import Strategy
from labctl.domain.pinning.pin_plan import pin_plan
from labctl.guest.build import build
from labctl.guest.images import DISK
from labctl.guest.recipe import load_recipe
from labctl.host.topology import Cpu, Topology
from tools.bench.benchmark import IMAGE, Benchmark
from tools.bench.figures import Figure, measured

LABCTL = Path(sys.executable).with_name("labctl")
EXAMPLE = Path(__file__).parents[2] / "results" / "example"
REPEATS = 5

HELP = Figure(name="labctl --help", value=None, unit="s", comparison="under", limit=0.3)
BUILD = Figure(name="image build", value=None, unit="s", comparison="under", limit=120.0)
LISTS = Figure(
    name="labctl tuning list, times virt-install",
    value=None,
    unit="",
    comparison="at most",
    limit=1.0,
)
REPORT = Figure(
    name="labctl report results/example", value=None, unit="s", comparison="under", limit=0.5
)
DISK_SIZE = Figure(name="built qcow2", value=None, unit="MB", comparison="under", limit=500.0)
DOCTOR = Figure(name="labctl doctor", value=None, unit="s", comparison="under", limit=3.0)
CATALOGUE = Figure(
    name="all tunings rendered and validated",
    value=None,
    unit="s",
    comparison="under",
    limit=2.0,
)
PIN_PLAN = Figure(
    name="pin plan for 1,024 CPUs", value=None, unit="ms", comparison="under", limit=50.0
)


def help_text(benchmark: Benchmark) -> list[Figure]:
    return [measured(HELP, waited(benchmark, "--help"), f"median of {REPEATS}")]


def start(benchmark: Benchmark) -> list[Figure]:
    """Return how long `tuning list` takes, as a ratio to virt-manager's command line that runs
    right before it, so that a busy host slows both; and the seconds of a report."""
    peer: list[str | Path] = ["virt-install", "--version"]
    peers, times = [], []
    for _ in range(REPEATS):
        peers.append(run(peer, deadline=Deadline.after(120, "virt-install")).wall_s)
        times += waited(benchmark, "tuning", "list", repeats=1)
    middle, taken = statistics.median(peers), statistics.median(times)
    return [
        replace(
            LISTS,
            value=taken / middle,
            values=tuple(one / other for one, other in zip(times, peers, strict=True)),
            note=f"median of {REPEATS}, {taken:.2f} s to virt-install --version's {middle:.2f} s",
        ),
        measured(REPORT, waited(benchmark, "report", str(EXAMPLE)), f"median of {REPEATS}"),
    ]


def image(benchmark: Benchmark) -> list[Figure]:
    manifest = build(load_recipe(IMAGE), benchmark.places, benchmark.listener).manifest
    size_mb = manifest["files"][DISK]["bytes"] / 1e6
    note = f"from the manifest; built {manifest['built_at']}"
    return [
        measured(BUILD, [manifest["build_s"]], note),
        measured(DISK_SIZE, [size_mb], "compressed with zstd"),
    ]


def doctor(benchmark: Benchmark) -> list[Figure]:
    waited(benchmark, "doctor", repeats=1)  # boots a kernel to probe KVM, once per host boot
    times = waited(benchmark, "doctor")
    return [measured(DOCTOR, times, f"median of {REPEATS}; the probe of KVM cached")]


def catalogue(benchmark: Benchmark) -> list[Figure]:
    times = waited(benchmark, "tuning", "validate", "--all")
    return [measured(CATALOGUE, times, f"median of {REPEATS}; the whole command")]


def waited(benchmark: Benchmark, *arguments: str, repeats: int = REPEATS) -> list[float]:
    """Wall seconds of a labctl command, each time from the start of its process."""
    argv: list[str | Path] = [LABCTL, "--state-dir", str(benchmark.places.root), *arguments]
    times = []
    for _ in range(repeats):
        deadline = Deadline.after(120, f"labctl {arguments[0]}")
        done = run(argv, deadline=deadline, check=False)
        if done.returncode not in (ExitCode.DONE, ExitCode.FOUND):
            raise BrokenError(f"labctl {arguments[0]} ended with status {done.returncode}")
        times.append(done.wall_s)
    return times


def pinplan(benchmark: Benchmark) -> list[Figure]:
    """Return the slowest of all strategies and sizes."""
    slowest = measured(PIN_PLAN, [0.0], "")
    for strategy in Strategy:
        for vcpus in (4, 64, 512, 1024):
            try:
                times = [plan_ms(vcpus, strategy) for _ in range(REPEATS)]
            except UsageError:
                continue  # no node of this host has room for so many
            figure = measured(PIN_PLAN, times, f"median of {REPEATS}; {vcpus} vCPUs, '{strategy}'")
            slowest = max(slowest, figure, key=lambda found: found.value or 0.0)
    return [slowest]


def plan_ms(vcpus: int, strategy: Strategy) -> float:
    """Return CPU time, which for what never waits is the wall time of a quiet host."""
    topology = large_host()  # a new one: what it has computed once it keeps
    started = time.process_time()
    pin_plan(topology, vcpus, 4, strategy)
    return 1000 * (time.process_time() - started)


def large_host() -> Topology:
    """16 nodes of 32 cores with two threads each, eight cores to a level 3 cache."""
    cores = 512
    return Topology(
        cpus=tuple(
            Cpu(
                number=number,
                package=core // 32,
                core=core % 32,
                siblings=frozenset({core, core + cores}),
                l3=core // 8 * 8,
                node=core // 32,
            )
            for number in range(2 * cores)
            for core in (number % cores,)
        ),
        allowed=frozenset(range(2 * cores)),
        memory_nodes=frozenset(range(16)),
    )
