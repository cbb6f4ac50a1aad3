"""Run `labctl host` and `labctl exits`: facts, settings and prices of this host."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labctl.base.errors import BrokenError, HostError
from labctl.base.wording import printable, shortened
from labctl.cli.parts.common import Group, console, print_json, state_paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from labctl.base.events import Event
    from labctl.base.paths import StatePaths
    from labctl.host.settings.journal import ChangeStanding
    from labctl.host.settings.journal_file import Entry, Restored
    from labctl.host.settings.knobs import Foreseen
    from labctl.rollout.steps import Step
    from labctl.store.exit_prices import Price


# Run `labctl host tune`, `status` and `restore`: apply the host's settings, and undo them.


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

_MOST_TOLD = 500
"""Characters of a value in JSON."""


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="TUNING...")
@click.option("--vcpus", type=click.IntRange(1), help="vCPUs of the guest.")
@click.option("--check", is_flag=True, help="Show what would change; change nothing.")
@click.option(
    "--restore-after",
    metavar="TIME",
    help="Restore it after this time (such as 10m) unless 'labctl host keep' is called.",
)
@_json
@click.pass_context
def tune(
    context: click.Context,
    names: Sequence[str],
    vcpus: int | None,
    check: bool,
    restore_after: str | None,
    as_json: bool,
) -> None:
    """Apply the host settings of TUNINGs, until 'labctl host restore'.

    Changes that need a reboot are printed, never made.
    """
    from labctl.run.commands.host_tuning import Tuned
    from labctl.run.commands.host_tuning import tune as carry_out
    from labctl.run.planning.host import asked_for

    asked = asked_for(names, vcpus)
    places = state_paths(context)
    if check:
        from labctl.host.settings.knobs import foreseen

        found = foreseen(asked.host, asked.place)
        if as_json:
            print_json(foreseen_json(found, asked.words))
        else:
            show_foreseen(found, asked.words)
        return
    with restore_timer(places, restore_after if asked.host else None):
        tuned = carry_out(asked, places, tell) if asked.host else Tuned(changed=(), refused=())
    steps = _reboot_steps(" ".join(names), asked.words)
    if as_json:
        print_json(
            {
                "changed": [changed_json(entry) for entry in tuned.changed],
                "refused": list(tuned.refused),
                "risks": list(asked.risks),
                "needs_reboot": [
                    {
                        "words": list(asked.words),
                        "path": step.file.path if step.file else None,
                        "text": step.file.text if step.file else None,
                        "commands": [list(command.argv) for command in step.commands],
                    }
                    for step in steps
                ],
            }
        )
        return
    if asked.host:
        show_tuned(tuned.changed, tuned.refused)
    for risk in asked.risks:
        click.echo(f"risk: {risk}")
    for step in steps:
        _show_step(step)
    if not asked.host and not steps:
        click.echo("nothing to do: the host's kernel was booted with it")


@click.command()
@_json
@click.pass_context
def keep(context: click.Context, as_json: bool) -> None:
    """Keep what 'labctl host tune --restore-after' has set, until 'labctl host restore'."""
    from labctl.run.commands.host_tuning import keep as carry_out

    kept = carry_out(state_paths(context), tell)
    if as_json:
        print_json({"schema": 1, "kept": kept})
    elif kept:
        click.echo("kept until 'labctl host restore'")
    else:
        click.echo("nothing to keep: no restore is pending")


@click.command()
@_json
@click.pass_context
def status(context: click.Context, as_json: bool) -> None:
    """Show every setting that tunings can change, and what labctl has changed."""
    from labctl.host.settings.journal import Journal
    from labctl.host.settings.knobs import states

    found = states()
    standing = Journal(state_paths(context).journal).standing()
    if as_json:
        print_json(
            {
                "knobs": [{n: getattr(s, n) for n in s.__slots__} for s in found],
                "pending": [_standing(item) for item in standing],
            }
        )
        return
    from labctl.report.parts import bare_table

    table = bare_table("", "setting", "now", "takes")
    table.columns[0].no_wrap = True
    for state in found:
        takes = state.values if state.problem is None else f"can't be set: {state.problem}"
        table.add_row(state.name, state.now or "-", takes)
    out = console(listing=True)
    out.print(table, markup=False)
    if not standing:
        click.echo("\nlabctl has changed nothing here")
        return
    click.echo()
    changed = bare_table("", "changed", "before", "by labctl", "now", "for")
    changed.columns[0].overflow = "fold"
    for item in standing:
        entry = item.entry
        now = f"{shortened(item.present or '')} ({item.state})".strip()
        changed.add_row(
            entry.name, shortened(entry.old), shortened(entry.new or "?"), now, _for(item)
        )
    out.print(changed, markup=False)
    click.echo("\n'labctl host restore' restores them")


@click.command()
@click.option(
    "--force", is_flag=True, help="Also restore settings that someone else has changed since."
)
@click.option(
    "--accept", is_flag=True, help="Keep settings that someone else has changed, permanently."
)
@click.option(
    "--not-kept",
    is_flag=True,
    help="Only changes made with --restore-after and not kept.",
)
@click.option("--timer", metavar="NAME", hidden=True, help="Nothing, if that timer was stopped.")
@_json
@click.pass_context
def restore(
    context: click.Context,
    force: bool,
    accept: bool,
    not_kept: bool,
    timer: str | None,
    as_json: bool,
) -> None:
    """Restore what 'labctl host tune', or a killed labctl, has changed.

    Waits until no labctl is measuring here.
    """
    from labctl.host.settings.journal import Journal
    from labctl.host.settings.journal_file import UndoOutcome
    from labctl.host.settings.restore_timer import running, stop
    from labctl.run.commands.host_tuning import restore as carry_out

    if force and accept:
        raise click.UsageError("--force and --accept exclude each other")
    places = state_paths(context)

    def spared() -> frozenset[str] | None:
        due = running(places)
        if timer is not None and (due is None or due.name != timer):
            return None
        if due is not None and (not_kept or timer is not None):
            return due.spared
        pending = Journal(places.journal).pending() if not_kept else []
        return frozenset(entry.id for entry in pending)

    def done(results: Sequence[Restored]) -> None:
        # A timer tries again what could not be put back.
        if all(result.outcome.settles for result in results):
            stop(places)

    if timer is not None and spared() is None:
        return
    results = carry_out(places, tell, spared=spared, done=done, force=force, accept=accept)
    pending = Journal(places.journal).pending()
    if as_json:
        print_json(
            {
                "results": [result.to_json() | {"old": told(result.old)} for result in results],
                "pending": [_entry_json(entry) for entry in pending],
            }
        )
    else:
        for result in results:
            click.echo(f"{result.outcome}: {result.name} = {shortened(result.old)} ({result.note})")
        if not results:
            click.echo("nothing to restore")
        for pid in sorted({entry.pid for entry in pending if entry.owner_lives()}):
            click.echo(f"not restored: changes of labctl {pid}, which is still running")
    _fail_unless_settled(results, UndoOutcome.FOREIGN)


@contextmanager
def restore_timer(places: StatePaths, restore_after: str | None) -> Iterator[None]:
    """Start the timer that puts the host back, before anything is changed: a host that is lost in
    between is put back as well. It goes on where the block fails and there is something that it
    would put back: what an earlier one was for, or what the block itself could not."""
    if restore_after is None:
        yield
        return
    from labctl.cli.sweep import seconds_of
    from labctl.host.settings.journal import Journal
    from labctl.host.settings.restore_timer import start, stop

    timer = start(places, seconds_of(restore_after, "--restore-after"))
    try:
        yield
    except BaseException:
        if all(entry.id in timer.spared for entry in Journal(places.journal).pending()):
            stop(places)
        raise


def foreseen_json(found: Sequence[Foreseen], after_reboot: Sequence[str]) -> dict[str, object]:
    """Return what would change as plain JSON values, and what would only after a reboot."""
    return {
        "schema": 1,
        "would_change": [{"name": one.name, "before": one.now, "after": one.then} for one in found],
        "needs_reboot": list(after_reboot),
    }


def show_foreseen(found: Sequence[Foreseen], after_reboot: Sequence[str]) -> None:
    """Print what would change, and what would only after a reboot."""
    for one in found:
        text = f"{one.name}: {shortened(one.now)} -> {shortened(one.then)}"
        click.echo(printable(text))
    for word in after_reboot:
        click.echo(printable(f"needs a reboot: {word}"))
    if not found and not after_reboot:
        click.echo("nothing to do: already set")


def _fail_unless_settled(results: Sequence[Restored], foreign: str) -> None:
    left = [result for result in results if not result.outcome.settles]
    if not left:
        return
    if all(result.outcome == foreign for result in left):
        raise BrokenError(
            f"{len(left)} of {len(results)} changes are left: someone else has changed "
            f"{', '.join(result.name for result in left)} since",
            hint="'labctl host restore --force' restores the old values, '--accept' keeps the "
            "current ones.",
        )
    raise BrokenError(
        f"{len(left)} of {len(results)} changes could not be restored",
        hint="They stay in the journal: fix the cause and run 'labctl host restore' again.",
    )


def show_tuned(changed: Sequence[Entry], refused: Sequence[str]) -> None:
    """Print what was changed, and what the kernel refused."""
    for entry in changed:
        if entry.new != entry.old:
            text = f"{entry.name}: {shortened(entry.old)} -> {shortened(entry.new or '?')}"
            click.echo(printable(text))
    for sentence in refused:
        click.echo(printable(sentence))
    if changed:
        click.echo("in force until 'labctl host restore'")
    else:
        click.echo("nothing was changed" if refused else "nothing to do: already set")


def _reboot_steps(name: str, words: Sequence[str]) -> list[Step]:
    if not words:
        return []
    from labctl.rollout.host_settings import Cpus, host_steps

    no_cpus = Cpus(online=frozenset(), vcpus=frozenset())  # of no meaning to words alone
    return list(host_steps(name.replace(" ", "+"), {}, words, no_cpus))


def _show_step(step: Step) -> None:
    click.echo(f"\nNot done, because it needs a reboot of the host. {step.title}:")
    if step.file is not None:
        click.echo(f"  write {step.file.path}:")
        for line in step.file.text.splitlines():
            click.echo(f"    {line}")
    for command in step.commands:
        click.echo(f"  run: {' '.join(command.argv)}")
    click.echo("  run: reboot")


def changed_json(entry: Entry) -> dict[str, str | None]:
    """Return a change as plain JSON values."""
    return {"name": entry.name, "before": told(entry.old), "now": told(entry.new)}


def told(value: str | None) -> str | None:
    """Return a value as JSON has it: a long one is a domain's definition, with its passwords, or a
    file, of which a digest is enough."""
    if value is None or len(value) <= _MOST_TOLD:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()
    return f"{len(value)} characters, SHA-256 {digest}"


def _entry_json(entry: Entry) -> dict[str, object]:
    return {**entry.to_json(), "old": told(entry.old), "new": told(entry.new)}


def _standing(item: ChangeStanding) -> dict[str, object]:
    return {
        **_entry_json(item.entry),
        "present": told(item.present),
        "state": str(item.state),
        "owner_lives": item.entry.owner_lives(),
    }


def _for(item: ChangeStanding) -> str:
    """Say for which command it was changed."""
    if kept := item.entry.kept:
        return kept if kept.endswith(")") else f"host tune {kept}"
    return f"labctl {item.entry.pid} ({'running' if item.entry.owner_lives() else 'was killed'})"


def tell(event: Event) -> None:
    """Print what an event says to standard error: standard output may be JSON."""
    text = getattr(event, "text", "")
    if text:
        click.echo(text, err=True)


# Run `labctl host`: show facts, the accelerator, its settings, and the undo journal.


@click.group("host", cls=Group)
def command() -> None:
    """Show facts and settings of this host, and restore what labctl changed."""


for member in (tune, keep, status, restore):
    command.add_command(member)


@command.command()
@_json
@click.pass_context
def facts(context: click.Context, as_json: bool) -> None:
    """Show the facts that affect measurements: kernel, CPUs, settings, versions."""
    from labctl.host.facts import host_facts

    found = host_facts(state_paths(context))
    if as_json:
        print_json(found)
        return
    width = max(map(len, found))
    for name, value in found.items():
        click.echo(f"{name:{width}}  {_in_words(value)}")


@command.command()
@_json
@click.pass_context
def journal(context: click.Context, as_json: bool) -> None:
    """List what labctl has changed on this host and not yet restored."""
    from labctl.host.settings.journal import Journal
    from labctl.report.parts import bare_table

    pending = Journal(state_paths(context).journal).pending()
    if as_json:
        print_json(
            [
                {
                    **e.to_json(),
                    "old": told(e.old),
                    "new": told(e.new),
                    "owner_lives": e.owner_lives(),
                }
                for e in pending
            ]
        )
        return
    if not pending:
        click.echo("nothing is changed")
        return
    table = bare_table("", "what", "now", "before", "since", "by")
    for entry in pending:
        owner = "running" if entry.owner_lives() else "ended"
        table.add_row(
            entry.name,
            shortened(entry.new or "?"),
            shortened(entry.old),
            entry.time,
            f"{entry.pid} ({owner})",
        )
    console(listing=True).print(table)


@command.command()
@click.option(
    "--accel",
    "requested",
    type=click.Choice(["auto", "kvm", "tcg"]),
    default="auto",
    show_default=True,
    help="Accelerator to check.",
)
@click.option(
    "--kernel",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The kernel to boot (default: that of a built guest image).",
)
@_json
@click.pass_context
def accel(context: click.Context, requested: Any, kernel: Path | None, as_json: bool) -> None:
    """Check whether guests run under KVM here, by booting a kernel with it."""
    from labctl.host.accelerator import accelerator

    places = state_paths(context)
    chosen = accelerator(requested, kernel or _image_kernel(places), places)
    if as_json:
        print_json(
            {
                "accelerator": chosen.name,
                "reason": chosen.reason,
                "disabled_features": list(chosen.disabled_features),
            }
        )
    else:
        click.echo(chosen.reason)


def _image_kernel(places: StatePaths) -> Path:
    from labctl.guest.images import list_images

    images = list_images(places)
    if not images:
        raise HostError(
            "the probe needs a kernel, but no guest image is built yet",
            hint="Build one with 'labctl image build', or pass '--kernel FILE'.",
        )
    return images[0].kernel


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        if set(value) == {"unavailable"}:
            return f"unavailable: {value['unavailable']}"
        return "; ".join(f"{name}: {_in_words(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else "none"


# Run `labctl exits`: measure what VM exits cost on this host.


SCHEMA = 1


@click.group("exits", cls=Group)
def exits() -> None:
    """Measure the cost of VM exits on this host."""


@exits.command("price")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/exits.md).")
@click.pass_context
def price(context: click.Context, as_json: bool) -> None:
    """Measure the nanoseconds of each kind of VM exit, with a guest that makes one kind at a time.

    Takes some seconds. Needs KVM, but no guest kernel. The list is kept: reports of later runs
    compare each tuning's exits at these prices with the measured times.
    """
    from dataclasses import asdict
    from datetime import UTC, datetime

    from labctl.base.paths import host_lock
    from labctl.host.facts import host_facts
    from labctl.host.lock import host_locked
    from labctl.store.exit_prices import write_prices

    places = state_paths(context)
    with host_locked(host_lock(), what="exits price"):
        prices = measured(lambda kind: None if as_json else click.echo(f"{kind} ...", err=True))
        at = datetime.now(UTC).isoformat(timespec="seconds")
        write_prices(places.exit_prices, host_facts(places), prices, at)
    if as_json:
        prices_json = [asdict(item) for item in prices]
        print_json({"schema": SCHEMA, "at": at, "prices": prices_json})
    else:
        from labctl.report.price_list import price_table

        console().print(price_table(prices))
        click.echo("Kept: reports of later runs on this host use it.", err=True)


def measured(tell: Callable[[str], None]) -> list[Price]:
    """Return the price list of this host. Raises HostError where no guest runs under KVM."""
    from pathlib import Path

    from labctl.analysis import times
    from labctl.collect.counters.calibrated import tsc_hz
    from labctl.collect.counters.host_cpus import measured_tsc_hz
    from labctl.domain.pinning.pin_plan import default_vcpus, pin_plan
    from labctl.host.topology import read_topology
    from labctl.run.commands import measure_exits

    cpuinfo = Path("/proc/cpuinfo").read_text()
    which = measure_exits.vendor(cpuinfo)
    topology = read_topology()
    cpu = min(pin_plan(topology, default_vcpus(topology), 0).vcpu_cpus)
    rate = tsc_hz(cpuinfo) or measured_tsc_hz(cpu)
    alone, *found = measure_exits.measure(measure_exits.kinds_of(which), cpu, tell)
    return [
        times.price(
            item.kind.name,
            item.kind.what,
            item.kind.vmx if which == "vmx" else item.kind.svm,
            to_qemu=item.kind.to_qemu,
            cycles=item.cycles,
            alone=alone.cycles,
            exits_per_op=item.exits_per_op,
            tsc_hz=rate,
            problem=item.problem or alone.problem,
        )
        for item in found
    ]
