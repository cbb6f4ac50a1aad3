"""Run `labctl fleet sweep`: the same study on every host of an inventory."""

from __future__ import annotations

import secrets
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl import __version__
from labctl.base.errors import ExitCode, UsageError
from labctl.base.wording import printable
from labctl.cli.common import console, listing, print_json, results_option, runs_folder
from labctl.cli.fleet_variables import named_variables

if TYPE_CHECKING:
    from labctl.fleet.host_news import HostNews
    from labctl.fleet.sweep_folder import StateRecord, SweepFolder

_OURS = {
    "resume": "fleet sweep has a --resume of its own",
    "extend": "each host's run has a name of its own",
    "plan_only": "plan on one host: labctl sweep STUDY --plan-only",
    "detaching": "hosts always measure detached",
    "as_json": "--json goes before the study's options",
    "results": "--results goes before the study's options",
    "domain": "each host has virtual machines of its own",
}
"""Options of `labctl sweep` that no fleet takes, and why."""


@click.command(
    "sweep", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True}
)
@click.argument("words", metavar="STUDY [OPTIONS OF labctl sweep]", nargs=-1)
@click.option(
    "--inventory", "-i", multiple=True, metavar="FILE", help="Ansible's inventory of the hosts."
)
@click.option("--limit", metavar="PATTERN", help="Only these hosts and groups.")
@click.option("--forks", type=click.IntRange(1), default=20, help="Hosts talked to at once (20).")
@click.option(
    "--serial",
    metavar="N|N%,...",
    help="Size of the batches (with a policy 1,100%, else all hosts at once).",
)
@click.option(
    "--policy",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Hold each run against its rules; the next batch begins when all kept them.",
)
@click.option("--resume", metavar="FLEET", help="Go on with a fleet's sweep, host by host.")
@click.option(
    "--wheelhouse",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Install labctl from it first ('labctl fleet wheelhouse').",
)
@click.option(
    "--set",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="A variable of the roles. It is kept in fleet.json: no passwords.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each host's state as JSON.")
@results_option
def sweep(
    words: tuple[str, ...],
    inventory: tuple[str, ...],
    limit: str | None,
    forks: int,
    serial: str | None,
    policy: Path | None,
    resume: str | None,
    wheelhouse: Path | None,
    variables: tuple[str, ...],
    as_json: bool,
    results: Path | None,
) -> int | None:
    """Measure STUDY on every host of an inventory, with one seed; fetch each run as it is done.

    A host that fails or can't be reached is named, and the rest goes on. Exits with 1 unless every
    host is done and kept the policy's rules.
    """
    from labctl.fleet.ansible import in_full
    from labctl.fleet.sweep_folder import SweepFolder
    from labctl.fleet.sweep_hosts import HowToReach, sweep_hosts

    given = named_variables(variables)
    if wheelhouse is not None:
        given["labctl_install_wheelhouse"] = str(wheelhouse.absolute())
    place = runs_folder(results)
    if resume is not None:
        if words or limit or serial or policy:
            raise UsageError(
                "--resume goes on with what the fleet was asked for",
                hint="Leave out the study, its options, --limit, --serial and --policy.",
            )
        fleet = SweepFolder.find(place, resume)
        study = _study_file(fleet.record.study)
    else:
        fleet, study = _new(words, inventory, limit, serial, policy, given, place)
    record = fleet.record
    how = HowToReach(
        inventory=tuple(map(in_full, inventory)) or record.inventory,
        forks=forks,
        variables={**record.variables, **given},
    )
    click.echo(
        f"{fleet.path}: {len(record.hosts)} hosts in {len(record.batches)} batches, seed "
        f"{record.seed}",
        err=True,
    )
    try:
        sweep_hosts(fleet, how, study, _watch)
    except KeyboardInterrupt as stopped:
        stopped.add_note(
            "Sweeps that have begun go on. Go on with: labctl fleet sweep --resume "
            + shlex.quote(fleet.path.name)
        )
        raise
    return _show(fleet, as_json=as_json)


