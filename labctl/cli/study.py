"""Run `labctl study`: list and show what `labctl sweep` can run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypedDict

import click

from labctl.base.errors import HostError, UsageError
from labctl.cli.parts.common import Group, console, listing, print_json, print_table

if TYPE_CHECKING:
    from labctl.study.study import Study

SCHEMA = 1


@click.group("study", cls=Group)
def command() -> None:
    """List, show or write studies: the files in benchmarks/ that 'labctl sweep' runs."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(as_json: bool) -> None:
    """List all studies with their questions: labctl's own, and those of the lab folder."""
    list_studies(as_json=as_json)


def list_studies(*, as_json: bool) -> None:
    """Print each study's name and question."""
    from rich.text import Text

    from labctl.study.study import study_titles

    titles = study_titles()
    if as_json:
        rows = [{"name": name, "title": title} for name, title in titles]
        print_json({"schema": SCHEMA, "studies": rows})
        return
    table = listing("study", "question")
    for name, title in titles:
        table.add_row(Text(name), Text(title, overflow="fold"))
    console(listing=True).print(table)
    click.echo(
        "\n'labctl study show STUDY' shows its comparisons, 'labctl sweep STUDY "
        "--plan-only' the plan for this host.\n'labctl sweep pinning --quick' is a good "
        "first study."
    )


