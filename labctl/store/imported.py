"""Make runs from archives, and from trials that labctl did not measure, with a plan of what their
importer declares."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from labctl.base.errors import HostError, UsageError, nearest
from labctl.store.archive import RunArchive
from labctl.store.jsonfile import canonical, folder_begun, put, write_bytes
from labctl.store.records.factor_record import FactorCell, Factorial, PlannedFactor, base_of
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import LoadedRun, RunFolder
from labctl.store.samples import Sample
from labctl.store.trial_csv import COPY, CsvTrials

T = TypeVar("T")

_ALL = "all"
"""Name of the arm or the workload if it is a factor itself."""
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Hold what a CSV file cannot express about its trials. None: the tuning of the role's own
    name, if there is one.

    `primaries`: "METRIC", for every workload that has it, or "WORKLOAD=METRIC". `interleaved`: each
    block held all arms side by side. `factors`: levels in order, () for those of the file;
    `own_boot`: factors that took a boot of their own; `interactions`: pairs of factors.
    """

    baseline: str | None = None
    control: str | None = None
    handicap: str | None = None
    primaries: Sequence[str] = ()
    margin: str = "5 %"
    interleaved: bool = False
    factors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own_boot: Sequence[str] = ()
    interactions: Sequence[tuple[str, str]] = ()


def declared_plan(trials: CsvTrials, declared: Declared, name: str) -> PlanRecord:
    """Return the plan that judges `trials`, of the study `name`; raises UsageError naming the
    option."""
    records = [record for record, _ in trials.trials]
    tunings = list(dict.fromkeys(record.cell["tuning"] for record in records))
    baseline = _role("baseline", declared.baseline, tunings)
    if baseline is None:
        raise UsageError(
            "no baseline is declared",
            hint=f"Name one of them with --baseline: {', '.join(tunings)}.",
        )
    blocks = {record.block for record in records}
    primaries, margin = _primaries(trials, declared.primaries), _margin(declared.margin)
    content = {
        "study": name,
        "title": f"Trials from elsewhere: {name}",
        "quick": False,
        "blocks": len(blocks),
        "boots": len({record.boot for record in records}),
        "interleaved": declared.interleaved,
        "baseline": baseline,
        "control": _role("control", declared.control, tunings),
        "handicap": _role("handicap", declared.handicap, tunings),
        "tunings": {tuning: _tuning(tuning, tunings) for tuning in tunings},
        "workloads": {
            workload: {"primary": metric, "margin": margin}
            for workload, metric in primaries.items()
        },
        "conditions": list(
            dict.fromkeys(r.cell["condition"] for r in records if "condition" in r.cell)
        ),
        "trials": [
            {
                "number": record.number,
                "block": record.block,
                "boot": record.boot,
                "position": record.position,
                "cell": dict(record.cell),
            }
            for record in {record.number: record for record in records}.values()
        ],
        **({"factorial": asdict(factorial_of(trials, declared))} if declared.factors else {}),
    }
    digest = hashlib.sha256(canonical(content).encode()).hexdigest()
    return PlanRecord.made({"digest": digest, **content})


def factorial_of(trials: CsvTrials, declared: Declared) -> Factorial:
    """Return the factors of imported trials; raises UsageError naming the option.

    Levels have the declared order; otherwise numbers ascend, and names are sorted, because the
    order of the rows may have been random.
    """
    for option, names in (
        ("own-boot", declared.own_boot),
        *(("interaction", pair) for pair in declared.interactions),
    ):
        for name in names:
            if name not in declared.factors:
                raise UsageError(
                    f"--{option}: no --factor names '{name}'",
                    hint=nearest(name, declared.factors),
                )
    cells = list(_factor_cells(trials, declared))
    factors = {}
    for name, given in declared.factors.items():
        there = {cell.levels[name] for cell in cells if name in cell.levels}
        for level in given:
            if level not in there:
                raise UsageError(
                    f"--factor: '{name}' has no level '{level}' in the file",
                    hint=nearest(level, there),
                )
        if not given and name == "tuning":
            given = tuple(filter(there.__contains__, (declared.baseline or "baseline",)))
        rest = sorted(there.difference(given), key=_rank)
        factors[name] = PlannedFactor(levels=(*given, *rest), own_boot=name in declared.own_boot)
    return Factorial(factors=factors, interactions=tuple(declared.interactions), cells=tuple(cells))


def _factor_cells(trials: CsvTrials, declared: Declared) -> Iterator[FactorCell]:
    """Yield the cells; if tuning, workload or condition is a factor itself, all of its values are
    compared with each other."""
    checks = (declared.control or "control", declared.handicap or "handicap")
    for place, given in trials.levels.items():
        levels = {name: getattr(place, name, given.get(name)) for name in declared.factors}
        if "tuning" in levels and place.tuning in checks:
            continue
        yield FactorCell(
            tuning=place.tuning,
            workload=place.workload,
            condition=place.condition,
            arm=_ALL if "tuning" in levels else place.tuning,
            group=_ALL if "workload" in levels else base_of(place.workload),
            under=None if "condition" in levels else place.condition or None,
            levels={
                name: base_of(level) if name == "workload" else level
                for name, level in levels.items()
                if level
            },
        )


def _rank(level: str) -> tuple[bool, float, str]:
    return (False, float(level), level) if _NUMBER.fullmatch(level) else (True, 0.0, level)


def design_of(run: LoadedRun, trials: CsvTrials) -> PlanRecord:
    """Return the plan of a run that `trials` were exported from; raises UsageError if they were
    not."""
    planned = {trial.cell.get("tuning") for trial in run.plan.trials}
    for record, _ in trials.trials:
        if record.cell["tuning"] not in planned:
            raise UsageError(
                f"the plan of {run.name} has no tuning '{record.cell['tuning']}'",
                hint=nearest(record.cell["tuning"], map(str, planned)),
            )
    return run.plan