def _new(
    words: tuple[str, ...],
    inventory: tuple[str, ...],
    limit: str | None,
    serial: str | None,
    policy: Path | None,
    variables: dict[str, str],
    place: Path,
) -> tuple[SweepFolder, str]:
    """Return a new fleet's folder, and the study that its hosts get."""
    from labctl.analysis.gate.policy import load_policy
    from labctl.fleet.ansible import in_full, inventory_hosts
    from labctl.fleet.batches import batches_of
    from labctl.fleet.sweep_folder import FleetSweep, SweepFolder, check_names

    if not inventory:
        raise UsageError(
            "no --inventory says which hosts there are",
            hint="'all: {hosts: {h1: {ansible_host: 10.0.0.1}}}' in a file is one.",
        )
    if policy is not None:
        load_policy(policy)
    digest, seed, options = _asked(words)
    serial = serial or ("1,100%" if policy else "100%")
    hosts = inventory_hosts(inventory, limit)
    check_names(hosts)
    now = datetime.now(UTC)
    fleet = FleetSweep(
        study=words[0],
        study_digest=digest,
        seed=seed,
        labctl=__version__,
        started=now.isoformat(timespec="seconds"),
        command=("labctl", *_command_words()),
        options=options,
        inventory=tuple(map(in_full, inventory)),
        serial=serial,
        policy=str(policy.absolute()) if policy else None,
        variables=variables,
        batches=batches_of(hosts, serial),
    )
    path = place / f"fleet-{now.strftime('%Y%m%dT%H%M%SZ')}-{secrets.token_hex(2)}"
    return SweepFolder.create(path, fleet), _study_file(words[0])


def _asked(words: tuple[str, ...]) -> tuple[str, int, tuple[str, ...]]:
    """Return the digest of the study as its options make it, the seed, and the options that hosts
    get. Raises UsageError as `labctl sweep` does."""
    from click.core import ParameterSource

    from labctl.cli.sweep import command, request_of
    from labctl.study.load_study import load_study
    from labctl.workloads.registry import checkers

    if not words or words[0].startswith("-"):
        raise UsageError(
            "the study isn't named, or not before its options",
            hint="labctl fleet sweep --inventory FILE STUDY [its options]; 'labctl sweep' lists.",
        )
    context = command.make_context("sweep", list(words), parent=click.get_current_context())
    for name, why in _OURS.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"labctl fleet sweep can't take that option: {why}")
    request = request_of(context)
    study = load_study(
        request.study, programs=checkers(), quick=request.quick, overrides=request.overrides
    )
    seed = secrets.randbelow(2**31) if request.seed is None else request.seed
    return study.digest, seed, _without_seed(words[1:])


def _without_seed(words: tuple[str, ...]) -> tuple[str, ...]:
    found, rest = [], iter(words)
    for word in rest:
        if word == "--seed":
            next(rest, None)
        elif not word.startswith("--seed="):
            found.append(word)
    return tuple(found)


def _study_file(study: str) -> str:
    """Return what hosts get: the path of the study's file, which is copied to them."""
    from labctl.study.studies import study_path

    return str(study_path(study).absolute())


def _command_words() -> list[str]:
    import sys

    return sys.argv[1:]


_HEARD: dict[str, str] = {}


def _watch(host: str, state: StateRecord, news: HostNews) -> None:
    """Print a line where a host's state, or the number of its trials, has changed."""
    counts = f"{news.done} of {news.planned} trials" if news.planned else ""
    text = f"{state.status}{f': {state.reason}' if state.reason else ''}"
    if state.status == "running":
        text = counts or "running"
    if text != "running" and _HEARD.get(host) != text:
        _HEARD[host] = text
        click.echo(printable(f"{host}: {text}"), err=True)


def _show(fleet: SweepFolder, *, as_json: bool) -> int | None:
    """Print how far each host came; returns the exit status."""
    states = {host: fleet.state(host) for host in fleet.record.hosts}
    done = [host for host, state in states.items() if state.status == "done" and not state.reason]
    if as_json:
        print_json(
            {
                "schema": 1,
                "fleet": fleet.path.name,
                "path": str(fleet.path),
                "seed": fleet.record.seed,
                "study_digest": fleet.record.study_digest,
                "hosts": {
                    host: {
                        "status": str(state.status),
                        "reason": state.reason,
                        "run": state.run,
                        "digest": state.digest,
                        "batch": state.batch,
                    }
                    for host, state in states.items()
                },
            }
        )
    else:
        table = listing("host", "batch", "state", "why")
        for host, state in states.items():
            table.add_row(host, str(state.batch), str(state.status), printable(state.reason))
        console(listing=True).print(table, markup=False)
        click.echo(f"\n{len(done)} of {len(states)} hosts are done.")
        if len(done) < len(states):
            click.echo(
                "A sweep changes nothing that it doesn't put back. What a host that is unreachable "
                "does is unknown: its sweep may go on, and 'labctl host status' on it shows what "
                "is changed there."
            )
            click.echo(f"Go on with: labctl fleet sweep --resume {shlex.quote(fleet.path.name)}")
    return None if len(done) == len(states) else ExitCode.FOUND