@command.command("show")
@click.argument("name", metavar="STUDY|FILE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_command(name: str, as_json: bool) -> None:
    """Show a study: its tunings, workloads, conditions and factors, the number of trials and their
    approximate time.

    This host is not checked: 'labctl sweep STUDY --plan-only' leaves out what it does not
    support.
    """
    facts = facts_of(name)
    if as_json:
        print_json({"schema": SCHEMA, **facts})
    else:
        _show(facts)


@command.command("new")
@click.argument("name")
@click.option("--tuning", "tunings", multiple=True, help="A tuning to compare (default: pinned).")
@click.option(
    "--workload", "workloads", multiple=True, help="A workload to run (default: sysbench-cpu)."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def new_command(
    name: str, tunings: tuple[str, ...], workloads: tuple[str, ...], as_json: bool
) -> None:
    """Write a new study, benchmarks/NAME.yaml of the lab folder, for 'labctl sweep NAME'.

    It compares each --tuning with the baseline in each --workload, as 'labctl sweep' does with
    the same options and no study.
    """
    from labctl.base.paths import lab
    from labctl.cli.init import never_through_a_link
    from labctl.study.load_study import checked_study
    from labctl.study.question import PLACE, question
    from labctl.workloads.registry import checkers

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9+._-]{0,99}", name):
        raise UsageError(f"'{name}' is not a name for a study", hint="Use letters, digits and -.")
    folder = lab().folder
    if folder is None:
        raise UsageError(
            "the study needs a lab folder to be written to",
            hint="Make one with 'labctl init', then run the command there, or name one: --lab.",
        )
    asked = question(
        tunings or ("pinned",), {key: {} for key in workloads or ("sysbench-cpu",)}, name=name
    ).fitted(checkers())
    checked_study(PLACE, asked.mapping, checkers())
    path = folder / "benchmarks" / f"{name}.yaml"
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        with open(path, "x", encoding="utf-8", opener=never_through_a_link) as file:
            file.write(asked.file_text)
    except FileExistsError as error:
        raise UsageError(f"{path} exists already", hint="Choose another name.") from error
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from error
    if as_json:
        print_json({"schema": SCHEMA, "name": name, "file": str(path)})
        return
    click.echo(f"Wrote {path}:\n")
    for line in asked.file_text.splitlines():
        click.echo(f"    {line}")
    click.echo(f"\nThen:\n\n    labctl sweep {name} --plan-only")


class _Size(TypedDict):
    """Hold how much a study measures on a host that supports all of it."""

    tunings: int
    workloads: int
    conditions: int
    blocks: int
    trials: int
    expected_s: int
    ends_early: bool


class _Arm(TypedDict):
    name: str
    role: str | None


class _WorkloadFacts(TypedDict):
    name: str
    program: str
    duration_s: float
    primary: str
    margin: float


class _Compared(TypedDict):
    """Describe what a study compares."""

    name: str
    question: str
    description: str
    tunings: list[_Arm]
    workloads: list[_WorkloadFacts]
    conditions: list[str]
    factors: dict[str, list[str]]
    image: str
    size: _Size


class StudyFacts(_Compared):
    """Describe a study as `labctl study show --json` has it."""

    quick: _Size | None
    file: str


def facts_of(name: str) -> StudyFacts:
    """Return what a study compares, and how much it measures with and without --quick. `name`: of
    the study, or of its file. Raises UsageError for what is wrong with the file."""
    from labctl.base.yaml import load_mapping
    from labctl.study.load_study import load_study
    from labctl.study.study import study_path
    from labctl.workloads.registry import checkers

    path, programs = study_path(name), checkers()
    study = load_study(name, programs=programs)
    quick = None
    if "quick" in load_mapping(path):
        quick = _size(load_study(name, programs=programs, quick=True))
    return {**_facts(study), "quick": quick, "file": str(path)}


def _size(study: Study) -> _Size:
    """Return how much a study measures on a host that supports all of it."""
    from labctl.analysis.times import expected_time
    from labctl.study.make_plan import make_plan
    from labctl.study.tunings import load_tunings

    plan = make_plan(
        study, load_tunings(study.tunings, study.defined), seed=0, host_digest=""
    ).record()
    return {
        "tunings": len(study.tunings),
        "workloads": len(study.workloads),
        "conditions": len(study.conditions),
        "blocks": study.blocks,
        "trials": len(plan.trials),
        "expected_s": round(expected_time(plan, None).total),
        "ends_early": study.stopping is not None,
    }


def _facts(study: Study) -> _Compared:
    """Return what a study compares. Names of factors' cells are left to the factors."""
    from labctl.store.records.factor_record import base_of

    roles = {
        study.roles.native: "native",
        study.roles.baseline: "baseline",
        study.roles.control: "A/A control",
        study.roles.handicap: "known-loss arm",
    }
    workloads = {base_of(name): workload for name, workload in study.workloads.items()}
    return {
        "name": study.name,
        "question": study.title,
        "description": study.description,
        "tunings": [
            {"name": name, "role": roles.get(name)}
            for name in dict.fromkeys(map(base_of, study.tunings))
        ],
        "workloads": [
            {
                "name": name,
                "program": workload.program,
                "duration_s": workload.duration_s,
                "primary": workload.primary,
                "margin": workload.margin,
            }
            for name, workload in workloads.items()
        ],
        "conditions": list(dict.fromkeys(map(base_of, study.conditions))),
        "factors": {factor.name: list(factor.chosen) for factor in study.declared.factors},
        "image": study.guest.image,
        "size": _size(study),
    }


def _show(facts: StudyFacts) -> None:
    from labctl.base.wording import metric_title

    out = console()
    out.print(f"{facts['name']}: {facts['question']}", style="bold", markup=False)
    if facts["description"]:
        out.print(facts["description"], markup=False)
    tunings = [
        f"{one['name']} ({one['role']})" if one["role"] else one["name"] for one in facts["tunings"]
    ]
    out.print(f"\nTunings: {', '.join(tunings)}", markup=False)
    out.print(f"Conditions: {', '.join(facts['conditions'])}", markup=False)
    for name, levels in facts["factors"].items():
        out.print(f"Factor {name}: {', '.join(levels)}", markup=False)
    out.print(f"Guest image: {facts['image']}\n", markup=False)
    print_table(
        ["workload", "program", "seconds", "primary metric", "threshold"],
        [
            [
                one["name"],
                one["program"],
                f"{one['duration_s']:g}",
                metric_title(one["primary"]),
                f"{100 * one['margin']:g} %",
            ]
            for one in facts["workloads"]
        ],
    )
    click.echo()
    click.echo(f"labctl sweep {facts['name']}: {_size_in_words(facts['size'])}")
    if facts["quick"]:
        click.echo(f"labctl sweep {facts['name']} --quick: {_size_in_words(facts['quick'])}")
    click.echo(f"file: {facts['file']}")


def _size_in_words(size: _Size) -> str:
    from labctl.base.wording import counted, roughly

    most = "at most " if size["ends_early"] else ""
    parts = (
        counted(size["tunings"], "arm"),
        counted(size["workloads"], "workload"),
        counted(size["conditions"], "condition"),
        counted(size["blocks"], "block"),
    )
    return (
        f"{', '.join(parts)}: {most}{counted(size['trials'], 'trial')}, "
        f"about {roughly(size['expected_s'])}"
    )
