"""Advise a fleet: which hosts take which tuning, what that costs, and with which steps.

What hosts may take is the fleet's answer (`analysis/fleet/may_take.py`); how they take it is in
each host's own run, whose trials are not read again. Hosts of equal steps share one list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from labctl.analysis.fleet.fleet_model import FleetJudgement
from labctl.analysis.fleet.fleet_price import WorsePlace, price
from labctl.analysis.fleet.may_take import TakenBy, hosts_that_may, look_first
from labctl.analysis.judge import judge
from labctl.analysis.view import View
from labctl.base.errors import LabctlError, UsageError
from labctl.fleet.fleet_folder import FleetFolder
from labctl.fleet.landing import check_study, exploratory
from labctl.rollout.advice import check_name
from labctl.rollout.cost import cost
from labctl.rollout.rollout_steps import RolloutSteps, rollout_steps
from labctl.store.run_folder import LoadedRun, RunFolder


@dataclass(frozen=True, slots=True)
class HostSteps:
    """Hold what rolling a tuning out takes on a host. `takes`: CPUs and memory, in sentences;
    `risks`: None where the run has none recorded."""

    rollout: RolloutSteps
    takes: tuple[str, ...]
    risks: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAdvice:
    """Advise to roll a tuning out. `worse`: what got worse over the hosts that take it;
    `look_first`: hosts to look at before, with the reason; `rollouts`: steps with the hosts that
    they are for; `unread`: hosts whose run can't be read, with the reason."""

    taken: TakenBy
    worse: tuple[WorsePlace, ...]
    look_first: tuple[tuple[str, str], ...]
    rollouts: tuple[tuple[HostSteps, tuple[str, ...]], ...]
    unread: tuple[tuple[str, str], ...]

    @property
    def risks(self) -> tuple[str, ...]:
        """Return the risks that the hosts' runs have recorded, each once."""
        return tuple(dict.fromkeys(risk for of, _ in self.rollouts for risk in of.risks or ()))


def advise_fleet(
    fleet: FleetFolder,
    judged: FleetJudgement,
    tuning: str,
    tell: Callable[[str], None] = lambda host: None,
) -> FleetAdvice:
    """Return what it takes to roll a tuning out on the hosts that may take it; `tell` gets each of
    them before its run is read.

    Raises UsageError where the fleet names the tuning as none can be named, BrokenError where its
    tables can't be read. A host whose run can't be read is named.
    """
    check_name(fleet.name, tuning)
    taken = hosts_that_may(judged, tuning)
    alike: dict[HostSteps, list[str]] = {}
    unread = []
    for host in taken.hosts:
        tell(host)
        try:
            alike.setdefault(_steps(fleet, host, tuning), []).append(host)
        except LabctlError as error:
            unread.append((host, error.message))
    by_size = sorted(alike.items(), key=lambda pair: -len(pair[1]))
    return FleetAdvice(
        taken=taken,
        worse=price(judged, tuning, exploratory(fleet, tuning, taken.hosts)),
        look_first=look_first(judged, taken),
        rollouts=tuple((steps, tuple(hosts)) for steps, hosts in by_size),
        unread=tuple(unread),
    )


def _steps(fleet: FleetFolder, host: str, tuning: str) -> HostSteps:
    folder = fleet.run(host)
    with folder.unpacked("xml") as unpacked:
        # An archive has the name of its file; the state has the run's own.
        run = replace(_without_trials(folder), name=fleet.state(host).run or folder.name)
        check_study(fleet, run.plan)
        view = View(run, judge(run))
        steps = rollout_steps(view, tuning, unpacked.path)
        if steps.refused:
            raise UsageError(f"must not be applied there: {steps.why_refused}")
        found = cost(view, tuning, steps.xml, view.run.run.memory_mib)
        return HostSteps(steps, found.takes, found.risks)


def _without_trials(folder: RunFolder) -> LoadedRun:
    """Return what a run recorded of its host and its tunings: the fleet has its effects."""
    return LoadedRun(folder.name, folder.read_run(), folder.read_plan(), (), ())
