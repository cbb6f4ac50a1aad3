"""Measure what collecting costs: a workload's throughput at each level and with nothing collected.

Levels take turns within each block in a balanced, seeded order (METHOD: interleaved, paired), in
one guest and in one native session. Nothing is judged here.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from labctl.base.events import Listener, Note
from labctl.run.commands.host_record import class_of_host
from labctl.run.commands.overhead_plan import OverheadRequest, plan_overhead
from labctl.run.commands.overhead_windows import Rates, Windows
from labctl.run.commands.sweep_checks import refuse_problems
from labctl.run.guests.guest_base import guest_base
from labctl.run.guests.lab_opening import open_lab
from labctl.run.guests.leftovers import alone
from labctl.store.records.run_record import RunRecord

COMMAND = "labctl collectors --overhead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Hold the measured overheads. `here`: the part of run.json that distinguishes hosts, guests
    and versions.
    """

    workload: str
    seconds: float
    sides: tuple[Rates, ...]
    here: RunRecord


def measure_overheads(request: OverheadRequest, listener: Listener) -> Overheads:
    """Measure natively and in a guest, with the image and roles of the study.

    Raises UsageError for a workload whose throughput says nothing; what a sweep raises.
    """
    with ExitStack() as stack:
        stack.enter_context(alone(request.places, listener, COMMAND))
        planned, name = plan_overhead(request)
        refuse_problems(request.places, planned)
        base = guest_base(planned, request.places, request.accel, listener)
        listener(Note(text=base.accelerator.reason))
        lab = stack.enter_context(open_lab(request.places, planned, base, listener=listener))
        windows = Windows(lab, planned.plan, name, request.levels, request.pairs, request.seed)
        sides = tuple(windows.side(kind, of=len(request.sides)) for kind in request.sides)
    return Overheads(
        workload=name,
        seconds=planned.plan.workloads[name].duration_s,
        sides=sides,
        here=class_of_host(lab),
    )
