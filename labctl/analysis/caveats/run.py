"""Describe a run's setting, its gaps and its invalid attempts, as caveats of its numbers."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from labctl.analysis.answer.words import few, listed, sentence
from labctl.analysis.effects.cells import (
    Cell,
    Cells,
    Scenario,
    Series,
    cell_of,
    is_interleaved,
    read_cells,
    skipped,
)
from labctl.analysis.effects.design import Design, read_design
from labctl.analysis.effects.effects import alone, ratio_of, ratios
from labctl.analysis.effects.intervals import Floats, t_interval
from labctl.analysis.model import ArmAttempts, Attempts
from labctl.analysis.times import LEAST, costs_said, level_of
from labctl.base import hostfacts
from labctl.base.notation import quantity
from labctl.base.units import CLOSED, OPEN, SKIP_PERIODS, Unit
from labctl.base.wording import counted, metric_title, without_logs
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import base_name, labels_of
from labctl.store.trial import TrialStatus
from labctl.trace.files import SIZE_LIMIT

# Show which attempts were invalid, arm by arm, and whether that depends on the arm (METHOD 24).
#
# Arms come in a random order within each block. If validity does not depend on the arm, each arm of
# a block was equally likely to be disturbed. Attempts of one restore fail together, and so do
# repeats: an arm counts once per block, with the number of its trials that had an invalid attempt.
# Permuting these numbers among the arms of each block gives the distribution by chance, whatever
# blocks have in common: Cochran's Q (Biometrika 37 (1950), 256-266), by permutation instead of
# chi-square, because the counts are small.


LEVEL = 0.01
"""Level of the test: at most one run in a hundred with equal arms gets the warning."""
_PERMUTATIONS = 1999
_NUMBER = re.compile(r"\d[\d.]*")
_TRIAL_FOLDER = re.compile(r"^/.*?/trials/[\d.]+: ")


@dataclass(frozen=True, slots=True)
class TrialCounts:
    """Count trials: those that the run had to carry out (0 without a plan), those with a valid
    attempt, and invalid attempts."""

    planned: int
    done: int
    invalid: int


def count_trials(run: LoadedRun) -> TrialCounts:
    """Count the whole run's trials."""
    records = [trial.record for trial in run.trials]
    return TrialCounts(
        planned=len(run.plan.trials),
        done=len({record.number for record in records if record.status is TrialStatus.DONE}),
        invalid=sum(record.status is TrialStatus.INVALID for record in records),
    )


def count_attempts(run: LoadedRun) -> Attempts:
    """Count the whole run's attempts by arm, in plan order, extensions included."""
    tried: Counter[str] = Counter()
    invalid: Counter[str] = Counter()
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    # A trial in a block: whether an attempt at it was invalid.
    hit: dict[tuple[int, str, int], bool] = {}
    for record in (trial.record for trial in run.trials):
        cell = cell_of(record.cell)
        if cell is None:
            continue
        is_invalid = record.status is TrialStatus.INVALID
        tried[cell.tuning] += 1
        invalid[cell.tuning] += is_invalid
        if is_invalid:
            reasons[cell.tuning] += map(str, record.reasons)
        key = record.block, cell.tuning, record.number
        hit[key] = hit.get(key, False) or is_invalid
    p_value = _p_value(hit)
    planned = [name for name in run.plan.tunings if name in tried]
    return Attempts(
        arms=tuple(
            ArmAttempts(
                tuning=name,
                attempts=tried[name],
                invalid=invalid[name],
                reasons=tuple(kinds(reasons[name])),
            )
            for name in dict.fromkeys([*planned, *tried])
        ),
        reasons=tuple(kinds(reason for own in reasons.values() for reason in own)),
        p_value=p_value,
        differ=p_value is not None and p_value <= LEVEL,
    )


