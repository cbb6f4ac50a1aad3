"""Run `labctl ab`: compare two programs or tunings, A and B, and judge B."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from labctl.base.errors import ExitCode, LabctlError, UsageError
from labctl.base.quantities import PERCENT
from labctl.cli.help import Sectioned
from labctl.cli.own_program import one_program
from labctl.cli.sweep import command as sweep_command
from labctl.cli.sweep import request_for, sweep_and_show
from labctl.run.planning.planned import SweepRequest
from labctl.study.question import Question, ab_programs, ab_tunings

_SECTIONS = {
    "A and B": "--command --tuning",
    "The programs": (
        "--metric --unit --better --once --timeout --setup --serve --port --ready --package "
        "--parameter"
    ),
    "Where and how long": (
        "--quick --condition --duration --blocks --looks --within --until-width --max-blocks "
        "--blocks-per-boot --spare-blocks --other-cpu --collect --margin"
    ),
    "The guest": "--vcpus --memory --accel --connect --fresh-boots --kernel --initrd",
    "This run": "--plan-only --seed --wait-quiet --results --json --quiet --help",
}
_OWN = ("own_command", "tunings")
"""Options of a sweep that this command has in another form."""


def _shared() -> list[click.Parameter]:
    """Return the options of a sweep that mean the same here."""
    names = {name for words in _SECTIONS.values() for name in words.split()}
    return [
        one
        for one in sweep_command.params
        if isinstance(one, click.Option) and one.name not in _OWN and names & {*one.opts}
    ]


class _Unclear(click.UsageError):
    """Report a command line that cannot be read, which `git bisect run` skips."""

    exit_code = ExitCode.OPEN


class _Bisectable(Sectioned):
    """End with 125, which `git bisect run` skips, if nothing could be told."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            raise _Unclear(error.format_message(), error.ctx) from error

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except LabctlError as error:
            error.exit_code = ExitCode.OPEN
            raise


@click.command("ab", cls=_Bisectable, sections=_SECTIONS, params=_shared())
@click.argument("workloads", metavar="[WORKLOAD]...", nargs=-1)
@click.option(
    "--command",
    "commands",
    metavar="ARGV",
    multiple=True,
    help="A program: A, then B. They run natively and in a guest.",
)
@click.option("--tuning", "tunings", multiple=True, help="A tuning: A, then B.")
@click.option("--margin", metavar="PERCENT", help="The smallest change that matters (5%).")
@click.pass_context
def command(
    context: click.Context,
    /,
    workloads: tuple[str, ...],
    commands: tuple[str, ...],
    tunings: tuple[str, ...],
    margin: str | None,
    plan_only: bool,
    as_json: bool,
    quiet: bool,
    **_request: object,
) -> int | None:
    """Compare B with A: two programs (--command twice), or two tunings (--tuning twice) in each
    WORKLOAD.

    It is a sweep with A as the baseline: the same blocks, A/A control, known loss, verdicts and
    report. Programs run on a quiet host unless --condition says otherwise. The exit status fits
    'git bisect run': 0 if B is not worse, 1 if it is worse, 125 if the run can't tell or failed.
    """
    _fill_in(context)
    asked = _question(context.params, workloads, commands, tunings, _share(margin))
    request = request_for(context, asked)
    if plan_only:
        from labctl.cli.plan_only import show_plan

        show_plan(request, as_json=as_json)
        return None
    return _judged(request, as_json=as_json, quiet=quiet)


def _judged(request: SweepRequest, *, as_json: bool, quiet: bool) -> int:
    from labctl.analysis.ab import status_of

    return status_of(sweep_and_show(request, as_json=as_json, quiet=quiet).ab)


def _fill_in(context: click.Context) -> None:
    """Give the options of a sweep that this command lacks the values that they have there when
    nobody gives them."""
    defaults = sweep_command.make_context("sweep", [], parent=context.parent).params
    ours = {"workloads": None, "own_command": None}
    context.params.update({**defaults, **context.params, **ours})


def _share(margin: str | None) -> float | None:
    if margin is None:
        return None
    try:
        percent = PERCENT.read(margin)
    except ValueError as error:
        raise UsageError(f"--margin: {error}") from error
    if not 0 < percent < 100:
        raise UsageError(f"--margin: expected a percentage above 0 and below 100, got '{margin}'")
    return percent


def _question(
    given: Mapping[str, Any],
    workloads: Sequence[str],
    commands: Sequence[str],
    tunings: Sequence[str],
    margin: float | None,
) -> Question:
    """Return the study that the options make. Raises UsageError unless exactly one kind of thing is
    given twice."""
    kinds = {"--command": commands, "--tuning": tunings}
    said = [option for option, values in kinds.items() if values]
    if len(said) != 1 or len(kinds[said[0]]) != 2:
        got = ", ".join(f"{len(values)} {option}" for option, values in kinds.items())
        raise UsageError(
            f"expected A and B: one of {' and '.join(kinds)} twice, got {got}",
            hint="labctl ab --tuning pinned --tuning pinned+fifo redis-get",
        )
    limit = {} if margin is None else {"margin_percent": margin}
    if commands:
        return _of_programs(given, workloads, commands, limit)
    if not workloads:
        raise UsageError(
            "a workload is missing",
            hint="Name one: 'labctl workload list' lists them.",
        )
    _refuse_program_options(given)
    keys = {name: {"program": name, **limit} for name in dict.fromkeys(workloads)}
    return ab_tunings(tunings[0], tunings[1], keys, words=[*_margin_words(margin), *keys])


def _refuse_program_options(given: Mapping[str, Any]) -> None:
    one_program({**given, "own_command": None, "workloads": None})


def _of_programs(
    given: Mapping[str, Any],
    workloads: Sequence[str],
    commands: Sequence[str],
    limit: Mapping[str, float],
) -> Question:
    from labctl.store.records.plan_record import AbLabels
    from labctl.study.question import B

    if workloads:
        raise UsageError(
            f"--command and the workload '{workloads[0]}' exclude each other",
            hint="Leave one of them out.",
        )
    a, b = _declared(given, commands)
    name = a.name if a.name == b.name else "program"
    return ab_programs(
        name,
        {"define": dict(a.definition), **limit},
        {"define": dict(b.definition), **limit},
        AbLabels(a=commands[0], b=commands[1], arm=B),
        words=[*_margin_words(limit.get("margin_percent")), *a.words, "--command", commands[1]],
    )


def _declared(given: Mapping[str, Any], commands: Iterable[str]) -> list[Any]:
    found = [one_program({**given, "own_command": text, "workloads": None}) for text in commands]
    return [one for one in found if one is not None]


def _margin_words(margin: float | None) -> list[str]:
    return [] if margin is None else ["--margin", f"{margin:g}%"]
