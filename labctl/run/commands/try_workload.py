"""Try a workload: run it once for a few seconds on one side, and read its metrics.

No warm-up, nothing collected, nothing judged: what counts is which argv ran, what it printed, and
what each metric's reader found in that.
"""

from __future__ import annotations

from contextlib import ExitStack

from labctl.base.errors import HostError
from labctl.base.events import Listener, Note
from labctl.base.paths import StatePaths
from labctl.base.tuning import Kind
from labctl.host.accelerator import Requested
from labctl.run.commands.sweep_checks import refuse_problems
from labctl.run.commands.try_run import Tried, run_once
from labctl.run.guests.benches import fresh_bench
from labctl.run.guests.guest_base import guest_base
from labctl.run.guests.lab_opening import open_lab
from labctl.run.guests.leftovers import alone
from labctl.run.planning.planned import SweepRequest
from labctl.run.planning.planner import plan_sweep
from labctl.study.load_study import OneProgram, Overrides

STUDY = "selftest"
"""Study whose roles and image a try has."""


def try_workload(
    one: OneProgram, places: StatePaths, kind: Kind, accel: Requested, listener: Listener
) -> Tried:
    """Return what one run of the program did on that side, in the image that the self-test has.

    Raises HostError for a side that can't run it, and what a sweep raises before its first trial.
    """
    request = SweepRequest(
        study=STUDY,
        places=places,
        results=places.root,
        overrides=Overrides(tunings=(), program=one),
        seed=1,
        accel=accel,
    )
    with ExitStack() as stack:
        stack.enter_context(alone(places, listener, "labctl workload try"))
        planned = plan_sweep(request)
        skipped = planned.plan.skipped_workloads.get(one.name, {})
        if str(kind) in skipped:
            raise HostError(f"{one.name} does not run there ({kind}): {skipped[str(kind)]}")
        refuse_problems(places, planned)
        base = guest_base(planned, places, accel, listener)
        listener(Note(text=base.accelerator.reason))
        lab = stack.enter_context(open_lab(places, planned, base, listener=listener))
        roles = planned.plan.roles
        role = roles.native if kind is Kind.NATIVE else roles.baseline
        assert role is not None  # the self-test has both
        bench = stack.enter_context(fresh_bench(lab, lab.tunings[role]))
        return run_once(lab, bench, one)
