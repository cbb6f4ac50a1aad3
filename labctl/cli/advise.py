"""Run `labctl advise`: recommend what to roll out, and list all that it takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import ExitCode
from labctl.cli.common import console, print_json, results_option, runs_folder

if TYPE_CHECKING:
    from labctl.rollout.advice import Advice
    from labctl.rollout.advice_files import Names


@click.command("advise")
@click.argument("run_name", metavar="RUN")
@click.option(
    "--domain", metavar="NAME|FILE", help="The domain that the commands are for, and its size."
)
@click.option("--connect", metavar="URI", help="Where it is defined (default: qemu:///system).")
@click.option(
    "--vcpus", type=click.IntRange(1), help="vCPUs to fit the pins to (default: the domain's)."
)
@click.option("--disk", metavar="TARGET", help="Its disk (vda, …), where a tuning is about disks.")
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
@click.option("--verify", is_flag=True, help="Measure the advised tuning again, in fresh guests.")
@click.option("--seed", type=click.IntRange(min=0), help="Of --verify (default: drawn).")
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
    as_json: bool,
    out: Path | None,
    card_file: Path | None,
    verify: bool,
    seed: int | None,
    quiet: bool,
    results: Path | None,
) -> int | None:
    """Say what RUN advises to roll out, what it costs and how to apply it.

    Advised is what improves at least one primary metric, and is shown to lose no more than the
    study allows in every other. --verify measures the advised tuning once more, as one more study,
    and exits with 1 if that is not shown again.
    """
    from labctl.analysis.judge import judge
    from labctl.cli.rollout_target import rollout_target
    from labctl.rollout.advice import advise
    from labctl.rollout.advice_files import Names
    from labctl.store.fresh_runs import fresh_runs
    from labctl.store.run_folder import RunFolder

    place = runs_folder(results)
    folder = RunFolder.find(place, run_name)
    run = folder.load()
    machine, domain = rollout_target(run, domain, connect, vcpus)
    names = Names(domain, disk)
    names.check()
    with folder.unpacked("xml") as unpacked:
        judgement = judge(run, fresh_runs(folder, place))
        advice = advise(run, judgement, unpacked.path, machine)
    if verify:
        from labctl.cli.verify import verify_advice

        confirmed = verify_advice(
            context, folder, run, advice, results=place, seed=seed, quiet=quiet, as_json=as_json
        )
        return None if confirmed else ExitCode.FOUND
    _write(advice, names, out, card_file, quiet=as_json)
    if as_json:
        from labctl.rollout.advice_json import advice_json

        print_json(advice_json(advice, names))
    elif out is None and card_file is None:
        from labctl.rollout.text import print_advice

        print_advice(console(), advice, names)
    return None


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
