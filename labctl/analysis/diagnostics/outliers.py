"""Find blocks whose effect stands out, and tell what verdict there would be without them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from labctl.analysis.cells import Cell, Scenario, cell_of
from labctl.analysis.diagnostics import series
from labctl.analysis.diagnostics.lines import LEVEL, Ground, Line, whose
from labctl.analysis.diagnostics.outcomes import outcomes
from labctl.analysis.model import Diagnostic, DiagnosticKind
from labctl.analysis.words import listed
from labctl.store.run_folder import LoadedRun
from labctl.store.trial import TrialStatus


def outliers(ground: Ground, lines: Sequence[Line], run: LoadedRun) -> Iterator[Diagnostic]:
    """Yield blocks that stand out. One that does so for several arms is told once, as what these
    share (baseline and control, or the hour) is what to look at."""
    alpha = LEVEL / len(lines)
    standing_out: defaultdict[int, list[Line]] = defaultdict(list)
    for line in lines:
        for block in line.at(series.outliers(line.apart_from_boots, alpha, line.effects.floor)):
            standing_out[block].append(line)
    alike: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for block, found in sorted(standing_out.items()):
        alike[tuple(line.name for line in found)].append(block)
    for names, blocks in alike.items():
        yield _outlier(ground, lines, names, blocks, run)


def _outlier(
    ground: Ground,
    lines: Sequence[Line],
    names: Sequence[str],
    blocks: Sequence[int],
    run: LoadedRun,
) -> Diagnostic:
    first = next(line for line in lines if line.name == names[0])
    several = len(names) > 1
    typical = median(v for block, v in first.effects.by_block.items() if block not in blocks)
    there = listed([first.text(first.effects.by_block[block]) for block in blocks], 5)
    seen = f"{whose(ground, first)} is {there} where it is typically {first.text(typical)}"
    if several:
        others = listed([f"'{name}'" for name in names[1:]], 4)
        seen += f", and {others} stand{'' if len(names) > 2 else 's'} out there as well"
    hanging = " ".join(_hanging(ground, lines, names, blocks))
    references = [name for name in (ground.design.baseline, ground.design.control) if name]
    stands = f"{_blocks(blocks)} {'stands' if len(blocks) == 1 else 'stand'} out"
    arms = references if several else [first.name, *references]
    return ground.diagnostic(
        DiagnosticKind.OUTLIER,
        None if several else first.name,
        f"{stands}: {seen}. Nothing is left out for that, and the interval is the wider for it. "
        f"{hanging or 'No verdict and no check hangs on that.'} "
        f"Look at {_folders(run, arms, ground.place, blocks)}: invalid attempts before, CPU time "
        "of others (host_cpu{thread=other}), the kernel's log of that minute.",
        blocks=blocks,
        grave=bool(hanging),
    )


def _hanging(
    ground: Ground, lines: Sequence[Line], names: Sequence[str], blocks: Sequence[int]
) -> Iterator[str]:
    """Yield what of these arms would be said without the blocks, where it is something else."""
    now, then = outcomes(ground, lines), outcomes(ground, lines, without=blocks)
    instruments = {ground.design.control: "The control", ground.design.known_loss: "The known loss"}
    for name in names:
        # Where another rule made the verdict, these two say nothing of it.
        if now[name] != then[name] and ground.verdicts.get(name, now[name]) == now[name]:
            who = instruments.get(name, f"'{name}'")
            them = "it" if len(blocks) == 1 else "them"
            yield f"{who} is '{now[name]}' with {them} and would be '{then[name]}' without."


def _folders(run: LoadedRun, arms: Iterable[str], place: Scenario, blocks: Iterable[int]) -> str:
    """Name the trials that counted there: "trials/0131 ('pinned')"."""
    wanted = {(Cell(arm, place), block) for arm in arms for block in blocks}
    return listed(
        [
            f"trials/{trial.folder.path.name} ('{trial.record.cell['tuning']}')"
            for trial in run.trials
            if trial.record.status is TrialStatus.DONE
            and (cell_of(trial.record.cell), trial.record.block) in wanted
        ],
        6,
    )


def _blocks(blocks: Sequence[int]) -> str:
    numbers = listed([str(block) for block in blocks], 10)
    return f"{'Block' if len(blocks) == 1 else 'Blocks'} {numbers}"
