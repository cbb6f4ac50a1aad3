"""Write the sentences that terminal and page share."""

from __future__ import annotations

import math
from collections.abc import Iterator

from labctl.analysis.answer.view import View
from labctl.analysis.answer.words import capital, listed, size_text, why_inconclusive
from labctl.analysis.effects.cells import Scenario, scenario_of
from labctl.analysis.model import Comparison, EffectKind, Precision
from labctl.analysis.times import wall_time
from labctl.base.notation import share, size
from labctl.base.wording import counted, duration
from labctl.store.run_folder import LoadedRun

_CHECK_WORDS = {
    "control": {
        True: ("✓", "passed: baseline equals itself"),
        False: ("✗", "failed: baseline differs from itself, no verdicts"),
        None: ("?", "open: only large effects get a verdict"),
    },
    "known_loss": {
        True: ("✓", "passed: the known loss was detected"),
        False: ("✗", "not detected: nothing is called equivalent"),
        None: ("?", "open: nothing is called equivalent"),
    },
}

_FEW_DIAGNOSTICS = 4


def time_taken(run: LoadedRun) -> str:
    """Return a run's duration and the part of it that was measured; "" if they are unknown."""
    spent = wall_time(run)
    if spent is None:
        return ""
    return (
        f"The run took {duration(spent.total)}: {100 * spent.share:.0f} % in measured "
        f"windows ({100 * spent.share_without_warmups:.0f} % not counting warm-ups)."
    )


def native_gap(view: View) -> str:
    """Return the causes of the difference between guest and native (METHOD 3)."""
    if view.run.run.host_is_emulated:
        return "an emulated host: does not measure virtualization"
    if view.run.run.is_emulated:
        return "emulation, not virtualization"
    if view.run.run.imported:
        return "imported: the difference between them is unknown"
    if view.run.run.same_kernel is True:
        return "virtualization overhead"
    return "stack difference: two kernels"


def direction(view: View, place: Scenario) -> str:
    """Return the primary metric and its better direction; "" without one."""
    item = view.primary_comparison(place)
    if item is None:
        return ""
    return f"judged by {view.title(place.workload, item.metric)}, {item.better} is better"


def intervals(view: View, place: Scenario) -> str:
    """Return how to read a change and its interval."""
    text = "The interval is below each change"
    primary = view.primary_comparison(place)
    if primary is not None:
        text += f": {share(primary.confidence)}"
        others = {
            item.confidence for item in view.comparisons(place) if item.role is not primary.role
        }
        if others != {primary.confidence}:
            text += " with a verdict"
            if len(others) == 1:
                text += f", {share(others.pop())} elsewhere"
    text += "."
    if primary is not None and primary.margin is not None:
        text += f" Changes under {margin(primary)} do not matter to this study."
    control = next((c for c in view.judgement.control if scenario_of(c) == place), None)
    if control is not None and control.estimate is not None:
        how = "is computed per block" if view.paired else "compares means of trials, unpaired,"
        text += (
            f" A change against {view.baseline} {how} against the mean of it and "
            f"{view.control}; {view.control}'s is against {view.baseline} only, at "
            f"{share(control.confidence)}."
        )
    elif not view.paired:
        text += f" A change against {view.baseline} compares means of trials, unpaired."
    return text


def calibrated(view: View, place: Scenario) -> Iterator[str]:
    """Yield the limits of a calibrated IPC (METHOD 13)."""
    titles = view.column_titles(place, view.columns(place.workload))
    if any("(calibrated)" in title for title in titles):
        yield (
            "IPC (calibrated) comes from instructions per operation, counted once, and the "
            "busy time of the vCPUs: it is the throughput in another unit, not separate "
            "evidence. It covers only user code and uses cycles of the reference clock, "
            f"not of the CPU.{_calibration_bound(view, place)}"
        )


def _calibration_bound(view: View, place: Scenario) -> str:
    """Return the spread of the counts of an operation's instructions; "" if it is unknown."""
    for row in view.run.run.calibration:
        bound = row.bound
        if row.workload == place.workload and bound is not None and math.isfinite(bound):
            return (
                " Its error bound is the difference between callgrind's counts on both "
                f"sides and {row.second_method or 'a second tool'}'s: {size(bound)}."
            )
    return ""


def inconclusive(view: View, place: Scenario) -> Iterator[str]:
    """Yield for each inconclusive tuning the reason, and the blocks that would decide it."""
    for tuning in view.candidates:
        for item in view.judged(place, tuning):
            if (why := why_inconclusive(item)) is not None:
                yield f"{tuning} is inconclusive ({why.reason}): {why.found}. {why.remedy}"


