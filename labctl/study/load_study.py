"""Load studies, files in `benchmarks/`, cut to what a command line asks for of them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from labctl.base.errors import UsageError, nearest
from labctl.base.paths import data_files
from labctl.base.stopping import FEWEST_BLOCKS, MOST_BLOCKS, MOST_SPARES, Stopping
from labctl.base.tuning import Level
from labctl.base.yaml import Placing, load_mapping, validate
from labctl.base.yamltext import YamlMapping
from labctl.store.records.factor_record import PlannedHeatmap, base_of
from labctl.store.records.plan_record import PublishedSource, ReportRow, ReportTable
from labctl.study.combine import JOINT, with_combinations
from labctl.study.conditions import Beside, Conditions
from labctl.study.factorfile import Known, check_factors, check_heatmaps
from labctl.study.factors import Axes, expand, only_workloads
from labctl.study.programs import Program, Programs
from labctl.study.published_file import read_published
from labctl.study.question import PLACE, Question
from labctl.study.study import GuestShape, Limits, Roles, Study, StudyWorkload, study_path
from labctl.study.studyfile import StudyFile, WorkloadFile
from labctl.study.tunings import Defined, load_tunings, required, tuning_names

# Make a study with factors one that has only the axes that every study has.


NATIVE = "native"
"""Beginning of the names of arms without a guest."""


def with_factors(study: Study, programs: Programs, named: Collection[str]) -> Study:
    """Return the study whose axes are those that its factors make. `named`: the workloads that were
    asked for, some of which may be single cells.

    Raises UsageError as `expand`, and for parameters that don't go together.
    """
    roles = study.roles
    found = expand(
        study.declared,
        Axes(
            tunings=study.tunings,
            single=frozenset(
                name
                for name in study.tunings
                if name in (roles.control, roles.handicap) or name.partition(JOINT)[0] == NATIVE
            ),
            baseline=roles.baseline,
            workloads={name: workload.parameters for name, workload in study.workloads.items()},
            conditions=study.conditions,
        ),
    )
    if any(base_of(name) != name for name in named):
        found = only_workloads(found, named)
    workloads = {}
    for name, (base, parameters) in found.workloads.items():
        of = study.workloads[base]
        try:
            checked = programs.of(of).check_parameters(parameters)
        except UsageError as error:
            raise UsageError(f"workload '{name}': {error.message}", hint=error.hint) from error
        workloads[name] = replace(of, parameters=dict(checked))
    made = {
        base: [name for name, (of, _) in found.workloads.items() if of == base]
        for base in study.workloads
    }
    return replace(
        study,
        tunings=tuple(found.tunings),
        workloads=workloads,
        conditions=found.conditions,
        factorial=found.factorial,
        exercises={
            tuning: tuple(name for base in study.exercises[arm] for name in made[base])
            for tuning, arm in found.tunings.items()
            if arm in study.exercises
        },
        requires={
            tuning: study.requires[arm]
            for tuning, arm in found.tunings.items()
            if arm in study.requires
        },
    )


# Check what types alone don't say of a study's file: names, its length, what workloads take.


def defined_programs(path: Path, file: StudyFile, programs: Programs) -> dict[str, Program]:
    """Return the program of each workload, what the study defines itself included. Raises
    UsageError naming file, line and key."""
    return {
        name: programs[workload.program]
        if workload.define is None
        else programs.define(workload.program, YamlMapping(workload.define), path)
        for name, workload in file.workloads.items()
    }


def defined_conditions(
    path: Path, file: StudyFile, programs: Programs, defined: Mapping[str, Program]
) -> Conditions:
    """Return the conditions that the study may name: those of files, and those that it defines
    itself."""
    given = {name: YamlMapping(one) for name, one in file.conditions.items() if one is not None}
    return Conditions(path, given, _programs_beside(file, programs, defined))


def _programs_beside(file: StudyFile, programs: Programs, defined: Mapping[str, Program]) -> Beside:
    """Return what neighbours of the study may run."""
    own = (name for name, one in file.workloads.items() if one.define is not None)
    return Beside({name: defined[name] for name in own}, programs)


def defined_tunings(path: Path, file: StudyFile) -> Defined:
    """Return the tunings that a study defines itself."""
    return Defined(path, {name: YamlMapping(one) for name, one in file.define.items()})


def read_study_file(path: Path, programs: Programs) -> StudyFile:
    """Return the checked content of a study's file.

    `programs`: what a workload's `program` may name. Raises UsageError naming file, line, key,
    what is allowed and the nearest name.
    """
    return checked_study(path, load_mapping(path), programs)


def checked_study(path: Path, mapping: YamlMapping, programs: Programs) -> StudyFile:
    """Return the checked content of a study. `path`: of its file, for errors, which are those of
    `read_study_file`."""
    file = validate(StudyFile, mapping, path)
    _Checked(path, mapping, file).check(programs)
    return file


@dataclass(frozen=True, slots=True)
class _Checked(Placing):
    """Check the names in a study's file whose keys and types are right."""

    path: Path
    mapping: YamlMapping
    file: StudyFile

    def check(self, programs: Programs) -> None:
        file = self.file
        defined_here = defined_tunings(self.path, file)
        known = [*tuning_names(), *file.define]
        load_tunings(file.define, defined_here)
        for index, name in enumerate(file.tunings):
            with self._placed("tunings", index):
                known = with_combinations([name], known)
        self._names(file.tunings, "tuning", known, "tunings")
        self._check_length()
        for role, name in file.roles:
            if name is not None:
                with self._placed("roles", role):
                    known = with_combinations([name], known)
                self._name(name, "tuning", known, "roles", role)
        defined: dict[str, Program] = {}
        for name, workload in file.workloads.items():
            if workload.define is None:
                self._name(workload.program, "program", programs, "workloads", name, "program")
                defined[name] = programs[workload.program]
            else:
                mapping = self.mapping["workloads"][name]["define"]
                defined[name] = programs.define(workload.program, mapping, self.path)
            self._check_program(name, workload, defined[name])
        conditions = self._check_conditions(programs, defined)
        self._check_factors(defined, known, conditions)
        for tuning, workloads in file.exercises.items():
            self._name(tuning, "tuning of the study", file.arms, "exercises", tuning)
            self._names(workloads, "workload of the study", file.workloads, "exercises", tuning)
        for tuning in file.requires:
            self._name(tuning, "tuning of the study", file.tunings, "requires", tuning)
        self._check_tables()
        images = data_files("guest-images")
        self._name(file.guest.image, "guest image", images, "guest", "image")
        if file.quick is not None:
            chosen = (
                (file.quick.tunings, "tuning", file.arms, "tunings"),
                (file.quick.workloads, "workload", file.workloads, "workloads"),
                (file.quick.conditions, "condition", file.conditions, "conditions"),
            )
            for names, what, allowed, key in chosen:
                self._names(names or [], f"{what} of the study", allowed, "quick", key)

    def _check_conditions(
        self, programs: Programs, defined: Mapping[str, Program]
    ) -> Collection[str]:
        """Return the names of all conditions that the study may name."""
        given = self.mapping.get("conditions", {})
        names = (name for name, one in self.file.conditions.items() if one is not None)
        own = {name: given[name] for name in names}
        known = Conditions(self.path, own, _programs_beside(self.file, programs, defined))
        for index, name in enumerate(self.file.conditions):
            place = index if isinstance(given, list) else name
            self._name(name, "condition", known, "conditions", place)
        for name in own:
            known.check(name)
        return known

    def _check_factors(
        self,
        defined: Mapping[str, Program],
        tunings: Collection[str],
        conditions: Collection[str],
    ) -> None:
        file = self.file
        named = [
            level.tuning
            for factor in file.factors.values()
            if not isinstance(factor.levels, list)
            for level in factor.levels.values()
            if level.tuning
        ]
        with self._placed("factors"):
            tunings = with_combinations(named, tunings)
        known = Known(
            tunings=tunings,
            conditions=conditions,
            workloads={
                name: (defined[name], workload.parameters)
                for name, workload in file.workloads.items()
            },
            primaries={
                name: workload.primary or defined[name].primary
                for name, workload in file.workloads.items()
            },
        )
        check_factors(file.factors, file.exclude, file.interactions, known, self._place)
        pairs = [(one.across, one.down) for one in file.heatmaps]
        check_heatmaps(pairs, file.factors, self._place)
        levels = file.quick.levels if file.quick is not None else {}
        with self._placed("quick", "factors", among=levels):
            file.declared.choosing(levels)

    def _check_tables(self) -> None:
        for index, table in enumerate(self.file.tables):
            keys = ("tables", index)
            if table.factor is not None:
                self._name(table.factor, "factor", self.file.factors, *keys, "factor")
            for number, row in enumerate(table.rows):
                if table.factor is not None and row.against is not None:
                    self._fail(
                        "a table of a factor compares an arm with itself: leave out 'against'",
                        *(*keys, "rows", number, "against"),
                    )
                for key, name in row:
                    if name is not None:
                        place = (*keys, "rows", number, key)
                        self._name(name, "tuning of the study", self.file.arms, *place)
            self._names(
                table.workloads or [],
                "workload of the study",
                self.file.workloads,
                *keys,
                "workloads",
            )

    def _check_length(self) -> None:
        """Check that the number of blocks is given at most once: as a number, or as a rule."""
        given = [key for key in ("blocks", "stop", "looks") if getattr(self.file, key) is not None]
        if len(given) > 1:
            said = " and ".join(f"'{key}'" for key in given)
            raise UsageError(
                f"{self._place(*given[-1:])}: expected only one of 'blocks', 'stop' and "
                f"'looks', got {said}",
                hint="'blocks: 10' is a fixed number; 'stop: {width_percent: 2, most_blocks: 40}' "
                "and 'looks: [10, 15, 20]' are rules.",
            )
        with self._placed(*given, among=("width_percent", "most_blocks")):
            self.file.rule()
        quick = self.file.quick
        if quick is None or quick.looks is None:
            return
        if quick.blocks is not None:
            raise UsageError(
                f"{self._place('quick', 'looks')}: expected only one of 'blocks' and 'looks'"
            )
        with self._placed("quick", "looks"):
            quick.changes(self.file.native_width)

    def _names(
        self, names: list[str], what: str, allowed: Collection[str], *keys: str | int
    ) -> None:
        for index, name in enumerate(names):
            self._name(name, what, allowed, *keys, index)
            if name in names[:index]:
                raise UsageError(f"{self._place(*keys, index)}: '{name}' appears twice")

    def _name(self, name: str, what: str, allowed: Iterable[str], *keys: str | int) -> None:
        choices = list(allowed)
        if name not in choices:
            key = ".".join(str(part) for part in keys if isinstance(part, str))
            raise UsageError(
                f"{self._place(*keys)}: '{key}': no {what} '{name}'", hint=nearest(name, choices)
            )

    def _check_program(self, name: str, workload: WorkloadFile, program: Program) -> None:
        keys = ["workloads", name]
        metrics = {program.primary, program.rate_metric or program.primary, *program.deciding}
        if workload.primary is not None:
            self._name(workload.primary, "metric", metrics, *keys, "primary")
        with self._placed(*keys, "duration_s"):
            program.check_duration(workload.duration_s)
        with self._placed(*keys, "parameters", among=workload.parameters):
            program.check_parameters(workload.parameters)
        quick = self.file.quick
        if quick and quick.duration_s and (quick.workloads is None or name in quick.workloads):
            with self._placed("quick", "duration_s"):
                program.check_duration(quick.duration_s)


