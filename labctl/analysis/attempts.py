"""Show which attempts were invalid, arm by arm, and whether that hangs on the arm (METHOD 24).

Arms come in a random order within each block, so if validity doesn't hang on the arm, then within a
block each arm was as likely to be the disturbed one as any other. Attempts of one restore fail
together, and so do repeats: an arm counts once per block, with the number of its trials that had an
invalid attempt. Permuting these numbers among the arms of each block gives the distribution by
chance, whatever blocks had in common: Cochran's Q (Biometrika 37 (1950), 256-266), by permutation
instead of chi-square, as the counts are small.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from labctl.analysis.byblock import Floats
from labctl.analysis.cells import cell_of
from labctl.analysis.model import ArmAttempts, Attempts
from labctl.analysis.words import few
from labctl.base.wording import counted, without_logs
from labctl.store.run_folder import LoadedRun
from labctl.store.trial import TrialStatus

LEVEL = 0.01
"""Level of the test: at most one run in a hundred with equal arms gets the warning."""
_PERMUTATIONS = 1999
_NUMBER = re.compile(r"\d[\d.]*")


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
    """Count attempts by arm, in the order of the plan; the whole run's, extensions included."""
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
    """Return reasons and how often each was given, the most frequent first. The same one with other
    figures, or other lines of logs, is one."""
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
    """Warn where invalid attempts differ between arms."""
    if not found.differ:
        return
    most = max(found.arms, key=lambda arm: arm.share)
    fewest = min(found.arms, key=lambda arm: arm.share)
    yield (
        "Invalid attempts differ between arms by more than chance explains (p = "
        f"{found.p_value:.2g}): {_told(most)}, {_told(fewest)}. What made attempts invalid acted "
        "on some arms more than on others, so their valid trials may differ for that reason "
        "alone: see the table of invalid attempts before comparing such arms."
    )


def invalid_trials(found: Attempts) -> Iterator[str]:
    """Yield how many attempts were invalid, and why; nothing where none was."""
    total = sum(arm.invalid for arm in found.arms)
    if total:
        named = [f"{reason} ({count}×)" for reason, count in found.reasons]
        yield f"{counted(total, 'invalid trial')}: {'; '.join(few(named)) or 'no reason given'}."


def _told(arm: ArmAttempts) -> str:
    return f"{arm.invalid} of {arm.attempts} of '{arm.tuning}'"


def _p_value(hit: Mapping[tuple[int, str, int], bool]) -> float | None:
    """Return how often chance alone makes arms differ as much; None where nothing could differ."""
    hits: defaultdict[int, defaultdict[int, dict[str, int]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    trials: Counter[tuple[int, str]] = Counter((block, tuning) for block, tuning, _ in hit)
    disturbed: Counter[tuple[int, str]] = Counter()
    for (block, tuning, _), is_hit in hit.items():
        disturbed[block, tuning] += is_hit
    # Arms with as many trials in the block: one that skips a workload has fewer chances.
    for (block, tuning), count in trials.items():
        hits[block][count][tuning] = disturbed[block, tuning]
    strata = [
        own for by_count in hits.values() for own in by_count.values() if len(set(own.values())) > 1
    ]
    if not strata:
        return None
    arms = {name: at for at, name in enumerate(sorted({name for own in strata for name in own}))}
    rng = np.random.default_rng(0)
    # Row 0 is what was seen, the others what chance might have made of it.
    excess: Floats = np.zeros((_PERMUTATIONS + 1, len(arms)))
    for own in strata:
        values = np.array(list(own.values()), dtype=float)
        shuffled = rng.permuted(np.tile(values, (_PERMUTATIONS, 1)), axis=1)
        columns = [arms[name] for name in own]
        excess[:, columns] += np.vstack([values, shuffled]) - values.mean()
    statistic = (excess**2).sum(axis=1)
    as_much = int((statistic[1:] >= statistic[0] * (1 - 1e-9)).sum())
    return (1 + as_much) / (_PERMUTATIONS + 1)
