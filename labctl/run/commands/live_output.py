"""Record what the host's tools print about a guest while it works: its VM exits by reason above
all.

Nobody has it yet from a host whose KVM is the CPU's. What it is to be read by is
`collect.perf_kvm_stat` and `collect.perf_stat`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from labctl.base.events import Listener, Note
from labctl.run.commands.host_output import ToolOutput, tool_output
from labctl.run.guests.bench import Bench
from labctl.run.guests.benches import fresh_bench
from labctl.run.guests.guest_base import guest_base
from labctl.run.guests.lab_opening import open_lab
from labctl.run.guests.leftovers import alone
from labctl.run.planning.planned import SweepRequest
from labctl.run.planning.planner import plan_sweep
from labctl.study.load_study import Overrides
from labctl.workloads.registry import workload_of
from labctl.workloads.setting import Setting

_LOOK_S = "2"
"""Time for which each tool looks."""

_BUSY_S = 30.0
"""Time for which the guest works meanwhile: longer than all looks together."""


def live_outputs(
    request: SweepRequest, accelerator: str, listener: Listener
) -> dict[str, ToolOutput]:
    """Return by name each tool's output about a booted baseline that runs the first workload of a
    request. `accelerator`: what guests run under.

    Raises what booting a guest raises.
    """
    listener(Note(text="A guest works, and tools look at it from the host."))
    places = request.places
    planned = plan_sweep(replace(request, overrides=Overrides(tunings=())), accelerator)
    with ExitStack() as stack:
        stack.enter_context(alone(places, listener, "labctl selftest", request.results))
        base = guest_base(planned, places, request.accel, listener)
        lab = stack.enter_context(open_lab(places, planned, base, listener=listener))
        baseline = planned.tunings[planned.plan.roles.baseline]
        bench = stack.enter_context(fresh_bench(lab, baseline))
        declared = next(iter(planned.plan.workloads.values()))
        program = workload_of(declared)
        setting = Setting(
            parameters=program.check_parameters(declared.parameters),
            vcpus=lab.vcpus,
            duration_s=_BUSY_S,
            data_paths=bench.data_paths,
        )
        command = program.command(setting)
        with (
            bench.channel.serving(program.servers(setting)),
            bench.channel.prepared(command, seconds=2 * _BUSY_S) as execution,
        ):
            execution.go()
            return _looked_at(bench, lab.work)


def _looked_at(bench: Bench, folder: Path) -> dict[str, ToolOutput]:
    pid = str(bench.threads()[0].pid)
    threads = ",".join(map(str, bench.vcpu_tids))
    data = str(folder / "perf-kvm.data")
    counting = ("perf", "stat", "--json-output", "--event")
    asked: dict[str, tuple[str, ...]] = {
        "perf-kvm-record": (
            *("perf", "kvm", "stat", "record", "-p", pid, "-o", data, "sleep", _LOOK_S),
        ),
        "perf-kvm-report": ("perf", "kvm", "-i", data, "stat", "report"),
        "perf-stat-kvm": (*counting, "kvm:*", "--pid", pid, "sleep", _LOOK_S),
        "perf-stat-vcpus": (
            *counting,
            "cycles:G,instructions:G,cycles:uG,instructions:uG,cycles:H",
            *("--tid", threads, "sleep", _LOOK_S),
        ),
    }
    # In this order: a report is made of its record.
    return {name: tool_output(argv) for name, argv in asked.items()}
