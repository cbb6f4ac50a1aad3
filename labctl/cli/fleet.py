"""Run `labctl fleet`: measure many hosts, and pool and advise what they measured."""

from __future__ import annotations

import secrets
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl import __version__
from labctl.base.errors import ExitCode, UsageError
from labctl.base.wording import counted, printable
from labctl.cli.parts.common import (
    Group,
    console,
    html_option,
    listing,
    named_variables,
    need_pyarrow,
    print_json,
    results_option,
    runs_folder,
)
from labctl.cli.rollout import rollout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from labctl.analysis.hosts.fleet import FleetJudgement
    from labctl.fleet.host_news import HostNews
    from labctl.fleet.sweep_hosts import StateRecord, SweepFolder


# Run `labctl fleet report`: pool what the hosts of a fleet measured.


_fleet = click.argument("name", metavar="FLEET")
_policy = click.option(
    "--policy",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Policy with the least share of hosts for a claim (least_hosts, default 50 %).",
)


def _least_share(policy: Path | None) -> float | None:
    """Return the share of a group's hosts that a claim takes by the policy; None: the default."""
    from labctl.analysis.gate.policy import load_policy

    return None if policy is None else load_policy(policy).least_share


@click.command("report")
@_fleet
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/fleet-report.md).")
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["openmetrics", "prometheus"]),
    help="Print for a monitoring system (docs/fleet-report.md).",
)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write that format to FILE.",
)
@html_option
@_policy
@results_option
def report(
    name: str,
    as_json: bool,
    format_name: str | None,
    out: Path | None,
    html_file: Path | None,
    policy: Path | None,
    results: Path | None,
) -> None:
    """Report which groups of hosts may take a tuning, and which hosts are outliers.

    FLEET is a name in the folder of runs, or the path of a fleet's folder or of a folder of
    archives (HOST/run.tar.xz or HOST.tar.xz). New runs are read first and kept as Parquet in its
    folder 'data'.
    """
    need_pyarrow("labctl fleet report")
    from labctl.analysis.hosts.judge import judge_fleet
    from labctl.fleet.fleet_folder import FleetFolder
    from labctl.fleet.rollout import note_killed
    from labctl.fleet.table import taken
    from labctl.report.export.json_report import fleet_json
    from labctl.report.terminal.fleet_table import fleet_table
    from labctl.store.jsonfile import check_folder, write_output

    if out is not None and format_name is None:
        raise click.UsageError("--out needs a --format: openmetrics or prometheus")
    if format_name is not None and (as_json or html_file is not None):
        raise click.UsageError("--format prints for a monitoring system: leave the others out")
    for target in filter(None, (html_file, out)):
        check_folder(target)
    least_share = _least_share(policy)
    fleet = FleetFolder.find(runs_folder(results), name)
    note_killed(fleet)
    found = taken(fleet, tell_reading)
    judged = judge_fleet(found.rows, found.states, least_share)
    if format_name is not None:
        from labctl.report.export.openmetrics import fleet_openmetrics, fleet_prometheus

        made = fleet_openmetrics if format_name == "openmetrics" else fleet_prometheus
        text = made(fleet.name, fleet.record.study, judged)
        if out is None:
            click.echo(text, nl=False)
        else:
            write_output(out, text)
            click.echo(f"Wrote {out}")
        return
    if as_json:
        print_json({"fleet": fleet.name, "study": fleet.record.study, **fleet_json(judged)})
    if not judged.effects and not as_json:
        console().print(fleet_table(fleet.name, judged))
        raise UsageError(
            f"no host of {fleet.name} has an effect that could be pooled",
            hint="It takes a done host whose study has a baseline and primary metrics.",
        )
    if html_file is not None:
        from labctl.report.page.fleet_page import fleet_page

        write_output(html_file, fleet_page(fleet.name, fleet.record.study, judged).encode())
        click.echo(f"Wrote {html_file}", err=as_json)
    elif not as_json:
        console().print(fleet_table(fleet.name, judged))


