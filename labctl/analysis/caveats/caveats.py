"""Write the caveats that could change the answer, the gravest first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from labctl.analysis.answer.words import listed
from labctl.analysis.caveats.run import (
    closed_loop,
    collecting_caveats,
    hindrances,
    imported,
    invalid_trials,
    kept_awake,
    lacking_twins,
    left_out_arms,
    left_out_blocks,
    other_durability,
    recorded,
    redacted,
    setting,
    unequally_invalid,
    unfinished,
    unproven,
)
from labctl.analysis.effects.cells import (
    Cell,
    Cells,
    Scenario,
    cell_of,
    is_interleaved,
    scenario_of,
)
from labctl.analysis.effects.design import Design
from labctl.analysis.model import Attempts, Comparison, Diagnostic, Role, RunCheck
from labctl.analysis.verdicts.checks import Checked, together
from labctl.analysis.verdicts.decide import too_few_spares
from labctl.analysis.verdicts.looks import lacks_trials, last_block
from labctl.analysis.verdicts.table import Verdict
from labctl.base.cpus import CpuSet, parse_cpus
from labctl.base.stopping import FEWEST_BLOCKS, Looks
from labctl.base.units import Better
from labctl.base.wording import counted
from labctl.store.records.run_record import RecordedTuning
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Kind, Kinds, Unavailable, sample_key
from labctl.store.trial import TrialStatus

# Find trials in which the use of an arm's CPUs by others is unknown (METHOD 24).


OTHER = sample_key("host_cpu", {"thread": "other"})
_ROAMED = frozenset(sample_key("host_cpu", {"thread": role}) for role in ("neighbour", "peer"))
_BY_CPU = "host_busy"
"""Reading of trials that were recorded since foreign CPU time is counted per CPU."""


def unseen_disturbance(run: LoadedRun) -> Iterator[str]:
    """Warn that valid trials of arms with fewer CPUs than their neighbours may have been disturbed:
    they were recorded before foreign CPU time was counted per CPU."""
    narrow = {name for name, tuning in run.run.tunings.items() if _has_fewer_cpus(run, tuning)}
    kinds = Kinds()
    blind: Counter[str] = Counter()
    for trial in run.trials:
        cell = cell_of(trial.record.cell)
        if cell is None or trial.record.status is not TrialStatus.DONE:
            continue
        if cell.tuning in narrow and _is_blind(kinds.pack(trial.readings).kinds):
            blind[cell.tuning] += 1
    if blind:
        total = counted(sum(blind.values()), "valid trial")
        arms = listed([f"'{arm}'" for arm in blind], 8)
        yield (
            f"How much others disturbed {total} of {arms} can't be estimated: an older "
            "labctl measured them and subtracted the CPU time of all neighbours and "
            f"servers from that of the arm's own CPUs. Do not trust '{OTHER}' there: a "
            "disturbance that makes trials of other arms invalid is not seen in these, "
            "which may bias comparisons."
        )


def _is_blind(readings: Iterable[Kind | Unavailable]) -> bool:
    """Return whether something ran beside the trial that may have used other CPUs, and was not
    counted by CPU."""
    keys = {one.key if isinstance(one, Kind) else one.metric: one for one in readings}
    other = keys.get(OTHER)
    if other is None or not keys.keys() & _ROAMED:
        return False
    return not isinstance(other, Kind) or _BY_CPU not in keys


def _has_fewer_cpus(run: LoadedRun, tuning: RecordedTuning) -> bool:
    """Return whether the pin plan gave an arm fewer CPUs than a neighbour might use."""
    plan = run.run.pins_of(tuning.pin.strategy).data
    pinned = ["vcpus"]
    if tuning.kind != "native":
        pinned += ["emulator", *(["iothreads"] if tuning.iothreads else [])]
    asked = {what: getattr(tuning.pin, what) for what in pinned}
    if None in asked.values():
        return False
    own = [_cpus(getattr(plan, what) if of == "plan" else of) for what, of in asked.items()]
    return frozenset().union(*own) < _cpus(plan.usable)


def _cpus(value: Any) -> CpuSet:
    """Return the CPUs of a number, a CPU list, a list of numbers, or a mapping of any of these;
    empty for anything else."""
    if isinstance(value, dict):
        return frozenset().union(*map(_cpus, value.values()))
    if isinstance(value, list):
        return frozenset().union(*map(_cpus, value))
    try:
        return parse_cpus(str(value))
    except ValueError:
        return frozenset()


# List the layers between a workload and the data disk, natively and in a guest (METHOD 10).


_PAST_THE_CACHE = ("none", "directsync")
"""Cache modes in which QEMU opens the file with O_DIRECT (qemu-img(1), "cache modes")."""

_QCOW2 = "qcow2"

_MIB = 1024 * 1024
_GIB = 1024 * _MIB


def layers(run: LoadedRun, design: Design) -> Iterator[str]:
    """Yield a sentence on the layers between each side of a native comparison and the data disk, if
    a workload of the run uses it."""
    workloads = [place.workload for place in design.places if place.workload in design.on_disk]
    if not (workloads and design.natives):
        return
    disks = _disks(run)
    names = listed([f"'{name}'" for name in dict.fromkeys(workloads)], 8)
    system = _file_system(run)
    yield (
        f"Under {names} native and guest use different storage layers, and the ratio "
        f"includes the difference: natively it is a file on {system}, opened without the "
        "host's page cache; in the guest it is a block device without a file system, and "
        f"QEMU has the same file open {_cached(disks)}{_formats(disks)}."
    )
    yield from _fits_in_memory(run, disks)


def _disks(run: LoadedRun) -> dict[str, Mapping[str, Any]]:
    """Return the data disk of each guest's tuning, if the run has recorded it."""
    recorded = run.run.tunings
    guests = [name for name, arm in run.plan.tunings.items() if arm.kind == "guest"]
    return {
        name: recorded[name].disk for name in guests if name in recorded and recorded[name].disk
    }


