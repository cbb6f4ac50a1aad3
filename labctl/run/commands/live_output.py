"""Record what the host's tools print about a guest while it works: its VM exits by reason above
all.

Nobody has it yet from a host whose KVM is the CPU's. What it is to be read by is
`collect.perf_kvm_stat` and `collect.perf_stat`.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from labctl.base.events import Listener, Note
from labctl.base.paths import StatePaths, host_lock
from labctl.base.signals import ending_signals_interrupt
from labctl.guest.images import Image
from labctl.host.accelerator import Accelerator
from labctl.host.lock import host_locked
from labctl.run.commands.host_output import ToolOutput, tool_output
from labctl.run.guests.bench import Bench, guest_bench
from labctl.run.guests.boots import Boots
from labctl.run.guests.lab import open_lab
from labctl.run.guests.prepare import ImageSource
from labctl.run.planning.planned import Planned
from labctl.workloads.model import Setting
from labctl.workloads.registry import workload

_LOOK_S = "2"
"""Time for which each tool looks."""

_BUSY_S = 30.0
"""Time for which the guest works meanwhile: longer than all looks together."""


def live_outputs(
    places: StatePaths,
    planned: Planned,
    results: Path,
    *,
    image: Image,
    accelerator: Accelerator,
    listener: Listener,
) -> dict[str, ToolOutput]:
    """Return by name each tool's output about a booted baseline that runs the plan's workload.

    Raises what booting a guest raises.
    """
    listener(Note(text="A guest works, and tools look at it from the host."))
    baseline = planned.tunings[planned.plan.roles.baseline]
    with ExitStack() as stack:
        stack.enter_context(ending_signals_interrupt())
        stack.enter_context(host_locked(host_lock(), what="labctl selftest", run_folder=results))
        lab = stack.enter_context(
            open_lab(
                places,
                planned,
                image=image,
                source=ImageSource(image),
                accelerator=accelerator,
                listener=listener,
            )
        )
        boots = Boots(lab, lab.source.disks(lab, baseline), baseline, lambda *_: None)
        bench = stack.enter_context(guest_bench(lab, boots, 0, baseline, fresh=True))
        declared = next(iter(planned.plan.workloads.values()))
        program = workload(declared.program)
        setting = Setting(
            parameters=program.check_parameters(declared.parameters),
            vcpus=lab.vcpus,
            duration_s=_BUSY_S,
            data_path=bench.data_path,
        )
        command = program.command(setting)
        with bench.channel.prepared(command, seconds=2 * _BUSY_S) as execution:
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
