"""The command: which groups of figures, and how they are shown."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from labctl.base.errors import LabctlError
from labctl.base.events import Event, Listener, Note
from labctl.base.paths import StatePaths
from labctl.base.process import ending_signals_interrupt
from labctl.guest.build import build
from labctl.guest.recipe import load_recipe
from labctl.host.accelerator import accelerator
from labctl.host.facts import host_facts
from labctl.store.jsonfile import write_json
from tools.bench import commands, exits, guests, reports, sweeps, timeline_page, traces
from tools.bench.benchmark import IMAGE, SWEEP_ARGUMENTS, TRACE_EVENTS, Benchmark
from tools.bench.figures import Figure

GROUPS: dict[str, tuple[Callable[[Benchmark], list[Figure]], tuple[Figure, ...]]] = {
    "help": (commands.help_text, (commands.HELP,)),
    "start": (commands.start, (commands.LISTS, commands.REPORT)),
    "doctor": (commands.doctor, (commands.DOCTOR,)),
    "catalogue": (commands.catalogue, (commands.CATALOGUE,)),
    "pinplan": (commands.pinplan, (commands.PIN_PLAN,)),
    "report": (
        reports.report,
        (
            reports.TIME,
            reports.MEMORY,
            reports.FROM_JSON,
            reports.LINEAR,
            reports.JSON_TIME,
            reports.JSON_MEMORY,
        ),
    ),
    "timeline": (
        timeline_page.timeline_page,
        (timeline_page.OPENS, timeline_page.SIZE, timeline_page.RENDERED),
    ),
    "trace": (traces.trace, (traces.SCRIPT, traces.LATENCY, traces.MEMORY)),
    "exits": (exits.exits, (exits.DISTURBS, exits.WRITES, exits.USES)),
    "image": (commands.image, (commands.BUILD, commands.DISK_SIZE)),
    "sweep": (sweeps.sweep, (sweeps.AROUND, sweeps.SHARE, sweeps.CPU, sweeps.MEMORY)),
    # These open libvirt's embedded driver here, and no other process can then.
    "restore": (guests.restore, (guests.RESTORE,)),
    "boot": (guests.boot, (guests.BOOT,)),
}
"""Group to what measures it and to its figures, in the order in which they are measured."""


def measure(benchmark: Benchmark, names: Collection[str]) -> list[Figure]:
    """Return the figures of the groups; those that can't be measured, with the reason."""
    figures: list[Figure] = []
    for name in (name for name in GROUPS if name in names):
        function, empty = GROUPS[name]
        benchmark.listener(Note(text=f"Measuring: {', '.join(figure.name for figure in empty)}"))
        try:
            figures += function(benchmark)
        except LabctlError as error:
            why = f"not measured: {' '.join(error.message.split())}"
            figures += [replace(figure, note=why) for figure in empty]
    return figures


def labels(places: StatePaths, tell: Listener) -> dict[str, str]:
    """Return what the figures hold for: host class, accelerator, command, moment."""
    facts = host_facts(places)
    memory = facts["memory_bytes"]
    gib = f"{memory / 2**30:.0f}" if isinstance(memory, int) else "?"
    try:
        image = build(load_recipe(IMAGE), places, tell)
        accelerated: str = accelerator("auto", image.kernel, places).name
    except LabctlError as error:
        accelerated = f"unknown: {error.message}"
    return {
        "host": f"{facts['cpus_allowed']} × {facts['cpu_model']}, "
        f"{gib} GiB, {facts['os']}, "
        f"hypervisor below: {facts['hypervisor_vendor']}",
        "accelerator": f"{accelerated} (QEMU {facts['qemu']}, libvirt {facts['libvirt']})",
        "load": f"{os.getloadavg()[0]:.1f} before the first measurement",
        "at": datetime.now(UTC).isoformat(timespec="minutes"),
        "command": shlex.join(["make", "bench", *_make_arguments(sys.argv[1:])]),
        "sweep": shlex.join(["labctl", *SWEEP_ARGUMENTS]),
    }


def _make_arguments(arguments: Sequence[str]) -> list[str]:
    return [f"ARGS={shlex.join(arguments)}"] if arguments else []


def show(console: Console, figures: Sequence[Figure], said: dict[str, str]) -> None:
    table = Table("figure", "measured", "target", "met", "how")
    for figure in figures:
        value = "" if figure.value is None else f"{figure.value:.3g} {figure.unit}".rstrip()
        met = {True: "yes", False: "NO", None: "?"}[figure.met]
        table.add_row(figure.name, value, figure.target, met, escape(figure.note))
    console.print(table)
    for name, text in said.items():
        console.print(escape(f"{name}: {text}"), soft_wrap=True)


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures.")
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice(list(GROUPS)),
    help="Only these groups of figures (default: all).",
)
@click.option(
    "--trace-events",
    type=click.IntRange(min=100_000),
    default=TRACE_EVENTS,
    show_default=True,
    help="Of the group 'trace': so many are recorded.",
)
@click.option("--state-dir", type=click.Path(path_type=Path), help="As labctl's.")
def main(
    json_file: Path | None, names: tuple[str, ...], trace_events: int, state_dir: Path | None
) -> None:
    """Measure labctl's speed and size on this host."""
    places = StatePaths(state_dir.resolve()) if state_dir else StatePaths.default()

    def tell(event: Event) -> None:
        if isinstance(event, Note):
            click.echo(event.text, err=True)

    with ending_signals_interrupt():
        said = labels(places, tell)
        figures = measure(Benchmark(places, tell, trace_events), names or GROUPS)
    show(Console(highlight=False, width=None if sys.stdout.isatty() else 120), figures, said)
    if json_file is not None:
        found = [figure.to_json() for figure in figures]
        write_json(json_file, {"schema": 1, **said, "figures": found})


if __name__ == "__main__":
    main()
