"""Run `labctl ab`: compare two programs, tunings, builds or images, A and B, and judge B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labctl.base.errors import ExitCode, LabctlError, UsageError
from labctl.base.quantities import PERCENT
from labctl.base.wording import printable
from labctl.cli.parts.common import Sectioned
from labctl.cli.parts.own_program import one_program
from labctl.cli.sweep import command as sweep_command
from labctl.cli.sweep import request_for, sweep_and_show

if TYPE_CHECKING:
    from labctl.run.planning.planned import SweepRequest
    from labctl.study.load_study import OneProgram
    from labctl.study.question import Question

_SECTIONS = {
    "A and B": "--command --tuning --qemu --kernel --initrd --image",
    "The programs": (
        "--metric --unit --better --once --timeout --setup --serve --port --ready --package "
        "--parameter --file"
    ),
    "Where and how long": (
        "--quick --condition --duration --blocks --looks --within --until-width --max-blocks "
        "--blocks-per-boot --spare-blocks --other-cpu --collect --margin"
    ),
    "The guest": "--vcpus --memory --accel --connect --fresh-boots",
    "This run": "--plan-only --seed --wait-quiet --results --json --quiet --help",
}
_OWN = ("own_command", "tunings", "kernel", "initrd")
"""Options of a sweep that this command has in another form."""
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


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
@click.option("--tuning", "tunings", multiple=True, help="A tuning; give A first, then B.")
@click.option("--qemu", "emulators", multiple=True, type=_FILE, help="A QEMU binary: A, then B.")
@click.option("--kernel", "kernels", multiple=True, type=_FILE, help="A guest kernel: A, then B.")
@click.option(
    "--initrd", "initrds", multiple=True, type=_FILE, help="Its initrd: one, or one for each."
)
@click.option("--image", "images", metavar="NAME", multiple=True, help="An image: A, then B.")
@click.option("--margin", metavar="PERCENT", help="The smallest change that matters (5%).")
@click.pass_context
def command(
    context: click.Context,
    /,
    workloads: tuple[str, ...],
    commands: tuple[str, ...],
    tunings: tuple[str, ...],
    emulators: tuple[Path, ...],
    kernels: tuple[Path, ...],
    initrds: tuple[Path, ...],
    images: tuple[str, ...],
    margin: str | None,
    plan_only: bool,
    as_json: bool,
    quiet: bool,
    **_request: object,
) -> int | None:
    """Compare B with A: two programs (--command twice); or in each WORKLOAD two tunings (--tuning
    twice), two QEMU binaries (--qemu twice), two guest kernels (--kernel twice) or two images
    (--image twice).

    It is a sweep with A as the baseline: the same blocks, A/A control, known loss, verdicts and
    report. All but tunings are measured on a quiet host unless --condition says otherwise. The exit
    status fits 'git bisect run': 0 if B is not worse, 1 if it is worse, 125 if the run can't tell
    or failed.
    """
    _fill_in(context)
    given = _Given(
        {
            "--command": commands,
            "--tuning": tunings,
            "--qemu": emulators,
            "--kernel": kernels,
            "--image": images,
        },
        initrds,
        workloads,
        _share(margin),
    )
    asked = _question(context.params, given)
    request = request_for(context, asked)
    if plan_only:
        from labctl.cli.parts.plan_only import show_plan

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
    ours = {"workloads": None, "own_command": None, "kernel": None, "initrd": None}
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


@dataclass(frozen=True, slots=True)
class _Given:
    """Hold the options of this command alone. `kinds`: option to its values; `margin`: in
    percent."""

    kinds: Mapping[str, Sequence[str | Path]]
    initrds: Sequence[Path]
    workloads: Sequence[str]
    margin: float | None

    @property
    def limit(self) -> dict[str, float]:
        return {} if self.margin is None else {"margin_percent": self.margin}

    @property
    def margin_words(self) -> list[str]:
        return [] if self.margin is None else ["--margin", f"{self.margin:g}%"]


def _question(options: Mapping[str, Any], given: _Given) -> Question:
    """Return the study that the options make. Raises UsageError unless exactly one kind of thing is
    given twice."""
    from labctl.store.records.plan_record import AbLabels
    from labctl.study.question import B, ab_images, ab_tunings

    said = [option for option, values in given.kinds.items() if values]
    if len(said) != 1 or len(given.kinds[said[0]]) != 2:
        got = ", ".join(f"{len(given.kinds[option])} {option}" for option in said) or "neither"
        raise UsageError(
            f"expected A and B: one of {', '.join(given.kinds)} twice, got {got}",
            hint="labctl ab --tuning pinned --tuning pinned+fifo redis-get",
        )
    kind = said[0]
    if given.initrds and kind != "--kernel":
        raise UsageError("--initrd needs --kernel twice", hint="Leave --initrd out.")
    a, b = given.kinds[kind]
    if kind == "--command":
        return _of_programs(options, given, str(a), str(b))
    if not given.workloads:
        raise UsageError(
            "a workload is missing", hint="Name one: 'labctl workload list' lists them."
        )
    _refuse_program_options(options)
    workloads = {name: {"program": name, **given.limit} for name in dict.fromkeys(given.workloads)}
    if kind == "--tuning":
        return ab_tunings(str(a), str(b), workloads, words=[*given.margin_words, *workloads])
    if kind == "--image":
        a, b = str(a), str(b)
        labels = AbLabels(a=a, b=b, arm=B, are_images=True)
        words = [*given.margin_words, kind, a, kind, b, *workloads]
        return ab_images(a, b, workloads, labels, words=words)
    return _of_builds(kind, Path(a), Path(b), given, workloads)


_KEYS = {"--qemu": "emulator", "--kernel": "kernel"}


def _of_builds(
    kind: str, a: Path, b: Path, given: _Given, workloads: Mapping[str, Mapping[str, Any]]
) -> Question:
    from labctl.store.records.plan_record import AbLabels
    from labctl.study.question import B, ab_builds

    initrds = [path.absolute() for path in given.initrds]
    if len(initrds) > 2:
        raise UsageError("expected one --initrd, or one for each --kernel")
    files = [path.absolute() for path in (a, b)]
    keys = [{_KEYS[kind]: str(path)} for path in files]
    for number, one in enumerate(keys):
        if initrds:
            one["initrd"] = str(initrds[min(number, len(initrds) - 1)])
    words = [word for path in files for word in (kind, str(path))]
    words += [word for path in initrds for word in ("--initrd", str(path))]
    return ab_builds(
        keys[0],
        keys[1],
        workloads,
        AbLabels(a=str(files[0]), b=str(files[1]), arm=B),
        words=[*given.margin_words, *words, *workloads],
    )


def _refuse_program_options(given: Mapping[str, Any]) -> None:
    one_program({**given, "own_command": None, "workloads": None})


def _of_programs(options: Mapping[str, Any], given: _Given, a: str, b: str) -> Question:
    from labctl.store.records.plan_record import AbLabels
    from labctl.study.question import B, ab_programs

    if given.workloads:
        raise UsageError(
            f"--command and the workload '{given.workloads[0]}' exclude each other",
            hint="Leave one of them out.",
        )
    one, other = _declared(options, a), _declared(options, b)
    return ab_programs(
        one.name if one.name == other.name else "program",
        {"define": dict(one.definition), **given.limit},
        {"define": dict(other.definition), **given.limit},
        AbLabels(a=printable(a), b=printable(b), arm=B),
        words=[*given.margin_words, *one.words, "--command", b],
    )


def _declared(options: Mapping[str, Any], command: str) -> OneProgram:
    found = one_program({**options, "own_command": command, "workloads": None})
    assert found is not None, "there is a command"
    return found