def harmless(view: View, place: Scenario) -> Iterator[str]:
    """Say for which tunings the run excludes the loss that the study calls harmful, and for which
    it does not."""
    open_ = {
        of.tuning: one.why
        for of in view.judgement.standings
        for one in of.unshown
        if scenario_of(one) == place
    }
    primary = view.primary_comparison(place)
    judged = [t for t in view.candidates if view.judged(place, t)]
    if primary is None or primary.no_worse_than is None or not _is_judged(view, place):
        return
    allowed = size_text(primary.no_worse_than, primary.kind, primary.unit)
    if shown := [tuning for tuning in judged if tuning not in open_]:
        yield f"A loss of {allowed} is excluded for {listed(shown, 8)}."
    if lacking := [f"{tuning} ({open_[tuning]})" for tuning in judged if tuning in open_]:
        yield f"A loss of {allowed} is not excluded for {listed(lacking, 8)}."


def _is_judged(view: View, place: Scenario) -> bool:
    judged = (c for tuning in view.candidates for c in view.judged(place, tuning))
    return any(c.verdict is not None and c.verdict.row.rests_on_checks for c in judged)


def left_out(view: View, place: Scenario) -> Iterator[str]:
    """Return the blocks that each tuning's comparison lacks."""
    for tuning in view.candidates:
        for item in view.judged(place, tuning):
            if not item.left_out:
                continue
            noun, verb = ("block", "is") if len(item.left_out) == 1 else ("blocks", "are")
            which = listed([str(block) for block in item.left_out], 10)
            yield (
                f"{tuning}: {noun} {which} {verb} missing: one side has no valid value, and "
                "none is imputed."
            )


def margin(item: Comparison) -> str:
    if item.margin is None:
        return "the threshold"
    return size_text(item.margin, item.kind, item.unit)


def check_words(view: View, place: Scenario, name: str) -> tuple[str, str]:
    """Return the result of a run's check in a place, as symbol and words; "" without such a
    check."""
    check = next((item for item in view.checks(place) if item.name == name), None)
    if check is None:
        return "", "not in this run"
    if check.passed is None and name == "control" and not _is_judged(view, place):
        return "?", "not checked: no verdict"
    return _CHECK_WORDS[name][check.passed]


def holm(view: View, place: Scenario) -> Iterator[str]:
    """Yield explanations of verdicts that do not follow from the interval beside them."""
    found = [t for t in view.candidates if any(c.by_holm for c in view.judged(place, t))]
    if found:
        yield (
            "By Holm: Holm's step-down procedure decides the verdict of "
            f"{listed(found, 8)}; the simultaneous interval shown does not."
        )


def diagnostics(view: View, place: Scenario) -> Iterator[str]:
    """Yield the first few reasons to trust a place's intervals less, the grave ones first."""
    found = view.diagnostics(place)
    for one in found[:_FEW_DIAGNOSTICS]:
        yield f"{capital(str(one.kind))}: {one.sentence}"
    if (more := len(found) - _FEW_DIAGNOSTICS) > 0:
        yield f"{counted(more, 'more diagnostic')}: see 'labctl report {view.run.name} --json'."


def precision(view: View, place: Scenario) -> Iterator[str]:
    """Yield the sources of the spread of a place's effects, and ways to lower it."""
    yield from (item.sentence for item in view.judgement.precision if scenario_of(item) == place)


def spreads(
    view: View, place: Scenario, item: Precision
) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return the known standard deviations of a place's effects by level, and the proposed run
    sizes, as text."""
    judged = view.primary_comparison(place)
    levels = (
        ("between boots", item.between_boots),
        ("between blocks", item.between_blocks),
        ("within a trial", item.within_trials),
    )
    proposal = []
    if item.boots is not None:
        proposal.append(counted(item.boots, "boot"))
    if item.blocks_per_boot is not None:
        proposal.append(f"{counted(item.blocks_per_boot, 'block')} per boot")
    if item.seconds is not None:
        proposal.append(f"{duration(item.seconds)} per trial")
    known = ((name, _spread(value, judged)) for name, value in levels)
    return tuple((name, spread) for name, spread in known if spread), ", ".join(proposal)


def _spread(deviation: float | None, judged: Comparison | None) -> str:
    """Return a standard deviation of effects as a size, or as a factor if it is of logarithms; ""
    if it is unknown."""
    if deviation is None or not math.isfinite(deviation) or judged is None:
        return ""
    ratio = judged.kind is EffectKind.RATIO
    return size_text(math.expm1(deviation) if ratio else deviation, judged.kind, judged.unit)
