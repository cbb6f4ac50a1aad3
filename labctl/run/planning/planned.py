"""Hold a sweep's request, and its plan for this host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labctl.base.paths import StatePaths
from labctl.base.tuning import Strategy, Tuning
from labctl.domain.pinning.pin_plan import PinPlan
from labctl.guest.recipe import Recipe
from labctl.host.accelerator import Requested
from labctl.host.topology import Topology
from labctl.run.planning.conditions import noisy, on_the_host
from labctl.run.planning.own_domain import (
    OwnGuest,
)
from labctl.store.records.run_record import AdviceVerified
from labctl.study.extension import Extension
from labctl.study.load_study import Overrides
from labctl.study.plan import Plan
from labctl.study.question import Question
from labctl.study.study import Study
from labctl.workloads.registry import workload_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """Hold a user's request. `question`: the study if no file has it. `resume`: the run to resume;
    the rest of its plan is on disk. `extend`: the finished run that `overrides.blocks` more blocks
    are for, under its own seed.
    `kernel`, `initrd`: those of the guests in place of the image's. `domain`: the user's own, a
    name or a file, in place of an image; `keep_network`: its copy stays on its networks.
    `verifies`: the run and the tuning of the advice that is measured again. `wait_quiet_s`: longest
    total wait of a run for the host to become idle."""

    study: str
    question: Question | None = None
    places: StatePaths
    results: Path
    quick: bool = False
    overrides: Overrides = field(default_factory=Overrides)
    seed: int | None = None
    accel: Requested = "auto"
    connect: str | None = None
    fresh_boots: bool = False
    kernel: Path | None = None
    initrd: Path | None = None
    domain: str | None = None
    keep_network: bool = False
    verifies: AdviceVerified | None = None
    resume: str | None = None
    extend: str | None = None
    wait_quiet_s: float = 600.0

    @property
    def earlier(self) -> str | None:
        """Return the run that this is a part of; None for a new one."""
        return self.resume or self.extend


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Hold a plan for this host, and its input. Nothing was started or changed.

    `pin_plans`: of each strategy that a tuning of the plan pins by, compact always.
    `hangs_on_accelerator`: tunings in the plan that need a certain accelerator while it is still
    unknown, because only a booting kernel shows it. `hangs_on_image`: likewise workloads that need
    a feature of the kernel of an image that is not built yet.
    """

    plan: Plan
    recipe: Recipe
    tunings: Mapping[str, Tuning]
    topology: Topology
    pin_plans: Mapping[Strategy, PinPlan]
    warnings: tuple[str, ...]
    hangs_on_accelerator: tuple[str, ...] = ()
    hangs_on_image: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    """Sentences about programs that can be checked only once the image is built."""
    own: OwnGuest | None = None
    """User's own domain, if the run measures one."""
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """Recipes of arms with another image or kernel than the baseline, by tuning."""
    added: Extension | None = None
    """Part of the plan that is not on disk yet, for a run that is extended."""

    @property
    def pin_plan(self) -> PinPlan:
        """Return the one that tunings use unless they say otherwise."""
        return self.pin_plans[Strategy.COMPACT]

    @property
    def is_noisy(self) -> bool:
        """Return whether any trial has neighbours."""
        return bool(noisy(self.plan))

    @property
    def in_the_tree(self) -> list[str]:
        """Return the conditions whose neighbours run in the image's tree."""
        return on_the_host(self.plan)


def has_native_network(plan: Plan) -> bool:
    """Return whether native runs need a network of their own: programs from files may have servers,
    whose ports must be free and unreachable for anything else."""
    is_declared = any(declared.definition is not None for declared in plan.workloads.values())
    return is_declared or has_peers(plan)


def has_peers(what: Plan | Study) -> bool:
    """Return whether any of its workloads needs a peer, so that its machines need a link to one."""
    return any(
        workload_of(declared).peer(declared.parameters) is not None
        for declared in what.workloads.values()
    )


def narrows_links(plan: Plan) -> bool:
    """Return whether any of its workloads narrows its link."""
    return any(workload_of(declared).narrows_link for declared in plan.workloads.values())