@click.command("compare")
@click.argument("name_a", metavar="FLEET_A")
@click.argument("name_b", metavar="FLEET_B")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/fleet-report.md).")
@results_option
def compare(name_a: str, name_b: str, as_json: bool, results: Path | None) -> None:
    """Compare FLEET_B with FLEET_A, host by host: what changed, and on which hosts.

    Both have the same study. FLEET@2026-09 stands for the runs of a month.
    """
    need_pyarrow("labctl fleet compare")
    from labctl.analysis.hosts.changes import change_of_fleets
    from labctl.fleet.fleet_folder import FleetFolder
    from labctl.fleet.table import taken
    from labctl.report.export.json_report import fleet_change_json
    from labctl.report.terminal.fleet_table import changes_table

    a, b = (FleetFolder.find(runs_folder(results), name) for name in (name_a, name_b))
    if (a.path.resolve(), a.month) == (b.path.resolve(), b.month):
        raise UsageError(f"{name_a} and {name_b} are the same fleet")
    if a.record.study_digest != b.record.study_digest:
        raise UsageError(
            f"{a.name} and {b.name} measured different studies",
            hint="'labctl compare' compares two runs of different studies.",
        )
    change = change_of_fleets(
        a.name, taken(a, tell_reading).rows, b.name, taken(b, tell_reading).rows
    )
    if as_json:
        print_json(fleet_change_json(change))
        return
    console().print(changes_table(change))


def tell_reading(host: str) -> None:
    """Say on a terminal which host's run is read: a thousand of them take a minute or two."""
    if sys.stderr.isatty():
        from labctl.base.wording import printable

        click.echo(f"\r\033[Kreading the run of {printable(host)}\r", nl=False, err=True)


@click.command("add")
@_fleet
@click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
)
@click.option("--host", metavar="NAME", help="Name of the host, if there is one FILE.")
@click.option(
    "--replace", is_flag=True, help="Replace the runs of hosts that have one of the same month."
)
@results_option
def add(
    name: str, files: tuple[Path, ...], host: str | None, replace: bool, results: Path | None
) -> None:
    """Add archives of runs to FLEET, which is made if there is none.

    The host of HOST/run.tar.xz or HOST.tar.xz is HOST. All runs must have measured one study. A
    host keeps one run of each month; FLEET@2026-09 stands for those of a month.
    """
    from labctl.base.paths import RUN_ARCHIVE
    from labctl.fleet.fleet_folder import add_runs, fleet_locked, host_of
    from labctl.fleet.sweep_hosts import fleet_path

    if host is not None and len(files) > 1:
        raise UsageError("--host names one host", hint="Add the files one by one.")
    archives: dict[str, Path] = {}
    for file in files:
        if not file.name.endswith(RUN_ARCHIVE):
            raise UsageError(
                f"{file} is not an archive of a run",
                hint="Pack a run with: labctl run export RUN --out HOST.tar.xz",
            )
        of = host or host_of(file)
        if of in archives:
            raise UsageError(f"{file} and {archives[of]} are both of the host {of}")
        archives[of] = file
    path = fleet_path(runs_folder(results), name)
    with fleet_locked(path, f"labctl fleet add {name}", make=True):
        add_runs(path, archives, replace=replace)
    click.echo(f"{path}: {counted(len(archives), 'run')} added")


# Run `labctl fleet advise`: say what a fleet advises to roll out, on which hosts and how.


_INVENTORY = "hosts.yml"
"""Inventory of the next command where the fleet has recorded none."""


@click.command("advise")
@click.argument("name", metavar="FLEET")
@click.option("--tuning", metavar="TUNING", help="Tuning to roll out (default: the best advised).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/fleet.md).")
@_policy
@results_option
def advise(
    name: str, tuning: str | None, as_json: bool, policy: Path | None, results: Path | None
) -> int | None:
    """Show which hosts of FLEET may take a tuning, its cost and its steps.

    A host may take it if its group may, it was measured and it is not an outlier. If no host may,
    the reasons are shown and the exit code is 1.
    """
    need_pyarrow("labctl fleet advise")
    from labctl.analysis.hosts.judge import advised_tunings, hosts_that_may, judge_fleet
    from labctl.fleet.advice import (
        advise_fleet,
        fleet_advice_json,
        headline,
        print_fleet_advice,
        print_nothing,
        why_nothing,
    )
    from labctl.fleet.fleet_folder import FleetFolder
    from labctl.fleet.rollout import note_killed
    from labctl.fleet.table import taken

    least_share = _least_share(policy)
    fleet = FleetFolder.find(runs_folder(results), name)
    note_killed(fleet)
    found = taken(fleet, tell_reading)
    judged = judge_fleet(found.rows, found.states, least_share)
    _check(fleet.name, judged, tuning)
    advised = tuple(one for one in advised_tunings(judged) if hosts_that_may(judged, one).hosts)
    chosen = tuning or next(iter(advised), None)
    about = {"fleet": fleet.name, "study": fleet.record.study}
    if chosen not in advised:
        if as_json:
            why = why_nothing(tuning)
            print_json({**about, **fleet_advice_json(judged, tuning, advised, why, None, None)})
        else:
            print_nothing(console(), judged, tuning)
        return ExitCode.FOUND
    advice = advise_fleet(fleet, judged, chosen, tell_reading)
    inventory = fleet.record.inventory
    command = _next(name, chosen, inventory, policy, results) if fleet.is_swept else None
    if as_json:
        said = headline(judged, advice)
        print_json({**about, **fleet_advice_json(judged, chosen, advised, said, advice, command)})
    else:
        print_fleet_advice(console(), judged, advice, command)
    return None