ONE_PROGRAM_FILE = "workload.yaml"
"""File of a run's folder that says what the command line declared; the files that it brings are in
`workload-files`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneProgram:
    """Name the program that a command line gives. `words`: the options that gave it, for the
    run's record."""

    name: str
    workload: StudyWorkload
    words: tuple[str, ...] = ()
    definition: Mapping[str, object] = field(default_factory=dict)
    """Mapping that a file with the same workload would hold."""
    sources: Mapping[str, Path] = field(default_factory=dict)
    """Files of this host that it brings, by their names in `{{ files }}`."""
    contents: Mapping[str, bytes] = field(default_factory=dict)
    """Content of those that are kept with a run, not named by path and digest."""

    def as_files(self, name: str) -> dict[str, bytes]:
        """Return the workload's file `name` and the files that it brings, in a folder beside it, by
        relative path."""
        folder = f"{name.removesuffix('.yaml')}-files"
        mapping = dict(self.definition)
        if brought := mapping.get("files"):
            assert isinstance(brought, Mapping)
            kept = {inside: f"./{folder}/{inside}" for inside in self.contents}
            mapping["files"] = {**brought, **kept}
        files = {f"{folder}/{inside}": data for inside, data in self.contents.items()}
        return {name: "".join(_yaml_lines(mapping)).encode(), **files}


