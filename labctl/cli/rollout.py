"""Run `labctl fleet rollout`: bring a tuning to the hosts of a fleet, batch by batch."""

from __future__ import annotations

import secrets
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import ExitCode, UsageError
from labctl.base.wording import counted, printable
from labctl.cli.parts.common import (
    console,
    listing,
    named_variables,
    need_pyarrow,
    print_json,
    results_option,
    runs_folder,
)

if TYPE_CHECKING:
    from labctl.fleet.host_news import HostNews
    from labctl.fleet.rollout import HostStand, RolloutFolder, Rounds


@click.command("rollout")
@click.argument("name", metavar="FLEET")
@click.option("--tuning", metavar="NAME", help="Tuning to roll out.")
@click.option("--resume", is_flag=True, help="Continue the fleet's last roll-out.")
@click.option(
    "--inventory", "-i", multiple=True, metavar="FILE", help="The hosts (default: the sweep's)."
)
@click.option("--limit", metavar="PATTERN", help="Only these hosts, among those that may take it.")
@click.option(
    "--forks", type=click.IntRange(1), default=20, help="Hosts contacted in parallel (20)."
)
@click.option("--serial", metavar="N|N%,...", help="Size of the batches (1,10%).")
@click.option(
    "--max-fail",
    metavar="N%",
    help="Set aside up to this share of each batch but the first (10%); more stop the roll-out.",
)
@click.option(
    "--policy",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Also check each new run against its rules.",
)
@click.option(
    "--restore-after",
    metavar="TIME",
    help="A host without confirmation restores its settings after this time (30m).",
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the new runs (default: random).")
@click.option(
    "--set",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="A variable of the roles, such as labctl_host_tune_domain=web1.",
)
@click.option("--check", is_flag=True, help="Show what would change on each host; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print each host's state as JSON.")
@results_option
def rollout(
    name: str,
    tuning: str | None,
    resume: bool,
    inventory: tuple[str, ...],
    limit: str | None,
    forks: int,
    serial: str | None,
    max_fail: str | None,
    policy: Path | None,
    restore_after: str | None,
    seed: int | None,
    variables: tuple[str, ...],
    check: bool,
    as_json: bool,
    results: Path | None,
) -> int | None:
    """Roll out a tuning to the hosts of FLEET that may take it, with the steps of the advice.

    Each batch is measured again (as with 'labctl advise --verify') and gated. Hosts that confirm
    the tuning get and keep it; a host that is lost or does not confirm it is set aside. If more are
    set aside than --max-fail allows, the batch stays unchanged and the roll-out stops. Exits with 1
    unless every host keeps it.
    """
    need_pyarrow("labctl fleet rollout")
    from labctl.analysis.gate.policy import load_policy
    from labctl.cli.sweep import seconds_of
    from labctl.fleet.ansible import in_full, inventory_hosts
    from labctl.fleet.fleet_folder import FleetFolder, fleet_locked
    from labctl.fleet.rollout import (
        MAX_FAIL,
        AskedFor,
        RolloutFolder,
        end_killed,
        foreseen,
        last_rollout,
        planned_rollout,
        roll_out,
        rounds_left,
    )
    from labctl.fleet.sweep_hosts import HowToReach

    fixed = {
        "--tuning": tuning,
        "--serial": serial,
        "--policy": policy,
        "--restore-after": restore_after,
        "--seed": seed,
        "--check": check or None,
    }
    if resume and (given := [option for option, value in fixed.items() if value is not None]):
        raise UsageError(
            "--resume continues the original request", hint=f"Leave out {', '.join(given)}."
        )
    if not resume and tuning is None:
        raise UsageError(
            "missing option --tuning",
            hint=f"'labctl fleet advise {shlex.quote(name)}' shows the allowed tunings.",
        )
    if restore_after is not None:
        seconds_of(restore_after, "--restore-after")
    if policy is not None:
        load_policy(policy)
    share = None if max_fail is None else _percent(max_fail)
    fleet = FleetFolder.find(runs_folder(results), name)
    with fleet_locked(fleet.path, f"labctl fleet rollout {fleet.name}"):
        end_killed(fleet)
        before = last_rollout(fleet) if resume else None
        of = fleet.record if before is None else before.record
        how = HowToReach(
            inventory=tuple(map(in_full, inventory)) or of.inventory or fleet.record.inventory,
            forks=forks,
            variables={**of.variables, **named_variables(variables)},
        )
        if before is None:
            asked = AskedFor(
                tuning=tuning or "",
                limit=limit,
                serial=serial or "1,10%",
                policy=policy,
                restore_after=restore_after or "30m",
                seed=seed,
                command=("labctl", *sys.argv[1:]),
                max_fail=MAX_FAIL if share is None else share,
            )
            place, now = fleet.path.resolve() / "rollouts", datetime.now(UTC)
            folder = RolloutFolder.create(
                place / f"{now.strftime('%Y%m%dT%H%M%SZ')}-{secrets.token_hex(2)}",
                planned_rollout(fleet, how, asked),
            )
            rounds: Rounds = [folder.record.batches]
        else:
            folder = before
            if share is not None:
                folder.record = folder.record.model_copy(update={"max_fail": share})
            rounds = rounds_left(folder, inventory_hosts(how.inventory, limit))
        record = folder.record
        batches = [batch for batches in rounds for batch in batches]
        on_hosts = how.variables.get("labctl_sweep_folder", "/var/lib/labctl/fleet")
        runs = f"{on_hosts}/{fleet.name}/results"
        click.echo(
            f"{folder.path}: '{record.tuning}' on {counted(sum(map(len, batches)), 'host')}, seed "
            f"{record.seed}; batches of {', '.join(str(len(batch)) for batch in batches) or '0'}",
            err=True,
        )
        if check:
            return _show_foreseen(foreseen(folder, how, runs), folder, as_json=as_json)
        try:
            roll_out(folder, how, runs, _watch, rounds)
        except KeyboardInterrupt as stopped:
            stopped.add_note(
                f"Hosts restore changes that are not kept after {record.restore_after}. Their "
                f"state: {folder.path}. Continue with: labctl fleet rollout "
                f"{shlex.quote(name)} --resume"
            )
            raise
        return _show(folder, name, as_json=as_json)


def _percent(text: str) -> int:
    """Return a share of a batch in per cent. Raises UsageError."""
    digits = text.removesuffix("%")
    if not (digits.isascii() and digits.isdigit() and int(digits[:4]) <= 100):
        raise UsageError(
            f"--max-fail: expected a share from 0% to 100%, got '{text}'",
            hint="Write it as '10%'.",
        )
    return int(digits)


_HEARD: dict[str, str] = {}


def _watch(host: str, stand: HostStand, news: HostNews) -> None:
    """Print a line where a host stands otherwise, or has measured more."""
    counts = f" {news.done} of {news.planned} trials" if news.planned else ""
    text = f"{stand.stand}{counts}{f': {stand.reason}' if stand.reason else ''}"
    if _HEARD.get(host) != text:
        _HEARD[host] = text
        click.echo(printable(f"{host}: {text}"), err=True)


def _show(folder: RolloutFolder, name: str, *, as_json: bool) -> int | None:
    """Print how each host stands; returns the exit status."""
    from labctl.fleet.rollout import Stand
    from labctl.fleet.sweep_hosts import write_limit

    stands, record = folder.stands, folder.record
    kept = [host for host, one in stands.items() if one.stand is Stand.KEPT]
    failed = [host for host, one in stands.items() if one.aside]
    limit = write_limit(folder.path, failed)
    if as_json:
        print_json(
            {
                "schema": 1,
                "fleet": record.fleet,
                "failed": failed,
                "tuning": record.tuning,
                "path": str(folder.path),
                "seed": record.seed,
                "hosts": {host: one.model_dump(mode="json") for host, one in stands.items()},
                "left_out": record.left_out,
            }
        )
        return None if len(kept) == len(stands) else ExitCode.FOUND
    table = listing("host", "batch", "stands", "why")
    for host, one in stands.items():
        table.add_row(host, str(one.batch), str(one.stand), printable(one.reason))
    for host, why in record.left_out.items():
        table.add_row(printable(host), "-", "left out", printable(why))
    console(listing=True).print(table, markup=False)
    click.echo(
        f"\n{counted(len(kept), 'host')} of {len(stands)} keep '{printable(record.tuning)}'."
    )
    if failed:
        click.echo(printable(f"Set aside: {', '.join(failed)} (--limit @{limit})."))
    fine = (Stand.KEPT, Stand.NOT_CHANGED, Stand.UNDONE, Stand.NOT_TOUCHED)
    open_ = [host for host, one in stands.items() if one.stand not in fine]
    if open_:
        click.echo(
            printable(
                f"Changed or unknown: {', '.join(open_)}. Changes there are undone after "
                f"{record.restore_after}; 'labctl host status' on a host shows them."
            )
        )
    if len(kept) + len(open_) < len(stands):
        click.echo("Hosts marked not changed, undone or not touched have no changes.")
    if len(kept) < len(stands):
        click.echo(f"Continue with: labctl fleet rollout {shlex.quote(name)} --resume")
    if kept:
        click.echo("To undo it: the playbook labctl.lab.undo, or 'labctl host restore' on a host.")
    return None if len(kept) == len(stands) else ExitCode.FOUND


def _show_foreseen(shown: dict[str, str], folder: RolloutFolder, *, as_json: bool) -> int | None:
    """Print what would change on each host; returns 1 where not every host could say."""
    record = folder.record
    failed = {host: folder.stands[host].reason for host in record.hosts if host not in shown}
    if as_json:
        print_json({"schema": 1, "tuning": record.tuning, "would_change": shown, "failed": failed})
    else:
        for host in record.hosts:
            said = failed.get(host) or shown.get(host) or "nothing: already set"
            click.echo(printable(f"{host}:"))
            for line in said.splitlines():
                click.echo(f"  {printable(line)}")
        click.echo("\nEach batch would be measured again and gated first.")
    return ExitCode.FOUND if failed else None
