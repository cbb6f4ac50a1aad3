"""Check what types alone don't say of a study's file: names, its length, what workloads take."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from labctl.base.errors import UsageError
from labctl.base.nearest import nearest
from labctl.base.paths import data_files
from labctl.base.yamlfile import Placing, load_mapping, validate
from labctl.base.yamltext import YamlMapping
from labctl.study.combine import with_combinations
from labctl.study.conditionfile import Beside, Conditions
from labctl.study.factorcheck import Known, check_factors, check_heatmaps
from labctl.study.programs import Program, Programs
from labctl.study.studyfile import StudyFile, WorkloadFile
from labctl.study.tunings import tuning_names


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
    return Conditions(path, given, _beside(file, programs, defined))


def _beside(file: StudyFile, programs: Programs, defined: Mapping[str, Program]) -> Beside:
    """Return what neighbours of the study may run."""
    own = (name for name, one in file.workloads.items() if one.define is not None)
    return Beside({name: defined[name] for name in own}, programs)


def read_study_file(path: Path, programs: Programs) -> StudyFile:
    """Return the checked content of a study's file.

    `programs`: what a workload's `program` may name. Raises UsageError naming file, line, key,
    what is allowed and the nearest name.
    """
    mapping = load_mapping(path)
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
        known = tuning_names()
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
        known = Conditions(self.path, own, _beside(self.file, programs, defined))
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
                f"{self._place(*given[-1:])}: how many blocks a run has is said by {said}, where "
                "only one of 'blocks', 'stop' and 'looks' may say it",
                hint="'blocks: 10' is a fixed number; 'stop: {width_percent: 2, most_blocks: 40}' "
                "and 'looks: [10, 15, 20]' are rules.",
            )
        with self._placed(*given, among=("width_percent", "most_blocks")):
            self.file.rule()

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