_PLAIN_KEY = re.compile(r"(?!(?:yes|no|on|off|true|false|null)$)[a-z][a-z_]+")


def _yaml_lines(mapping: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """Yield the lines of a mapping. Values other than mappings are JSON, which YAML takes."""
    for key, value in mapping.items():
        name = key if _PLAIN_KEY.fullmatch(key) else json.dumps(key)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:\n"
            yield from _yaml_lines(value, f"{indent}  ")
        else:
            yield f"{indent}{name}: {json.dumps(value, ensure_ascii=False)}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Hold what a command line changes of a study; None leaves it as the file has it."""

    tunings: Collection[str] | None = None
    workloads: Collection[str] | None = None
    conditions: Collection[str] | None = None
    duration_s: float | None = None
    blocks: int | None = None
    """A fixed number, in place of the study's rule too."""
    stopping: Stopping | None = None
    blocks_per_boot: int | None = None
    spare_blocks: int | None = None
    other_cpu: float | None = None
    vcpus: int | None = None
    memory_mib: int | None = None
    collect: Level | None = None
    factors: Mapping[str, Collection[str]] | None = None
    """Levels of factors, by the factor's name."""
    program: OneProgram | None = None
    """Program in the place of the study's workloads."""


def load_study(
    asked: str | Question,
    *,
    programs: Programs,
    quick: bool = False,
    overrides: Overrides | None = None,
) -> Study:
    """Return the study of that name, or in the file at that path, or of a question, cut to its
    quick selection or as `overrides` say (which win). The tunings that have a role always stay in.
    The tunings and workloads of `overrides` are already those of a question.

    `programs`: what a workload's `program` may name. Raises UsageError naming file, line, key,
    what is allowed and the nearest name.
    """
    if isinstance(asked, Question):
        asked = asked.fitted(programs)
        path, name = PLACE, asked.name
        file = checked_study(path, asked.mapping, programs)
        if overrides is not None:
            overrides = replace(overrides, tunings=None, workloads=None)
    else:
        path = study_path(asked)
        name = path.name.removesuffix(".yaml")
        file = read_study_file(path, programs)
    defined = defined_programs(path, file, programs)
    conditions = defined_conditions(path, file, programs, defined)
    study = _frozen(name, file, defined)
    if isinstance(asked, Question):
        study = replace(study, ab=asked.ab)
    study = replace(
        study, published=_published(path, file), expects=_expects(file), tables=_tables(file)
    )
    whole = study
    if quick:
        if file.quick is None:
            raise UsageError(
                f"{path}: has no 'quick:' selection",
                hint="Run it without --quick, or add the selection.",
            )
        whole = _cut(study, Overrides(duration_s=file.quick.duration_s))
        study = _cut(replace(study, quick=True), Overrides(**file.quick.changes(file.native_width)))
    if overrides is not None:
        if overrides.program is not None:
            study = _with_one_program(study, overrides.program)
            if file.quick is not None and quick:
                study = _cut(study, Overrides(duration_s=file.quick.duration_s))
        else:
            study = _with_others(study, whole, overrides.workloads or (), programs)
        _check_overrides(overrides, study, conditions, programs)
        study = _cut(study, overrides)
        for workload in study.workloads.values():
            programs.of(workload).check_duration(workload.duration_s)
    named = (overrides.workloads if overrides else None) or ()
    study = with_factors(study, programs, named) if study.declared else study
    found = {name: conditions[name] for name in study.conditions}
    return replace(study, neighbours={n: one for n, one in found.items() if one.neighbours})


def _published(path: Path, file: StudyFile) -> tuple[PublishedSource, ...]:
    return tuple(
        read_published(
            _file_beside(path, name),
            tunings=file.arms,
            workloads=file.workloads,
            conditions=file.conditions,
        )
        for name in file.published
    )


def _tables(file: StudyFile) -> tuple[ReportTable, ...]:
    return tuple(
        ReportTable(
            title=table.title,
            rows=tuple(ReportRow(tuning=row.tuning, against=row.against) for row in table.rows),
            metrics=tuple(table.metrics),
            workloads=None if table.workloads is None else tuple(table.workloads),
            factor=table.factor,
        )
        for table in file.tables
    )


def _expects(file: StudyFile) -> dict[str, str]:
    return {name: text.strip() for name, text in file.expects or () if text is not None}


def _file_beside(path: Path, name: str) -> Path:
    """Return a file that a study names: in the study's own folder or below it, since whoever wrote
    the study may have no right to read others. Raises UsageError."""
    found = path.parent / name
    if not found.resolve().is_relative_to(path.parent.resolve()):
        raise UsageError(
            f"{path}: 'published': {name} is outside the study's folder",
            hint="Put the file beside the study.",
        )
    return found


def _frozen(name: str, file: StudyFile, defined: Mapping[str, Program]) -> Study:
    return Study(
        name=name,
        title=file.title,
        description=file.description.strip(),
        quick=False,
        roles=Roles(**dict(file.roles)),
        tunings=tuple(file.arms),
        workloads={
            key: StudyWorkload(
                program=workload.program,
                parameters=dict(defined[key].check_parameters(workload.parameters)),
                duration_s=float(workload.duration_s),
                primary=workload.primary or defined[key].primary,
                margin=workload.margin_percent / 100,
                no_worse_than=_share(workload.no_worse_than),
                uses_data_disk=defined[key].uses_data_disk,
                definition=defined[key].definition,
                other_cpu=workload.other_cpu,
            )
            for key, workload in file.workloads.items()
        },
        conditions=tuple(file.conditions),
        blocks=file.most_blocks,
        stopping=file.rule(),
        blocks_per_boot=file.blocks_per_boot,
        guest=GuestShape(
            image=file.guest.image,
            vcpus=None if file.guest.vcpus == "auto" else file.guest.vcpus,
            memory_mib=file.guest.memory_mib,
            data_disks=file.guest.data_disks,
        ),
        limits=Limits(
            attempts=file.limits.attempts,
            other_cpu=float(file.limits.other_cpu),
            warmup_cap_s=float(file.limits.warmup_cap_s),
            boot_s=float(file.limits.boot_s),
        ),
        neighbours={},
        exercises={tuning: tuple(names) for tuning, names in file.exercises.items()},
        requires={tuning: required(dict(need)) for tuning, need in file.requires.items()},
        collect=file.collect,
        spare_blocks=file.spare_blocks,
        declared=file.declared,
        define=file.define,
        heatmaps=tuple(
            PlannedHeatmap(across=one.across, down=one.down, metric=one.metric)
            for one in file.heatmaps
        ),
    )


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _with_one_program(study: Study, one: OneProgram) -> Study:
    """Return the study that measures this program alone; every tuning counts as exercised by it.
    Raises UsageError for a study whose factors vary its own workloads."""
    if study.declared:
        raise UsageError(
            f"study '{study.name}' has factors that vary its own workloads",
            hint="Name another study, such as pinning, or leave --command out.",
        )
    roles = study.roles.names()
    return replace(
        study,
        workloads={one.name: one.workload},
        exercises={name: (one.name,) for name in study.tunings if name not in roles},
        published=(),
        expects={},
        tables=(),
        heatmaps=(),
    )


def _with_others(study: Study, whole: Study, names: Collection[str], programs: Programs) -> Study:
    """Return the study with the workloads that a command line names beyond its own: as the `whole`
    study has them, of which this may be the quick part, else with their defaults. Every tuning
    counts as exercised by the latter."""
    workloads, exercises = dict(study.workloads), dict(study.exercises)
    roles = study.roles.names()
    for name in dict.fromkeys(map(base_of, names)):
        if name in workloads:
            continue
        if name in whole.workloads:
            workloads[name] = whole.workloads[name]
            using = [tuning for tuning, used in whole.exercises.items() if name in used]
        elif name in programs:
            workloads[name] = _by_default(name, programs[name])
            using = [tuning for tuning in study.tunings if tuning not in roles]
        else:
            continue  # refused with the other names
        exercises |= {one: (*exercises.get(one, ()), name) for one in using}
    return replace(study, workloads=workloads, exercises=exercises)


def _by_default(name: str, program: Program) -> StudyWorkload:
    """Return a workload as a study has it that gives nothing but its name."""
    standard = WorkloadFile(program=name)
    return StudyWorkload(
        program=name,
        parameters=dict(program.check_parameters({})),
        duration_s=float(standard.duration_s),
        primary=program.primary,
        margin=standard.margin_percent / 100,
        uses_data_disk=program.uses_data_disk,
        definition=program.definition,
    )


def _check_overrides(
    overrides: Overrides, study: Study, conditions: Collection[str], programs: Programs
) -> None:
    """Check names and ranges of overrides; what they name may come from outside the study."""
    tunings = [*tuning_names(), *study.define]
    known = study.workloads if overrides.program else (*study.workloads, *programs)
    named = (
        ("tuning", overrides.tunings, with_combinations(overrides.tunings or (), tunings)),
        ("workload", map(base_of, overrides.workloads or ()), known),
        ("condition", overrides.conditions, conditions),
    )
    for what, names, allowed in named:
        for name in names or ():
            if name not in allowed:
                raise UsageError(f"no {what} '{name}'", hint=nearest(name, allowed))
    ranges = (
        ("--duration", overrides.duration_s, 0.1, 3600),
        ("--blocks", overrides.blocks, 1, MOST_BLOCKS),
        ("--blocks-per-boot", overrides.blocks_per_boot, 1, MOST_BLOCKS),
        ("--spare-blocks", overrides.spare_blocks, 0, MOST_SPARES),
        ("--vcpus", overrides.vcpus, 1, 1024),
        ("--memory", overrides.memory_mib, 256, 2**24),
    )
    for option, value, low, high in ranges:
        if value is not None and not low <= value <= high:
            raise UsageError(f"{option}: expected a number from {low} to {high}, got {value}")


def _cut(study: Study, overrides: Overrides) -> Study:
    tunings = _chosen(study.tunings, overrides.tunings, always=study.roles.names())
    workloads = {
        name: study.workloads[name]
        for name in _chosen(
            tuple(study.workloads),
            overrides.workloads and tuple(map(base_of, overrides.workloads)),
        )
    }
    if overrides.duration_s is not None:
        duration_s = float(overrides.duration_s)
        workloads = {
            name: replace(workload, duration_s=duration_s) for name, workload in workloads.items()
        }
    if overrides.other_cpu is not None:
        workloads = {name: replace(one, other_cpu=None) for name, one in workloads.items()}
    exercises = {
        tuning: tuple(name for name in names if name in workloads)
        for tuning, names in study.exercises.items()
        if tuning in tunings
    }
    stopping = overrides.stopping or (study.stopping if overrides.blocks is None else None)
    blocks = stopping.most_blocks if stopping else _first(overrides.blocks, study.blocks)
    # What one boot served doesn't go on in a few: two boots leave t one degree of freedom.
    outgrown = study.blocks <= study.blocks_per_boot < blocks
    guest = replace(
        study.guest,
        vcpus=_first(overrides.vcpus, study.guest.vcpus),
        memory_mib=_first(overrides.memory_mib, study.guest.memory_mib),
    )
    return replace(
        study,
        tunings=tunings,
        workloads=workloads,
        conditions=_chosen(study.conditions, overrides.conditions),
        blocks=blocks,
        stopping=stopping,
        blocks_per_boot=_first(overrides.blocks_per_boot, 1 if outgrown else study.blocks_per_boot),
        guest=guest,
        limits=replace(study.limits, other_cpu=_first(overrides.other_cpu, study.limits.other_cpu)),
        exercises={tuning: names for tuning, names in exercises.items() if names},
        requires={name: need for name, need in study.requires.items() if name in tunings},
        collect=_first(overrides.collect, study.collect),
        declared=study.declared.choosing(overrides.factors or {}),
        # Below ten blocks nothing is judged, so nothing is lost with one either.
        spare_blocks=_first(
            overrides.spare_blocks, study.spare_blocks if blocks >= FEWEST_BLOCKS else 0
        ),
    )


_Value = TypeVar("_Value")


def _first(value: _Value | None, otherwise: _Value) -> _Value:
    return otherwise if value is None else value


def _chosen(
    present: tuple[str, ...], chosen: Collection[str] | None, *, always: Collection[str] = ()
) -> tuple[str, ...]:
    """Return those of `present` that are chosen, in the study's order, then the chosen others."""
    if chosen is None:
        return present
    kept = tuple(name for name in present if name in chosen or name in always)
    return kept + tuple(dict.fromkeys(name for name in chosen if name not in present))