def kinds(reasons: Iterable[str]) -> list[tuple[str, int]]:
    """Return reasons with their counts, the most frequent first. Reasons that differ only in
    figures or in lines of logs count as one."""
    counts = Counter(without_logs(reason)[0].rstrip(".") for reason in reasons)
    alike: dict[str, list[str]] = {}
    for reason, _ in counts.most_common():
        alike.setdefault(_NUMBER.sub("", reason), []).append(reason)
    told = [
        (f"{own[0]}{' and the like' if len(own) > 1 else ''}", sum(counts[one] for one in own))
        for own in alike.values()
    ]
    return sorted(told, key=lambda kind: -kind[1])


def unequally_invalid(found: Attempts) -> Iterator[str]:
    """Warn if the numbers of invalid attempts differ between arms."""
    if not found.differ:
        return
    most = max(found.arms, key=lambda arm: arm.share)
    fewest = min(found.arms, key=lambda arm: arm.share)
    yield (
        "The arms differ in invalid attempts by more than chance explains (p = "
        f"{found.p_value:.2g}): {_told(most)}, {_told(fewest)}. The cause of the invalid "
        "attempts affected some arms more than others, so their valid trials may differ "
        "for that reason alone. Check the table of invalid attempts before you compare "
        "these arms."
    )


def invalid_trials(found: Attempts) -> Iterator[str]:
    """Yield the number of invalid attempts and the reasons; nothing if none was invalid."""
    total = sum(arm.invalid for arm in found.arms)
    if total:
        named = [f"{reason} ({count}×)" for reason, count in found.reasons]
        yield f"{counted(total, 'invalid trial')}: {'; '.join(few(named)) or 'no reason given'}."


def _told(arm: ArmAttempts) -> str:
    return f"{arm.invalid} of {arm.attempts} of '{arm.tuning}'"