def _cached(disks: Mapping[str, Mapping[str, Any]]) -> str:
    past = [name for name, disk in disks.items() if disk.get("cache") in _PAST_THE_CACHE]
    if not disks:
        return "with or without the page cache, depending on its cache mode"
    if not past:
        return "through the page cache"
    if len(past) == len(disks):
        return "without the page cache as well"
    return f"without the page cache with {_named(past)}, through it with all others"


def _fits_in_memory(run: LoadedRun, disks: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Say that the page cache holds the whole disk (docs/decisions/README.md)."""
    disk, host = run.run.data_disk_bytes, run.run.host
    memory = host.get("memory_bytes")
    if not (isinstance(disk, int) and isinstance(memory, int) and disk < memory):
        return
    if all(entry.get("cache") in _PAST_THE_CACHE for entry in disks.values()):
        return
    yield (
        f"The data disk's {disk / _MIB:.0f} MiB fit into the host's memory "
        f"({memory / _GIB:.3g} GiB): a guest that uses the page cache soon reads from it, "
        "which a working set larger than that memory would not."
    )


def _formats(disks: Mapping[str, Mapping[str, Any]]) -> str:
    images = [name for name, disk in disks.items() if disk.get("format") == _QCOW2]
    return f", with {_named(images)} a qcow2 image in its place" if images else ""


def _named(tunings: list[str]) -> str:
    return listed([f"'{name}'" for name in tunings], 8)


def _file_system(run: LoadedRun) -> str:
    folder = run.run.host.get("state_folder")
    name = folder.get("file_system") if isinstance(folder, dict) else None
    return f"the host's {name}" if isinstance(name, str) else "the host's file system"


# Say what weakens a run's verdicts, or why it has none.


_FEW_BOOTS = 5
"""Fewest boots without a caveat: with fewer, t has so few degrees of freedom that the number of
boots makes intervals wide.
"""


def failed_checks(checks: Sequence[Checked], primaries: Sequence[Comparison]) -> Iterator[str]:
    if not primaries:
        return
    most = max(len(c.blocks) for c in primaries)
    if most < FEWEST_BLOCKS:
        yield (
            f"Demonstration, no verdict: {counted(most, 'block')}; a verdict needs "
            f"{FEWEST_BLOCKS}. The A/A control and the known-loss arm cannot be checked "
            "either."
        )
        return
    controls = [check.control for check in checks]
    yield from together(c for c in controls if c.passed is False)
    yield from together(c for c in controls if c.passed is None)
    yield from together(c.known_loss for c in checks if c.known_loss.passed is not True)


def before_first_look(run: LoadedRun, primaries: Sequence[Comparison]) -> Iterator[str]:
    rule = run.plan.rule
    if isinstance(rule, Looks) and any(c.verdict is Verdict.BEFORE_LOOK for c in primaries):
        lack = lacks_trials(run) or last_block(run) + 1
        yield (
            f"No verdict: the plan's first look is after {rule.at[0]} blocks, and block "
            f"{lack} lacks trials."
        )


def grave_diagnostics(diagnostics: Sequence[Diagnostic]) -> Iterator[str]:
    """Warn that intervals may be too narrow, once for all scenarios with the same findings; the
    diagnostics stand beside their tables."""
    by_place: defaultdict[Scenario, dict[str, None]] = defaultdict(dict)
    for one in diagnostics:
        if one.grave:
            whose = f" ('{one.tuning}')" if one.tuning is not None else ""
            by_place[scenario_of(one)][f"{one.kind}{whose}"] = None
    alike: dict[str, list[str]] = {}
    for place, found in by_place.items():
        alike.setdefault(listed(list(found), 4), []).append(str(place))
    for found_there, places in alike.items():
        yield (
            f"Intervals in {listed(places, 8)} may be too narrow: {found_there}. Details "
            "and remedies are below the tables."
        )


def unshown_restores(run: LoadedRun, design: Design, restored: Sequence[RunCheck]) -> Iterator[str]:
    """Yield the possible effects of restores (METHOD 8): in a run that tests them, its findings; in
    another, the findings of earlier runs at its begin."""
    failed = [check.sentence for check in restored if not check.passed]
    shown = {
        (entry.tuning, entry.workload, entry.condition): entry.run
        for entry in run.run.restores_shown or ()
    }
    needed = set(_restored_places(run, design))
    is_settled = bool(restored) or (bool(needed) and needed <= shown.keys())
    if run.run.restored_state and (failed or not is_settled):
        named = listed([f"'{t}' in {Scenario(w, c)} (run {r})" for (t, w, c), r in shown.items()])
        yield (
            "Restored state: tunings were restored from a snapshot, and it was not tested "
            "on this host that this equals booting "
            f"them{f', except for {named}' if shown else ''}."
        )
    yield from failed


def _restored_places(run: LoadedRun, design: Design) -> Iterator[tuple[str, str, str]]:
    """Yield each restored tuning with each workload and condition in which it may get a verdict."""
    for name in design.candidates:
        if run.plan.tunings[name].restore:
            for place in design.places:
                if place.workload in design.primaries:
                    yield name, place.workload, place.condition


def unjudgeable(primaries: Sequence[Comparison]) -> Iterator[str]:
    for c in primaries:
        where = f"{c.metric} of {Cell(c.tuning, scenario_of(c))}"
        if c.better is Better.NEITHER:
            yield f"{where} has no better direction, so it has no verdict."
        elif c.fallback is not None:
            yield (
                f"{where} or its reference {c.fallback}: a ratio cannot be computed, and "
                "there is no threshold for a verdict."
            )
        elif c.low is None and len(c.blocks) > 1:
            yield (
                f"{where} differs from baseline by the same number in every block: the tool's "
                "resolution is too coarse for an interval."
            )


def shared_boots(primaries: Sequence[Comparison]) -> Iterator[str]:
    """Yield the effect of shared boots on the intervals (docs/decisions/boots-and-blocks.md)."""
    shared = [c for c in primaries if c.boots < len(c.blocks)]
    if not shared:
        return
    fewest = min(shared, key=lambda c: (c.boots, -len(c.blocks)))
    those = f"{len(fewest.blocks)} blocks share {counted(fewest.boots, 'boot')}"
    if fewest.boots == 1:
        yield (
            f"{those}: differences between boots are not in the intervals, which hold for "
            "that boot only."
        )
    elif fewest.boots < _FEW_BOOTS:
        yield (
            f"{those}: the intervals include differences between boots, and so few boots "
            "make them wide. With '--blocks-per-boot 1' the same number of blocks gives "
            "narrower intervals."
        )


def not_exercised(run: LoadedRun, primaries: Sequence[Comparison]) -> Iterator[str]:
    """Yield tunings that were found equal, but only by workloads that do not exercise them (METHOD
    5)."""
    exercised = {
        name: set(arm.exercised_by)
        for name, arm in run.plan.tunings.items()
        if arm.exercised_by is not None
    }
    equal = [c for c in primaries if c.verdict is Verdict.EQUIVALENT and c.tuning in exercised]
    idle = dict.fromkeys(
        c.tuning
        for c in equal
        if not any(p.workload in exercised[c.tuning] for p in primaries if p.tuning == c.tuning)
    )
    if idle:
        names = listed([f"'{name}'" for name in idle], 8)
        yield (
            f'No workload of this run exercises {names}: "equivalent" here says nothing '
            "about workloads that do."
        )


def caveats(
    run: LoadedRun,
    design: Design,
    cells: Cells,
    checks: Sequence[Checked],
    comparisons: Sequence[Comparison],
    restored: Sequence[RunCheck],
    diagnostics: Sequence[Diagnostic],
    attempts: Attempts,
) -> Iterator[str]:
    """Yield the caveats that precede a run's numbers; none for a complete run under KVM with the
    same kernel, a boot per block, and checks that passed."""
    primaries = [c for c in comparisons if c.role is Role.PRIMARY]
    yield from hindrances(design, cells, attempts)
    yield from imported(run)
    yield from redacted(run)
    # The setting of the verdicts comes before their certainty.
    yield from closed_loop(run, design, cells)
    yield from failed_checks(checks, primaries)
    yield from before_first_look(run, primaries)
    yield from unseen_disturbance(run)
    yield from unequally_invalid(attempts)
    yield from shared_boots(primaries)
    yield from grave_diagnostics(diagnostics)
    yield from setting(run, design, cells)
    yield from unproven(run)
    yield from collecting_caveats(run, cells)
    yield from kept_awake(run, cells)
    yield from unshown_restores(run, design, restored)
    yield from invalid_trials(attempts)
    yield from left_out_arms(run)
    yield from recorded(run)
    yield from other_durability(design)
    yield from layers(run, design)
    yield from left_out_blocks(design, cells, paired=is_interleaved(run))
    yield from too_few_spares(run, primaries)
    yield from unjudgeable(primaries)
    yield from lacking_twins(design)
    yield from not_exercised(run, primaries)
    yield from cells.problems
    yield from run.problems
    yield from unfinished(run)