def write_imported(
    results: Path,
    name: str,
    *,
    plan: PlanRecord,
    trials: CsvTrials,
    source: tuple[str, bytes],
    record: RunRecord,
) -> RunFolder:
    """Return a run folder of the trials with a copy of their file (`source`: its name and its
    content).

    `record`: the other entries of run.json. Raises UsageError if the run exists already.
    """
    file, data = source
    with _new_run(results, name) as path:
        folder = RunFolder.create(path.parent, path.name)
        write_bytes(folder.path / COPY, data, below=folder.path)
        folder.write_plan(plan)
        for trial, readings in trials.trials:
            place = folder.new_trial(trial.number, trial.attempt)
            # A native trial shares nothing with a boot, whatever column the file has.
            arm = plan.tunings.get(trial.cell["tuning"])
            kind = arm.kind if arm else "guest"
            place.write_readings(readings)
            record_of = replace(trial, parsed_with={"kind": kind}, digests=place.digests())
            place.write_record(record_of)
        source_of = {
            "file": file,
            "sha256": hashlib.sha256(data).hexdigest(),
            "rows": trials.rows,
        }
        folder.write_run(
            record.but(status="done", study=plan.study, title=plan.title, imported=source_of)
        )
    return RunFolder(results / name)


def _role(role: str, named: str | None, tunings: Collection[str]) -> str | None:
    if named is None:
        return role if role in tunings else None
    if named not in tunings:
        raise UsageError(f"--{role}: no tuning '{named}' in the file", hint=nearest(named, tunings))
    return named


def _tuning(name: str, tunings: Collection[str]) -> dict[str, Any]:
    """Describe an arm: labctl's own names show which one is native, and whose twin it is."""
    if name.partition("+")[0] == "native":
        return {"kind": "native", "twin": None, "description": ""}
    twin = f"native+{name}"
    return {"kind": "guest", "twin": twin if twin in tunings else None, "description": ""}


def _margin(text: str) -> float:
    found = _SHARE.fullmatch(text.strip())
    if found is None or not 0 < (share := float(found[1]) / 100) < 1:
        raise UsageError(
            f"--threshold: '{text}' is not a share above 0 and below 100 %",
            hint="Write it as '5%'.",
        )
    return share


def _primaries(trials: CsvTrials, given: Sequence[str]) -> dict[str, str]:
    """Workload to its primary metric: as declared, or the only one that it has."""
    measured: dict[str, dict[str, None]] = {}
    for record, readings in trials.trials:
        keys = measured.setdefault(record.cell["workload"], {})
        keys.update(dict.fromkeys(r.key for r in readings if isinstance(r, Sample)))
    chosen: dict[str, str] = {}
    known_names = sorted({*measured, *map(base_of, measured)}, key=len, reverse=True)
    for text in given:
        named = next((name for name in known_names if text.startswith(f"{name}=")), None)
        workload, equals, metric = text.partition("=")
        if named is not None:
            metric = text.removeprefix(f"{named}=")
            of = {name: keys for name, keys in measured.items() if named in (name, base_of(name))}
            chosen |= dict.fromkeys(of, metric)
        # The metric's own labels hold an equals sign as well: a workload has no brace.
        elif not equals or "{" in workload:
            metric, of = text, measured
            chosen |= {name: text for name, keys in measured.items() if text in keys}
        else:
            raise UsageError(
                f"--primary: no workload '{workload}' in the file",
                hint=nearest(workload, known_names),
            )
        known = {key for keys in of.values() for key in keys}
        if metric not in known:
            raise UsageError(f"--primary: no metric '{metric}' there", hint=nearest(metric, known))
    for workload, keys in measured.items():
        if workload not in chosen and len(keys) != 1:
            has = ", ".join(keys) or "none"
            raise UsageError(
                f"no metric is declared primary for '{workload}'",
                hint=f"Give --primary {base_of(workload)}=METRIC. It has: {has}.",
            )
        chosen.setdefault(workload, next(iter(keys)))
    return chosen


def write_unpacked(
    results: Path, name: str, archive: RunArchive, look: Callable[[RunFolder], T]
) -> tuple[RunFolder, T]:
    """Return a new run of an archive's content, and what `look` found in it before it was one of
    `results`; raises as `write_imported`, and BrokenError for a file that is not an archive. An
    archive that cannot be unpacked or looked at leaves nothing behind."""
    with _new_run(results, name) as run:
        run.mkdir(mode=0o700)
        archive.unpack(run)
        found = look(RunFolder(run))
    return RunFolder(results / name), found


@contextmanager
def _new_run(results: Path, name: str) -> Iterator[Path]:
    """Yield a path for a run to be made at; after the block it is one of `results`. A block that
    fails, or a labctl that is killed, leaves nothing of that name."""
    if os.path.lexists(results / name):
        raise _there_already(results, name)
    try:
        results.mkdir(parents=True, exist_ok=True)
        with folder_begun(results, "import") as made:
            yield made / name
            put(made / name, results / name)
    except OSError as error:
        raise _unwritable(results, name, error) from error


def _there_already(results: Path, name: str) -> UsageError:
    return UsageError(
        f"run '{name}' already exists in {results}", hint="Choose another name with --name."
    )


def _unwritable(results: Path, name: str, error: OSError) -> HostError:
    return HostError(
        f"cannot make the run's folder {results / name}: {error.strerror}",
        hint="Name a writable folder with --results.",
    )