def _p_value(hit: Mapping[tuple[int, str, int], bool]) -> float | None:
    """Return the probability that chance makes arms differ as much; None if they cannot differ."""
    hits: defaultdict[int, defaultdict[int, dict[str, int]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    trials: Counter[tuple[int, str]] = Counter((block, tuning) for block, tuning, _ in hit)
    disturbed: Counter[tuple[int, str]] = Counter()
    for (block, tuning, _), is_hit in hit.items():
        disturbed[block, tuning] += is_hit
    # Compare arms with as many trials in the block: one that skips a workload has fewer chances.
    for (block, tuning), count in trials.items():
        hits[block][count][tuning] = disturbed[block, tuning]
    strata = [
        own for by_count in hits.values() for own in by_count.values() if len(set(own.values())) > 1
    ]
    if not strata:
        return None
    arms = {name: at for at, name in enumerate(sorted({name for own in strata for name in own}))}
    rng = np.random.default_rng(0)
    # Row 0 is the observation, the others are permutations of it.
    excess: Floats = np.zeros((_PERMUTATIONS + 1, len(arms)))
    for own in strata:
        values = np.array(list(own.values()), dtype=float)
        shuffled = rng.permuted(np.tile(values, (_PERMUTATIONS, 1)), axis=1)
        columns = [arms[name] for name in own]
        excess[:, columns] += np.vstack([values, shuffled]) - values.mean()
    statistic = (excess**2).sum(axis=1)
    as_much = int((statistic[1:] >= statistic[0] * (1 - 1e-9)).sum())
    return (1 + as_much) / (_PERMUTATIONS + 1)


# Name a run's gaps: skipped parts, missing records, reasons why nothing is judged.


_FEW_SKIPPED = 3


def hindrances(design: Design, cells: Cells, attempts: Attempts) -> Iterator[str]:
    """Yield why nothing, or nothing under some workload, can be judged."""
    yield from design.problems
    if not cells.series:
        why = ""
        if attempts.reasons:
            reason, count = attempts.reasons[0]
            total = sum(number for _, number in attempts.reasons)
            reason = _TRIAL_FOLDER.sub("", reason).rstrip(".")
            why = f" Most frequent failure ({count} of {total}): {reason}."
            if "metric '" in reason:
                why += " 'labctl workload try' shows how the program's output is read."
        yield f"The run has no valid trial with a measured value.{why}"
        return
    for workload, primary in design.primaries.items():
        keys = {
            key
            for cell, by_key in cells.series.items()
            if cell.place.workload == workload
            for key in by_key
        }
        if keys and primary.metric not in keys:
            reasons = [
                m.reason
                for m in cells.missing
                if m.metric == primary.metric and workload in m.workloads
            ]
            why = f" ({listed(reasons)})" if reasons else ""
            yield (
                f"'{primary.metric}', the primary metric of '{workload}', was measured nowhere"
                f"{why}, so nothing is judged under it. Measured were {listed(sorted(keys), 8)}."
            )


def imported(run: LoadedRun) -> Iterator[str]:
    """Warn if only the trials of the run are known."""
    source = run.run.imported
    if source:
        yield (
            f"Imported from '{source.file}', not measured by labctl: its comparisons, "
            "methods and host are known only from that file."
        )
    if not is_interleaved(run):
        yield (
            "Compared unpaired, because the file does not say that the trials were "
            "interleaved: changes on the host between one arm's trials and another's are "
            "part of the differences."
        )


def redacted(run: LoadedRun) -> Iterator[str]:
    """Warn if the run is a redacted copy."""
    said = run.run.redacted
    if not said:
        return
    what = ", ".join(said.taken_out)
    left_out = f" {counted(said.left_out, 'file')} of the run are left out." * bool(said.left_out)
    yield (
        f"Redacted copy, made by labctl {said.labctl} at {said.at}: everything that "
        f"identifies its host is replaced ({what or 'there was nothing'}).{left_out}"
    )


def left_out_arms(run: LoadedRun) -> Iterator[str]:
    left_out = skipped(run.plan, run.run)
    if len(left_out) > _FEW_SKIPPED:
        names = listed([f"'{name}'" for name in left_out])
        yield (
            f"{names} were skipped because this host does not support them: see the table of "
            "skipped tunings."
        )
        return
    for name, reason in left_out.items():
        yield f"'{name}' was skipped: {sentence(reason)}"


def recorded(run: LoadedRun) -> Iterator[str]:
    """Yield what the run was warned of, mostly by its plan; once for tunings that share it."""
    alike: dict[str, list[str]] = {}
    for warning in run.run.warnings:
        name, colon, text = warning.partition(": ")
        if not colon or name not in run.plan.tunings:
            name, text = "", warning
        alike.setdefault(text.rstrip("."), []).append(name)
    for text, names in alike.items():
        whose = listed([name for name in names if name], 8)
        yield f"{whose}: {text}." if whose else f"{text}."


def other_durability(design: Design) -> Iterator[str]:
    """Warn of tunings without a verdict because of their disk's durability (METHOD 10)."""
    others = [
        f"'{name}' ({design.durabilities[name]})"
        for name in design.candidates
        if any(not design.same_durability(name, place) for place in design.places)
    ]
    if others:
        theirs = design.durabilities.get(design.baseline or "")
        yield (
            f"The cache modes of {listed(others, 8)} have a different durability guarantee "
            f"from baseline's ({theirs}), so there is no verdict on their disk. Compare "
            "them with a baseline in the same mode."
        )


def left_out_blocks(design: Design, cells: Cells, *, paired: bool) -> Iterator[str]:
    """Yield blocks in which a cell has no value (METHOD: nothing is imputed)."""
    for cell, tried in cells.tried.items():
        blocks = sorted(tried - _usable(design, cells, cell))
        if not blocks:
            continue
        which = "any block" if len(blocks) == len(tried) else _blocks(blocks)
        shared = paired and cell.tuning in _references(design)
        others = " and of every tuning against it" if shared else ""
        yield (
            f"{cell} has no usable value in {which}, so it is left out of its comparisons{others}."
        )


def _usable(design: Design, cells: Cells, cell: Cell) -> set[int]:
    by_key = cells.at(cell.tuning, cell.place)
    primary = design.primaries.get(cell.place.workload)
    if primary is not None:
        return set(by_key[primary.metric].values) if primary.metric in by_key else set()
    return {block for series in by_key.values() for block in series.values}


def _references(design: Design) -> tuple[str | None, ...]:
    return (design.baseline, design.control, *design.natives)


def lacking_twins(design: Design) -> Iterator[str]:
    for tuning in design.candidates:
        twin = design.twins.get(tuning)
        if twin is not None and twin not in design.natives:
            yield (
                f"'{tuning}' is not compared with native: its native twin '{twin}' is not in "
                "this run."
            )


def unfinished(run: LoadedRun) -> Iterator[str]:
    status = run.run.status
    if status != "done":
        counts = count_trials(run)
        yield (
            f"The run is not finished (status: {status or 'unknown'}): {counts.done} of "
            f"{counts.planned} planned trials have a valid result. 'labctl sweep --resume "
            f"{run.name}' continues it."
        )


def _blocks(blocks: Sequence[int]) -> str:
    noun = "block" if len(blocks) == 1 else "blocks"
    return f"{noun} {listed([str(block) for block in blocks], 10)}"


# Describe the influence of a run's setting: emulation, kernels, collectors, unproven files.


_ALWAYS_TRACED, _ALWAYS_TRACED_INSIDE = "lost_events", "lost_events{of=guest}"
"""Metrics that every trace of a host, and of a guest, yields, if only as a count of lost events."""

LATENCY_LIMIT = "cpu_latency_limit"
"""Metric that has a value if a process limits it."""
LATENCY_KNOB = "cpu-dma-latency"
"""Knob of the host by which a tuning sets that limit; profiles of tuned may set it as well."""

_TWO_KERNELS = (
    "host and guest run different kernels: the native-versus-guest ratio is a stack difference, "
    "not virtualization overhead"
)

_HOST_IS_EMULATED = (
    "The host itself was emulated: its CPUs are QEMU's TCG. VM exits are real to its KVM, "
    "and so are their counts and reasons, per operation too; an operation takes longer "
    "than on hardware, so it sees more of the exits that come with time (timers, "
    "interrupts). Times, rates, their ratios and verdicts show the speed of the emulation "
    "and say nothing about other hosts."
)


def setting(run: LoadedRun, design: Design, cells: Cells) -> Iterator[str]:
    """Yield the influence of the accelerator, the kernels and the host on the run's numbers."""
    if run.run.host_is_emulated:
        yield _HOST_IS_EMULATED
    elif run.run.is_emulated:
        yield "The guests ran under TCG: " + (
            "the native-versus-guest ratio shows emulation, not virtualization."
            if design.natives
            else "a tuning may have a different effect on a guest under KVM."
        )
    if design.natives and run.run.same_kernel is False:
        yield sentence(str(run.run.kernel_sentence or _TWO_KERNELS))
    if run.run.accelerator == "kvm" and (text := hostfacts.kvm_caveat()):
        yield text
    if not run.run.host_is_emulated:
        yield from _host_is_a_guest(run)
    measured_here = not run.run.imported
    if measured_here and _has_hardware_counters(cells) and (text := hostfacts.pmu_caveat()):
        yield text


def _has_hardware_counters(cells: Cells) -> bool:
    return any("source=pmu" in key for series in cells.series.values() for key in series)


def _host_is_a_guest(run: LoadedRun) -> Iterator[str]:
    """Yield that the host is a virtual machine itself, by its CPU's hypervisor bit or model or
    systemd-detect-virt(1); nothing if the run recorded none of them."""
    host = run.run.host
    vendor, model = host.get("hypervisor_vendor"), host.get("cpu_model")
    named = vendor if isinstance(vendor, str) and vendor != "none" else None
    if named is None and isinstance(model, str) and model.startswith("QEMU "):
        named = "qemu"
    if host.get("hypervisor") is not True and named is None:
        return
    below = f"of {named}" if named else "of an unknown hypervisor"
    if run.run.accelerator == "kvm":
        yield (
            f"The host is a virtual machine itself, {below}, so the guests are nested: the "
            "hypervisor below also handles their exits, and an exit costs more than on a "
            "bare host. A gain from fewer exits here may not exist there."
        )
    else:
        yield (
            f"The host is a virtual machine itself, {below}: its CPUs may be shared with "
            "other guests that are not visible here, which affects native and guest trials."
        )


_BEFORE = (
    "Files and threads were only partly verified: an older labctl made this run. It took "
    "native hashes from the image's build, did not hash libraries, and read threads back "
    "once per restore. It would not have noticed a changed file, or a policy changed "
    "during a trial."
)


def unproven(run: LoadedRun) -> Iterator[str]:
    """Yield the unproven files of a run that measured something, labctl's own or not; nothing if
    all were proven."""
    if run.run.hashed:
        yield from run.run.hashed.unproven
    elif run.run.binaries:
        yield _BEFORE


def collecting_caveats(run: LoadedRun, cells: Cells) -> Iterator[str]:
    """Warn if collectors ran inside the measured windows, and name windows in which they did
    not."""
    if run.plan.is_lost or level_of(run) == LEAST:
        return
    yield costs_said(run)
    for missing in cells.missing:
        if missing.metric == _ALWAYS_TRACED:
            trials = counted(missing.trials, "trial")
            yield (
                f"{trials} have no trace of the host, so their numbers may lack the "
                f"disturbance of tracing: {missing.reason}"
            )
    full = sum(
        missing.trials
        for missing in cells.missing
        if missing.metric == _ALWAYS_TRACED_INSIDE and SIZE_LIMIT in missing.reason
    )
    if full:
        yield (
            f"In {counted(full, 'trial')} the guest's recording reached its {SIZE_LIMIT} "
            "before the measured window ended, so its figures are missing. Use shorter "
            "windows."
        )


def kept_awake(run: LoadedRun, cells: Cells) -> Iterator[str]:
    """Warn if another process limited the sleep of the host's CPUs (METHOD 9)."""
    tunings = run.run.tunings
    found: list[float] = []
    tried = 0
    for cell, blocks in cells.tried.items():
        tuning = tunings.get(cell.tuning)
        if not (tuning and {LATENCY_KNOB, "tuned"} & tuning.host.keys()):
            tried += len(blocks)
            limits = cells.at(cell.tuning, cell.place).get(LATENCY_LIMIT)
            found += limits.values.values() if limits else ()
    if found:
        least = quantity(min(found), Unit.SECONDS)
        yield (
            f"In {len(found)} of {tried} trials a program other than labctl limited the "
            f"wake-up latency of the host's idle CPUs (to {least} at the least): waking up "
            "cost less there than with the host's own settings."
        )


def closed_loop(run: LoadedRun, design: Design, cells: Cells) -> Iterator[str]:
    """Yield a sentence for each workload whose program reports every period, but which is not
    judged by open-loop latency: by choice, or because the plan is older than that metric."""
    for name, primary in design.primaries.items():
        program = run.plan.workloads[name].program
        if program not in SKIP_PERIODS or not primary.metric.startswith(CLOSED):
            continue
        there = any(
            key.startswith(OPEN)
            for cell, by_key in cells.series.items()
            if cell.place.workload == name
            for key in by_key
        )
        remedy = (
            "The open-loop latencies in the report include these periods; they get no "
            "verdict, because the plan names another primary metric."
            if there
            else f"'labctl run reparse {run.name}' adds open-loop latencies, which include these "
            "periods."
        )
        yield (
            f"Do not trust the {metric_title(primary.metric)} of '{name}': {program} skips "
            "the periods that a stall hides (coordinated omission), so a stall of any "
            f"length is one late wake-up. {remedy}"
        )


# Find this run's number for a metric in a table: an arm's value, or the ratio of two arms, each
# with an interval.


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """Hold a value or a ratio of a run. `low`, `high`: its 95 % interval; of higher confidence if
    a rule may end the run (METHOD 22). `unit`: None for a ratio. `why`: reason if it is missing."""

    number: float | None = None
    low: float | None = None
    high: float | None = None
    blocks: int = 0
    unit: Unit | None = None
    why: str = ""
    is_no_metric: bool = False
    """True if the arm need not have it, as a workload's own metric under another workload."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Hold a run's measurements, and the design by which they are read."""

    run: LoadedRun
    design: Design
    cells: Cells

    @classmethod
    def of(cls, run: LoadedRun) -> Measured:
        return cls(run, read_design(run), read_cells(run))

    def ratio(
        self, metric: str, tuning: str, place: Scenario, against: str, other: Scenario
    ) -> Own:
        """Return `tuning` in `place` / `against` in `other`.

        Against baseline the reference is the mean of baseline and control, as everywhere (METHOD
        17).
        """
        design = self.design
        if tuning == against and other == place:
            return Own(why="an arm is not compared with itself")
        ours, theirs = self._series(tuning, place, metric), self._series(against, other, metric)
        if ours is None or theirs is None:
            return self._missing(tuning if ours is None else against, place, metric)
        second = design.control if against == design.baseline and other == place else None
        control = self._series(second, place, metric) if second != tuning else None
        found = ratios(ours, [theirs] if control is None else [theirs, control])
        if isinstance(found, str):
            return Own(why=f"it {found}")
        interval = t_interval(found.spread, design.level)
        return Own(
            number=found.shown(found.spread.mean),
            low=None if interval is None else found.shown(interval.low),
            high=None if interval is None else found.shown(interval.high),
            blocks=found.spread.n,
        )

    def value(self, metric: str, tuning: str, place: Scenario) -> Own:
        """Return the typical value of an arm: the geometric mean over blocks if all values are
        above 0, else the arithmetic mean; for maxima the largest, which has no interval."""
        series = self._series(tuning, place, metric)
        if series is None:
            return self._missing(tuning, place, metric)
        unit, blocks = series.sample.unit, len(series.values)
        if series.is_maximum:
            return Own(number=series.typical, blocks=blocks, unit=unit)
        logs = series.least > 0
        interval = t_interval(alone(series, logs=logs), self.design.level)
        ends = (None, None) if interval is None else (interval.low, interval.high)
        low, high = (ratio_of(end) if logs and end is not None else end for end in ends)
        return Own(number=series.typical, low=low, high=high, blocks=blocks, unit=unit)

    def _series(self, tuning: str | None, place: Scenario, metric: str) -> Series | None:
        """Return the series with exactly the metric's name and labels, or else the sum by block of
        the series that have more labels; None if there is none, or if the numbers come from several
        sources (METHOD 12)."""
        if tuning is None:
            return None
        base, labels = base_name(metric), labels_of(metric)
        found = [
            series
            for series in self.cells.at(tuning, place).values()
            if series.sample.metric == base and labels.items() <= series.sample.labels.items()
        ]
        # A total beside its parts, as exits beside exits{reason=HLT}, is not a part.
        wanted = labels.keys() | {"source"}
        found = [series for series in found if series.sample.labels.keys() <= wanted] or found
        if len({series.sample.labels.get("source") for series in found}) != 1:
            return None
        first, *more = found
        if not more:
            return first
        blocks = set.intersection(*(set(series.values) for series in found))
        return replace(
            first,
            values={b: math.fsum(series.values[b] for series in found) for b in sorted(blocks)},
        )

    def _missing(self, tuning: str, place: Scenario, metric: str) -> Own:
        """Return the reasons why an arm lacks such a number."""
        if why := self.run.plan.skipped.get(tuning):
            return Own(why=why)
        base = base_name(metric)
        reasons = dict.fromkeys(
            item.reason
            for item in self.cells.missing
            if base_name(item.metric) == base
            and tuning in item.tunings
            and place.workload in item.workloads
        )
        if reasons:
            return Own(why="; ".join(reason.rstrip(".") for reason in reasons))
        return Own(why=f"{tuning} has no value of it", is_no_metric=True)
