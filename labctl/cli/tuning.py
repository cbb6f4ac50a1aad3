"""Run `labctl tuning`: show the tunings, and the XML that they become on this host."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from labctl.cli.common import Group, bold, console, listing_width, print_json
from labctl.cli.render_options import domain_request, host_options
from labctl.cli.tuning_diff import diff
from labctl.cli.tuning_validate import validate_tunings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from labctl.base.tuning import Tuning


@click.group("tuning", cls=Group)
def command() -> None:
    """List, show, compare, render or validate tunings (the files in domains/)."""


command.add_command(diff)
command.add_command(validate_tunings)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", is_flag=True, help="Print all that they say, as docs/tunings.md is.")
def list_tunings(as_json: bool, markdown: bool) -> None:
    """List all tunings with what they change. 'a+b' is two of them together."""
    from labctl.study.tunings import BASELINE, load_tunings, tuning_names

    tunings = load_tunings(tuning_names())
    if as_json:
        print_json([_as_json(tuning) for tuning in tunings.values()])
    elif markdown:
        from labctl.study.reference import reference

        click.echo(reference(tunings, tunings[BASELINE]), nl=False)
    else:
        for line in _listed(tunings, tunings[BASELINE]):
            click.echo(line, file=sys.stdout)  # named: it shows simpler letters where it must


def _listed(tunings: Mapping[str, Tuning], baseline: Tuning) -> Iterator[str]:
    """Yield the lines of the list, each as wide as a terminal at most, without rich: loading it
    takes a fifth of the time of this command."""
    from labctl.study.changes import GROUPS, changes, dotted, group_of, word

    name_width = max(len(name) for name in tunings)
    room = max(20, listing_width() - name_width - len("  restored  "))
    members: dict[str, list[str]] = {heading: [] for heading in GROUPS}
    for tuning in tunings.values():
        changed = changes(tuning, baseline)
        restored = "" if tuning.kind == "native" else "yes" if tuning.restore else "no"
        said = "; ".join(f"{dotted(key)}: {word(value)}" for key, value in changed.items())
        said = said or tuning.description.partition(". ")[0]
        said = said if len(said) <= room else f"{said[: room - 1]}…"
        line = f"{tuning.name:<{name_width}}  {restored:<8}  {said}"
        members[group_of(tuning, changed)].append(line)
    for heading, lines in members.items():
        if lines:
            yield f"\n{bold(f'{heading:<{name_width}}')}  restored"
            yield from lines


@command.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str, as_json: bool) -> None:
    """Show a tuning, or a combination such as 'vcpupin+cache-none': what it changes, why, what it
    needs and what it risks."""
    from labctl.base.paths import is_shadowing
    from labctl.study.tunings import load_tuning, tuning_files

    tuning = load_tuning(name)
    paths = tuning_files(name)
    files = [str(path) for path in paths]
    if as_json:
        print_json({**_as_json(tuning), "files": files})
        return
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for heading, lines in _described(tuning):
        for at, line in enumerate(lines):
            table.add_row(Text(heading if at == 0 else "", style="bold"), Text(line))
    for at, path in enumerate(paths):
        stands_in = is_shadowing(path)
        said = f"{path} (stands in for labctl's own)" if stands_in else str(path)
        table.add_row(Text("files" if at == 0 else "", style="bold"), Text(said))
    console().print(table)


@command.command("render")
@click.argument("names", nargs=-1, required=True)
@host_options
def render_tunings(
    names: Sequence[str], accel: str | None, vcpus: int | None, memory_mib: int
) -> None:
    """Print the domain XML of tunings as they would be on this host, with placeholder paths."""
    from labctl.domain.pinning.pin_plan import default_vcpus
    from labctl.domain.render import render
    from labctl.host.topology import read_topology
    from labctl.study.tunings import load_tunings

    topology = read_topology()
    for name, tuning in load_tunings(names).items():
        request = domain_request(
            tuning, topology, accel, vcpus or default_vcpus(topology), memory_mib
        )
        xml = render(request)
        # Several documents in one stream: a comment tells which is which.
        click.echo(
            f"<!-- {name.replace('--', '- -')} -->\n{xml}" if len(names) > 1 else xml, nl=False
        )


def _as_json(tuning: Tuning) -> dict[str, Any]:
    from labctl.study.changes import group
    from labctl.study.tuning_digest import tuning_json
    from labctl.study.tunings import BASELINE, load_tuning

    return {**tuning_json(tuning), "group": group(tuning, load_tuning(BASELINE))}


def _described(tuning: Tuning) -> Iterator[tuple[str, list[str]]]:
    """Heading and lines of each part of what a tuning says about itself."""
    from labctl.study.changes import changes, dotted, group, word
    from labctl.study.tunings import BASELINE, load_tuning

    baseline = load_tuning(BASELINE)
    yield "name", [tuning.name]
    yield "group", [group(tuning, baseline)]
    yield "what it is", [tuning.description]
    changed = changes(tuning, baseline)
    yield "changes", [f"{dotted(key)}: {word(value)}" for key, value in changed.items()]
    yield "needs", list(tuning.needs)
    yield (
        "checked",
        [
            f"{key}: {word(value)}"
            for key, value in asdict(tuning.requires).items()
            if value not in (None, False, ())
        ],
    )
    yield "risks", list(tuning.risks)
    if tuning.kind == "guest":
        boots = "no: it boots for itself in each block"
        yield "restored", ["yes, from the boot that its block shares" if tuning.restore else boots]
        yield (
            "native twin",
            [tuning.twin or "none: no native tuning has its placement and policy"],
        )
    yield "exercised by", list(tuning.exercised_by)
    yield "sources", list(tuning.sources)
