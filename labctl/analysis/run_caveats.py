"""Say what of a run is missing: what it left out, what is known of it, why nothing is judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labctl.analysis.attempts import count_trials
from labctl.analysis.cells import Cell, Cells
from labctl.analysis.design import Design
from labctl.analysis.pairing import is_interleaved
from labctl.analysis.skipped import skipped
from labctl.analysis.words import listed, sentence
from labctl.base.wording import counted
from labctl.store.run_folder import LoadedRun

_FEW_SKIPPED = 3


def hindrances(design: Design, cells: Cells) -> Iterator[str]:
    """Yield why nothing, or nothing under some workload, can be judged."""
    yield from design.problems
    if not cells.series:
        yield "The run has no valid trial with a measured value."
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
    """Warn where only the trials of the run are known."""
    source = run.run.imported
    if source:
        yield (
            f"Imported from '{source.file}', not measured by labctl: what was compared, how "
            "and on what host is known from that file alone."
        )
    if not is_interleaved(run):
        yield (
            "Compared unpaired, as nothing says that the trials were interleaved: what changed on "
            "the host between one arm's trials and another's is in the differences."
        )


def redacted(run: LoadedRun) -> Iterator[str]:
    """Warn where the run is a redacted copy."""
    said = run.run.redacted
    if not said:
        return
    what = ", ".join(said.taken_out)
    left_out = f" {counted(said.left_out, 'file')} that it had are left out." * bool(said.left_out)
    yield (
        f"Redacted copy, made by labctl {said.labctl} at {said.at}: what identifies its host "
        f"is replaced ({what or 'there was nothing'}).{left_out}"
    )


def left_out_arms(run: LoadedRun) -> Iterator[str]:
    left_out = skipped(run.plan, run.run)
    if len(left_out) > _FEW_SKIPPED:
        names = listed([f"'{name}'" for name in left_out])
        yield f"{names} were skipped, as this host can't have them: the table of them says why."
        return
    for name, reason in left_out.items():
        yield f"'{name}' was skipped: {sentence(reason)}"


def recorded(run: LoadedRun) -> Iterator[str]:
    """Yield what the run was warned of when it was planned; once for tunings that share it."""
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
            f"The cache modes of {listed(others, 8)} have another durability guarantee than "
            f"baseline's ({theirs}), so there is no verdict on their disk. Compare them with a "
            "baseline of their own mode."
        )


def left_out_blocks(design: Design, cells: Cells, *, paired: bool) -> Iterator[str]:
    """Yield blocks of which a cell has no value to compare (METHOD: nothing is imputed)."""
    for cell, tried in cells.tried.items():
        blocks = sorted(tried - _usable(design, cells, cell))
        if not blocks:
            continue
        which = "any block" if len(blocks) == len(tried) else _blocks(blocks)
        shared = paired and cell.tuning in _references(design)
        others = " and of every tuning against it" if shared else ""
        yield f"{cell} has no usable value in {which}: left out of its comparisons{others}."


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
            yield f"'{tuning}' is not compared with native: its twin '{twin}' is not in this run."


def unfinished(run: LoadedRun) -> Iterator[str]:
    status = run.run.status
    if status != "done":
        counts = count_trials(run)
        yield (
            f"The run is not finished (status: {status or 'unknown'}): {counts.done} "
            f"of {counts.planned} planned trials have a valid result. "
            f"'labctl sweep --resume {run.name}' goes on with it."
        )


def _blocks(blocks: Sequence[int]) -> str:
    noun = "block" if len(blocks) == 1 else "blocks"
    return f"{noun} {listed([str(block) for block in blocks], 10)}"
