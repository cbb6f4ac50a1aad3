"""Run `labctl advise`: recommend what to roll out, and list all that it takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import UsageError
from labctl.cli.common import console, print_json, results_option, runs_folder, state_paths
from labctl.cli.help import Sectioned

if TYPE_CHECKING:
    from labctl.rollout.advice import Advice, Advised
    from labctl.rollout.advice_files import Names


_SECTIONS = {
    "What to advise": "--tuning --domain --connect --vcpus --disk --results",
    "Output": "--out --card --json --help",
    "Apply it to this host": "--apply --check --restore-after",
    "Measure it again": "--verify --fresh --seed --detach --quiet",
}
"""Heading of --help to its options."""


@click.command("advise", cls=Sectioned, sections=_SECTIONS)
@click.argument("run_name", metavar="RUN")
@click.option(
    "--domain", metavar="NAME|FILE", help="The domain that the commands are for, and its size."
)
@click.option("--connect", metavar="URI", help="Where it is defined (default: qemu:///system).")
@click.option(
    "--vcpus", type=click.IntRange(1), help="vCPUs to fit the pins to (default: the domain's)."
)
@click.option("--disk", metavar="TARGET", help="Its disk (vda, …), where a tuning is about disks.")
@click.option("--tuning", metavar="NAME", help="Another than the one that is advised first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/advice.md).")
@click.option(
    "--out",
    "out",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write scripts, Ansible tasks, XML and the rollout card.",
)
@click.option(
    "--card",
    "card_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the rollout card as markdown.",
)
@click.option("--apply", "applying", is_flag=True, help="Carry out the host's steps, here.")
@click.option("--check", is_flag=True, help="With --apply: say what would change, change nothing.")
@click.option(
    "--restore-after",
    metavar="TIME",
    help="With --apply: undo it after so long (such as 30m) unless 'labctl host keep' is called.",
)
@click.option("--verify", is_flag=True, help="Measure the advised tuning again, in fresh guests.")
@click.option("--seed", type=click.IntRange(min=0), help="Of --verify (default: drawn).")
@click.option("--fresh", metavar="RUN", help="With --verify: take this run, and measure nothing.")
@click.option("--detach", "detaching", is_flag=True, help="With --verify: go on in the background.")
@click.option("--quiet", is_flag=True, help="With --verify: no progress.")
@results_option
@click.pass_context
def command(
    context: click.Context,
    run_name: str,
    domain: str | None,
    connect: str | None,
    vcpus: int | None,
    disk: str | None,
    tuning: str | None,
    as_json: bool,
    out: Path | None,
    card_file: Path | None,
    applying: bool,
    check: bool,
    restore_after: str | None,
    verify: bool,
    seed: int | None,
    fresh: str | None,
    detaching: bool,
    quiet: bool,
    results: Path | None,
) -> int | None:
    """Say what RUN advises to roll out, what it costs and how to apply it.

    Advised is what improves at least one primary metric, and is shown to lose no more than the
    study allows in every other. --verify measures the advised tuning once more, as one more study,
    and exits with 1 if that is not shown again. --apply carries out the steps on this host; 'labctl
    host restore' undoes all of them.
    """
    from labctl.analysis.judge import judge
    from labctl.cli.rollout_target import rollout_target
    from labctl.rollout.advice import advise, of_tuning
    from labctl.rollout.advice_files import Names
    from labctl.store.fresh_runs import fresh_runs
    from labctl.store.run_places import find_run

    _check_options(context)
    place = runs_folder(results)
    folder = find_run(place, run_name)
    run = folder.load_planned()
    machine, domain = rollout_target(run, domain, connect, vcpus)
    names = Names(domain, disk)
    names.check()
    with folder.unpacked("xml") as unpacked:
        judgement = judge(run, fresh_runs(folder, place))
        advice = advise(run, judgement, unpacked.path, machine)
        named = of_tuning(run, judgement, unpacked.path, machine, tuning) if tuning else None
    if verify:
        from labctl.cli.verify import Verifying, verify_advice

        asked = Verifying(context, folder, run, named or _first(advice, "verify"), place)
        return verify_advice(
            asked, seed=seed, fresh=fresh, detach=detaching, quiet=quiet, as_json=as_json
        )
    if applying:
        from labctl.cli.apply import Target, apply_advice
        from labctl.cli.rollout_target import SYSTEM, other_host

        apply_advice(
            state_paths(context),
            run.name,
            named or _first(advice, "apply"),
            Target(
                domain=domain,
                disk=disk,
                uri=connect or SYSTEM,
                vcpus=machine.vcpus if machine is not None else None,
                other_host=other_host(run),
            ),
            restore_after=restore_after,
            check=check,
            as_json=as_json,
        )
        return None
    _write(advice, names, out, card_file, quiet=as_json)
    if as_json:
        from labctl.rollout.advice_json import advice_json

        print_json(advice_json(advice, names))
    elif out is None and card_file is None:
        from labctl.rollout.text import print_advice

        print_advice(console(), advice, names)
    return None


_BELONG_TO = {
    "seed": "verify",
    "fresh": "verify",
    "detaching": "verify",
    "quiet": "verify",
    "check": "applying",
    "restore_after": "applying",
}
"""Option to the one that it has no meaning without."""


def _check_options(context: click.Context) -> None:
    """Raise UsageError for options that go with none of the others."""
    given = {name for name, value in context.params.items() if value not in (None, False)}
    words = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    if {"verify", "applying"} <= given:
        raise UsageError(
            "--verify and --apply are two things",
            hint="Measure again first: --verify. Where that confirms it: --apply.",
        )
    for name, belongs in _BELONG_TO.items():
        if name in given and belongs not in given:
            raise UsageError(f"{words[name]} goes with {words[belongs]}")
    if "tuning" in given and not {"verify", "applying"} & given:
        raise UsageError("--tuning goes with --verify or --apply")


def _first(advice: Advice, what: str) -> Advised:
    """Return what is advised first. Raises UsageError where nothing is."""
    if not advice.advised:
        raise UsageError(
            f"there is nothing to {what}: {advice.headline}",
            hint="--tuning NAME takes one that this run does not advise.",
        )
    return advice.advised[0]


def _write(
    advice: Advice, names: Names, out: Path | None, card_file: Path | None, *, quiet: bool
) -> None:
    from labctl.rollout.advice_files import write_card, write_files

    written: list[Path] = []
    if out is not None:
        written += write_files(out, advice, names)
    if card_file is not None:
        write_card(card_file, advice, names)
        written.append(card_file)
    if not quiet:
        for path in written:
            click.echo(f"Wrote {path}")
