"""Run `labctl fleet rollout`: bring a tuning to the hosts of a fleet, batch by batch."""

from __future__ import annotations

import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import ExitCode
from labctl.base.wording import counted, printable
from labctl.cli.common import console, listing, print_json, results_option, runs_folder
from labctl.cli.fleet_variables import named_variables

if TYPE_CHECKING:
    from labctl.fleet.host_news import HostNews
    from labctl.fleet.rollout_folder import HostStand, RolloutFolder


@click.command("rollout")
@click.argument("name", metavar="FLEET")
@click.option("--tuning", metavar="NAME", required=True, help="What is rolled out.")
@click.option(
    "--inventory", "-i", multiple=True, metavar="FILE", help="The hosts (default: the sweep's)."
)
@click.option("--limit", metavar="PATTERN", help="Only these of the hosts that may take it.")
@click.option("--forks", type=click.IntRange(1), default=20, help="Hosts talked to at once (20).")
@click.option("--serial", metavar="N|N%,...", default="1,10%", help="Size of the batches (1,10%).")
@click.option(
    "--policy",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Hold each new run against its rules as well.",
)
@click.option(
    "--restore-after",
    metavar="TIME",
    default="30m",
    help="After so long a host that was not told to keep it puts itself back (30m).",
)
@click.option("--seed", type=click.IntRange(min=0), help="Of the new runs (default: drawn).")
@click.option(
    "--set",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="A variable of the roles, such as labctl_host_tune_domain=web1.",
)
@click.option("--check", is_flag=True, help="Show what would change on each host, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print how each host stands as JSON.")
@results_option
def rollout(
    name: str,
    tuning: str,
    inventory: tuple[str, ...],
    limit: str | None,
    forks: int,
    serial: str,
    policy: Path | None,
    restore_after: str,
    seed: int | None,
    variables: tuple[str, ...],
    check: bool,
    as_json: bool,
    results: Path | None,
) -> int | None:
    """Bring a tuning to the hosts of FLEET that may take it, by the steps of the advice.

    Each batch is measured again (as 'labctl advise --verify' does) and gated; when every host of it
    confirms the tuning, it is applied to them and kept, and the next batch begins. Else the batch
    stays as it was. Exits with 1 unless every host keeps it.
    """
    from labctl.analysis.gate.policy import load_policy
    from labctl.cli.stopping import seconds_of
    from labctl.fleet.ansible import in_full
    from labctl.fleet.fleet_folder import FleetFolder
    from labctl.fleet.plan_rollout import AskedFor, planned_rollout
    from labctl.fleet.rollout_folder import RolloutFolder
    from labctl.fleet.rollout_hosts import foreseen, roll_out
    from labctl.fleet.sweep_hosts import HowToReach

    seconds_of(restore_after, "--restore-after")
    if policy is not None:
        load_policy(policy)
    fleet = FleetFolder.find(runs_folder(results), name)
    how = HowToReach(
        inventory=tuple(map(in_full, inventory)) or fleet.record.inventory,
        forks=forks,
        variables={**fleet.record.variables, **named_variables(variables)},
    )
    asked = AskedFor(
        tuning=tuning,
        limit=limit,
        serial=serial,
        policy=policy,
        restore_after=restore_after,
        seed=seed,
        command=("labctl", *sys.argv[1:]),
    )
    record = planned_rollout(fleet, how.inventory, asked)
    place = fleet.path.resolve() / "rollouts"
    now = datetime.now(UTC)
    folder = RolloutFolder.create(
        place / f"{now.strftime('%Y%m%dT%H%M%SZ')}-{secrets.token_hex(2)}", record
    )
    on_hosts = how.variables.get("labctl_sweep_folder", "/var/lib/labctl/fleet")
    runs = f"{on_hosts}/{fleet.name}/results"
    click.echo(
        f"{folder.path}: '{tuning}' on {counted(len(record.hosts), 'host')}, seed {record.seed}; "
        f"batches of {', '.join(str(len(batch)) for batch in record.batches)}",
        err=True,
    )
    if check:
        return _show_foreseen(foreseen(folder, how, runs), folder, as_json=as_json)
    try:
        roll_out(folder, how, runs, _watch)
    except KeyboardInterrupt as stopped:
        stopped.add_note(
            f"What is not kept by now, the hosts put back themselves after {restore_after}. How "
            f"they stand: {folder.path}"
        )
        raise
    return _show(folder, as_json=as_json)


_HEARD: dict[str, str] = {}


def _watch(host: str, stand: HostStand, news: HostNews) -> None:
    """Print a line where a host stands otherwise, or has measured more."""
    counts = f" {news.done} of {news.planned} trials" if news.planned else ""
    text = f"{stand.stand}{counts}{f': {stand.reason}' if stand.reason else ''}"
    if _HEARD.get(host) != text:
        _HEARD[host] = text
        click.echo(printable(f"{host}: {text}"), err=True)


def _show(folder: RolloutFolder, *, as_json: bool) -> int | None:
    """Print how each host stands; returns the exit status."""
    from labctl.fleet.rollout_folder import Stand

    stands, record = folder.stands, folder.record
    kept = [host for host, one in stands.items() if one.stand is Stand.KEPT]
    if as_json:
        print_json(
            {
                "schema": 1,
                "fleet": record.fleet,
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
    fine = (Stand.KEPT, Stand.NOT_CHANGED, Stand.UNDONE, Stand.NOT_TOUCHED)
    open_ = [host for host, one in stands.items() if one.stand not in fine]
    if open_:
        click.echo(
            printable(
                f"Changed, or not known: {', '.join(open_)}. What is changed there is undone "
                f"{record.restore_after} after the change; 'labctl host status' on a host shows it."
            )
        )
    if len(kept) + len(open_) < len(stands):
        click.echo("Where it says not changed, undone or not touched, nothing is changed.")
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
            said = failed.get(host) or shown.get(host) or "nothing: it is so already"
            click.echo(printable(f"{host}:"))
            for line in said.splitlines():
                click.echo(f"  {printable(line)}")
        click.echo("\nBefore that each batch would be measured again and gated.")
    return ExitCode.FOUND if failed else None