def _check(fleet: str, judged: FleetJudgement, tuning: str | None) -> None:
    """Raise UsageError where nothing of the tuning, or of any, was pooled."""
    from labctl.base.errors import nearest

    tunings = dict.fromkeys(answer.tuning for answer in judged.answers)
    if not tunings:
        raise UsageError(
            f"no host of {fleet} has an effect to pool",
            hint=f"'labctl fleet report {shlex.quote(fleet)}' shows the state of each host.",
        )
    if tuning is not None and tuning not in tunings:
        raise UsageError(
            f"{fleet} did not measure a tuning '{tuning}'", hint=nearest(tuning, tunings)
        )


def _next(
    name: str, tuning: str, inventory: Sequence[str], policy: Path | None, results: Path | None
) -> str:
    """Return the command that rolls a tuning out."""
    words = ["labctl", "fleet", "rollout", name, "--tuning", tuning]
    for path in inventory or (_INVENTORY,):
        words += ["--inventory", path]
    if policy is not None:
        words += ["--policy", str(policy)]
    if results is not None:
        words += ["--results", str(results)]
    return shlex.join(words)


# Run `labctl fleet sweep`: the same study on every host of an inventory.


_OURS = {
    "resume": "use the --resume of 'fleet sweep'",
    "extend": "each host's run has its own name",
    "plan_only": "plan on one host: labctl sweep STUDY --plan-only",
    "detaching": "hosts always measure detached",
    "as_json": "--json goes before the study's options",
    "results": "--results goes before the study's options",
    "domain": "each host has its own virtual machines",
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
@click.option(
    "--forks", type=click.IntRange(1), default=20, help="Hosts contacted in parallel (20)."
)
@click.option(
    "--serial",
    metavar="N|N%,...",
    help="Size of the batches (with a policy 1,100%, else all hosts at once).",
)
@click.option(
    "--policy",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Check each run against its rules; the next batch begins when all runs keep them.",
)
@click.option("--resume", metavar="FLEET", help="Continue a fleet's sweep, host by host.")
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
    """Measure STUDY on every host of an inventory, with one seed; fetch each finished run.

    If a host fails or is unreachable, it is named and the others continue. Exits with 1 unless
    every host finished and kept the policy's rules.
    """
    # Only the report needs it, but hours later.
    need_pyarrow("labctl fleet sweep")
    from labctl.fleet.ansible import in_full
    from labctl.fleet.fleet_folder import fleet_locked
    from labctl.fleet.sweep_hosts import HowToReach, SweepFolder, sweep_hosts

    given = named_variables(variables)
    if wheelhouse is not None:
        given["labctl_install_wheelhouse"] = str(wheelhouse.absolute())
    place = runs_folder(results)
    if resume is not None:
        if words or limit or serial or policy:
            raise UsageError(
                "--resume continues the original request",
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
        with fleet_locked(fleet.path, f"labctl fleet sweep {fleet.path.name}"):
            sweep_hosts(fleet, how, study, _WatchSweep(fleet))
    except KeyboardInterrupt as stopped:
        stopped.add_note(
            "Running sweeps continue. Continue with: labctl fleet sweep --resume "
            + shlex.quote(fleet.path.name)
        )
        raise
    return _show_sweep(fleet, as_json=as_json)


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
    from labctl.fleet.ansible import batches_of, in_full, inventory_hosts
    from labctl.fleet.sweep_hosts import FleetSweep, SweepFolder, check_names

    if not inventory:
        raise UsageError(
            "missing option --inventory",
            hint="'all: {hosts: {h1: {ansible_host: 10.0.0.1}}}' in a file is an inventory.",
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
        command=("labctl", *sys.argv[1:]),
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
            "the study is missing, or comes after its options",
            hint="labctl fleet sweep --inventory FILE STUDY [its options]; 'labctl sweep' lists.",
        )
    context = command.make_context("sweep", list(words), parent=click.get_current_context())
    for name, why in _OURS.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"that option does not work with labctl fleet sweep: {why}")
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
    from labctl.study.study import study_path

    return str(study_path(study).absolute())


class _WatchSweep:
    """Print a line where a host's state, or the number of its trials, has changed, with the
    progress of all where it is done."""

    def __init__(self, fleet: SweepFolder) -> None:
        from labctl.fleet.sweep_hosts import Overall, Status

        done = {h for h in fleet.record.hosts if fleet.state(h).status is Status.DONE}
        self._before = len(done)
        self._overall = Overall(hosts=len(fleet.record.hosts) - len(done))
        self._begin = time.monotonic()
        self._heard: dict[str, str] = {}

    def __call__(self, host: str, state: StateRecord, news: HostNews) -> None:
        self._overall.hear(host, state, news)
        counts = f"{news.done} of {news.planned} trials" if news.planned else ""
        text = f"{state.status}{f': {state.reason}' if state.reason else ''}"
        if state.status == "running":
            text = counts or "running"
        if text == "running" or self._heard.get(host) == text:
            return
        self._heard[host] = text
        if state.status == "done":
            text += f" ({self._all()})"
        click.echo(printable(f"{host}: {text}"), err=True)

    def _all(self) -> str:
        """Return the progress of all hosts."""
        from labctl.base.wording import roughly

        overall = self._overall
        done, every = self._before + len(overall.done), self._before + overall.hosts
        left = overall.left_s(time.monotonic() - self._begin)
        about = "" if left is None or done == every else f", about {roughly(left)} left"
        return f"{done} of {counted(every, 'host')}{about}"


def _show_sweep(fleet: SweepFolder, *, as_json: bool) -> int | None:
    """Print how far each host came; returns the exit status."""
    from labctl.fleet.sweep_hosts import write_limit

    states = {host: fleet.state(host) for host in fleet.record.hosts}
    done = [host for host, state in states.items() if state.status == "done" and not state.reason]
    failed = [host for host, state in states.items() if state.status != "done"]
    limit = write_limit(fleet.path, failed)
    if as_json:
        print_json(
            {
                "schema": 1,
                "fleet": fleet.path.name,
                "path": str(fleet.path),
                "failed": failed,
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
                "A sweep restores every setting that it changes. The sweep of an "
                "unreachable host may still be running; 'labctl host status' on it shows "
                "its changes."
            )
            click.echo(f"Continue with: labctl fleet sweep --resume {shlex.quote(fleet.path.name)}")
        if failed:
            click.echo(f"Hosts that are not done: --limit @{limit}")
    return None if len(done) == len(states) else ExitCode.FOUND


# Run `labctl fleet`: measure many hosts, and pool what they say.


@click.group("fleet", cls=Group)
def command() -> None:
    """Measure many hosts with one study, over ssh, and pool the results."""


@command.command("wheelhouse")
@click.option(
    "--out",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write it.",
)
def wheelhouse(out: Path) -> None:
    """Bundle labctl and its dependencies in one file, for hosts without a network.

    It holds the versions installed here, for the Python of Debian 12, of Debian 13 and of this
    host. A host with a different Python needs its package python3-libvirt.
    """
    from labctl.fleet.wheelhouse import make_wheelhouse
    from labctl.store.jsonfile import check_folder

    check_folder(out)
    count = make_wheelhouse(out)
    size = out.stat().st_size >> 20
    click.echo(f"{count} wheels in {out} ({size} MiB)")


command.add_command(sweep)
command.add_command(rollout)
command.add_command(report)
command.add_command(add)
command.add_command(compare)
command.add_command(advise)
