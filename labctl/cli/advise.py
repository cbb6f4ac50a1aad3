"""Run `labctl advise`: recommend what to roll out, and list all that it takes."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.base.errors import ExitCode, LabctlError, UsageError
from labctl.cli.parts.common import (
    Sectioned,
    console,
    print_json,
    recorded_sweep,
    results_option,
    runs_folder,
    state_paths,
)

if TYPE_CHECKING:
    from labctl.host.topology import Topology
    from labctl.rollout.advice import Advice, Advised
    from labctl.rollout.files import Names
    from labctl.rollout.fitted import Pins, VirtualMachine
    from labctl.run.planning.planned import SweepRequest
    from labctl.store.records.plan_record import PlanRecord
    from labctl.store.run_folder import LoadedRun, RunFolder


PLATFORMS = ("proxmox", "kubevirt", "openstack", "virsh", "virt-xml", "cockpit")
"""Platforms of --as; templates/platforms/ has a table for each."""

_SECTIONS = {
    "What to advise": "--tuning --domain --connect --vcpus --disk --results",
    "Output": "--as --out --card --json --help",
    "Apply it to this host": "--apply --check --restore-after",
    "Measure it again": "--verify --fresh --seed --detach --quiet",
}
"""Heading of --help to its options."""


@click.command("advise", cls=Sectioned, sections=_SECTIONS)
@click.argument("run_name", metavar="RUN")
@click.option("--domain", metavar="NAME|FILE", help="The domain to write the commands for.")
@click.option("--connect", metavar="URI", help="Where it is defined (default: qemu:///system).")
@click.option(
    "--vcpus", type=click.IntRange(1), help="vCPUs to fit the pins to (default: the domain's)."
)
@click.option("--disk", metavar="TARGET", help="Its disk (vda, …), for tunings of disks.")
@click.option("--tuning", metavar="NAME", help="A tuning other than the first advised one.")
@click.option(
    "--as",
    "platform",
    type=click.Choice(PLATFORMS),
    help="Write the steps for this platform (docs/platforms.md).",
)
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
@click.option("--apply", "applying", is_flag=True, help="Apply the host's steps on this host.")
@click.option("--check", is_flag=True, help="With --apply: show what would change; change nothing.")
@click.option(
    "--restore-after",
    metavar="TIME",
    help="With --apply: undo it after this time (such as 30m) unless 'labctl host keep' is called.",
)
@click.option("--verify", is_flag=True, help="Measure the advised tuning again, in fresh guests.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of --verify (default: random).")
@click.option("--fresh", metavar="RUN", help="With --verify: use this run instead of measuring.")
@click.option(
    "--detach", "detaching", is_flag=True, help="With --verify: continue in the background."
)
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
    platform: str | None,
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
    """Show which tuning RUN advises to roll out, its cost and the steps to apply it.

    A tuning is advised if it improves at least one primary metric and is shown to lose no more
    than the study allows in every other. --verify measures the advised tuning again in a
    new run, and exits with 1 if the result does not repeat. --apply runs the steps on this host;
    'labctl host restore' undoes all of them.
    """
    from labctl.analysis.judge import judge
    from labctl.rollout.advice import advise, of_tuning
    from labctl.rollout.files import Names
    from labctl.store.run_places import find_run, fresh_runs

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
        asked = Verifying(context, folder, run, named or _first(advice, "verify"), place)
        return verify_advice(
            asked, seed=seed, fresh=fresh, detach=detaching, quiet=quiet, as_json=as_json
        )
    if applying:
        from labctl.cli.parts.apply import Target, apply_advice

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
    if platform is not None:
        _write_as(platform, advice, named or _first(advice, "write"), names, out, as_json=as_json)
        return None
    _write(advice, names, out, card_file, quiet=as_json)
    if as_json:
        from labctl.rollout.files import advice_json

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
            "--verify and --apply exclude each other",
            hint="Measure again first with --verify. If that confirms it, use --apply.",
        )
    for name, belongs in _BELONG_TO.items():
        if name in given and belongs not in given:
            raise UsageError(f"{words[name]} goes with {words[belongs]}")
    if "tuning" in given and not {"verify", "applying", "platform"} & given:
        raise UsageError("--tuning goes with --verify, --apply or --as")
    if "platform" in given and (others := {"verify", "applying", "card_file"} & given):
        other = words[min(others)]
        raise UsageError(f"--as and {other} exclude each other", hint=f"Leave out {other}.")


def _first(advice: Advice, what: str) -> Advised:
    """Return what is advised first. Raises UsageError where nothing is."""
    if not advice.advised:
        raise UsageError(
            f"there is nothing to {what}: {advice.headline}",
            hint="Choose a tuning that this run does not advise with --tuning NAME.",
        )
    return advice.advised[0]


def _write(
    advice: Advice, names: Names, out: Path | None, card_file: Path | None, *, quiet: bool
) -> None:
    from labctl.rollout.files import write_card, write_files

    written: list[Path] = []
    if out is not None:
        written += write_files(out, advice, names)
    if card_file is not None:
        write_card(card_file, advice, names)
        written.append(card_file)
    if not quiet:
        for path in written:
            click.echo(f"Wrote {path}")


def _write_as(
    platform: str,
    advice: Advice,
    advised: Advised,
    names: Names,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    from labctl.rollout.files import write_texts
    from labctl.rollout.platforms import written, written_json
    from labctl.rollout.text import print_written

    found = written(advice, advised, names, platform)
    if out is not None:
        paths = write_texts(out, found.files)
        if not as_json:
            for path in paths:
                click.echo(f"Wrote {path}")
    if as_json:
        print_json(written_json(found))
    else:
        print_written(console(), found, with_files=out is None)


# Describe the virtual machine that `labctl advise` rolls out to: its size, and its pin plan.


SYSTEM = "qemu:///system"

_FACTS = ("cpu_model", "cpus_online", "topology", "numa_nodes")
"""Facts of a host that its pin plans follow from."""


def rollout_target(
    run: LoadedRun, domain: str | None, connect: str | None, vcpus: int | None
) -> tuple[VirtualMachine | None, str | None]:
    """Return the virtual machine that the options name, and the domain's name for the commands.

    The size comes from --vcpus, else from the domain: of a file, or defined at `connect`. A name
    that this host's libvirt doesn't know stays a name: the domain may be on another host. Raises
    UsageError where --vcpus asks for pins of a host that isn't this one, or --connect for a domain
    that isn't there.
    """
    from labctl.run.planning.own_domain import domain_asked_for, is_file

    name, memory_mib, xml = domain, None, None
    if domain is not None and (vcpus is None or is_file(domain)):
        try:
            own = domain_asked_for(domain, connect or SYSTEM)
        except LabctlError:
            if connect is not None or is_file(domain):
                raise
        else:
            name, memory_mib, xml = own.name, own.memory_mib, own.xml
            vcpus = own.vcpus if vcpus is None else vcpus
    if vcpus is None:
        return None, name
    here = other_host(run)
    if here and memory_mib is None:
        raise UsageError(
            f"--vcpus plans pins for this host ({here}), but run {run.name} measured another host",
            hint="Run it on the virtual machine's host, with a copy of the run's folder.",
        )
    return _machine(vcpus, memory_mib, xml, here), name


def other_host(run: LoadedRun) -> str:
    """Return this host in words where it isn't the one that was measured, else ""."""
    from labctl.host.facts import read_host_files
    from labctl.host.machines import machine_facts

    now, then = machine_facts(read_host_files), run.run.host
    if all(now.get(fact) == then.get(fact) for fact in _FACTS):
        return ""
    return f"{now.get('cpu_model')}, CPUs {now.get('cpus_online')}"


def _machine(vcpus: int, memory_mib: int | None, xml: str | None, here: str) -> VirtualMachine:
    from labctl.domain.pinning.pin_plan import pin_plan
    from labctl.host.topology import read_rt_runtime_us, read_topology
    from labctl.rollout.fitted import VirtualMachine

    topology = read_topology()
    host = pin_plan(topology, vcpus, 1).host
    return VirtualMachine(
        vcpus=vcpus,
        memory_mib=memory_mib,
        pins=_planned(topology, vcpus),
        host=replace(host, rt_runtime_us=read_rt_runtime_us()),
        xml=xml,
        here=here,
    )


def _planned(topology: Topology, vcpus: int) -> Callable[[str | None, int], Pins]:
    from labctl.base.tuning import Strategy
    from labctl.domain.pinning.pin_plan import pin_plan
    from labctl.rollout.fitted import Pins

    def pins(strategy: str | None, iothreads: int) -> Pins:
        if strategy is not None and strategy not in list(Strategy):
            raise UsageError(
                f"the run's tuning pins with '{strategy[:60]}', which is not a strategy",
                hint=f"Allowed: {', '.join(Strategy)}. The run's folder was changed or damaged.",
            )
        plan = pin_plan(topology, vcpus, iothreads, Strategy(strategy or Strategy.COMPACT))
        return Pins(
            vcpus=plan.vcpus,
            nodes=frozenset(plan.vcpu_nodes),
            guest_topology=plan.guest_topology,
            emulator=plan.emulator,
            iothreads=plan.iothreads,
            online=plan.online,
        )

    return pins


# Measure advice once more: the study that gave it, with only the advised tuning.


@dataclass(frozen=True, slots=True)
class Verifying:
    """Say which tuning of which run is measured once more. `results`: where the fresh run goes."""

    context: click.Context
    folder: RunFolder
    run: LoadedRun
    advised: Advised
    results: Path


def verify_advice(
    asked: Verifying,
    *,
    seed: int | None,
    fresh: str | None,
    detach: bool,
    quiet: bool,
    as_json: bool,
) -> int | None:
    """Measure the tuning, print it beside the advice, and return the exit status: 1 where it is
    not confirmed. `fresh`: the run that another --verify has made, to measure nothing.

    Raises UsageError when the run's study isn't what it was, or `fresh` says nothing of it;
    whatever a sweep raises.
    """
    if fresh is not None:
        return _answer(asked, _usable(asked, fresh), as_json=as_json)

    from labctl.cli.sweep import swept
    from labctl.run.planning.plan import plan_sweep

    request = verifying_request(asked.context, asked.run, asked.advised.tuning, asked.results, seed)
    check_lab(asked.run)
    check_same(asked.run, plan_sweep(request).plan.record())
    if detach:
        from labctl.cli.sweep import detached_run

        return detached_run(request, lambda folder: _note_answer(asked), as_json=as_json)
    return _answer(asked, swept(request, quiet=quiet).load(), as_json=as_json)


def _usable(asked: Verifying, name: str) -> LoadedRun:
    """Return the run of that name. Raises UsageError where it says nothing of the advice."""
    from labctl.analysis.answer.grade import evidence, unusable
    from labctl.store.run_places import find_run

    fresh = find_run(asked.results, name).load()
    why = unusable(asked.run, fresh, evidence(asked.run))
    verifies = fresh.run.verifies
    if not why and verifies is not None and verifies.tuning != asked.advised.tuning:
        why = f"it measured '{verifies.tuning}'"
    if why:
        raise UsageError(
            f"run '{fresh.name}' cannot confirm the advice of run '{asked.run.name}': {why}",
            hint="Make a suitable run with 'labctl advise RUN --verify'.",
        )
    return fresh


def _answer(asked: Verifying, fresh: LoadedRun, *, as_json: bool) -> int | None:
    from labctl.analysis.judge import judge
    from labctl.rollout.verified import print_verified, verified, verified_json

    result = verified(asked.run, asked.advised, fresh, judge(fresh))
    _note_answer(asked)
    if as_json:
        print_json(verified_json(result))
    else:
        print_verified(console(), result)
    return None if result.confirmed else ExitCode.FOUND


def _note_answer(asked: Verifying) -> None:
    """Write down what the first run's answer is, now that there is a fresh one."""
    from labctl.analysis.answer.json import write_answer
    from labctl.analysis.judge import judge
    from labctl.store.run_places import fresh_runs

    fresh = fresh_runs(asked.folder, asked.results)
    write_answer(asked.folder, judge(asked.run, fresh).decision)


# Ask for a run's measurement once more: the same study with one tuning, under another seed.


def verifying_request(
    context: click.Context, run: LoadedRun, tuning: str, results: Path, seed: int | None
) -> SweepRequest:
    """Return what the run was asked for, read back from its own command, with this tuning and the
    roles and with another seed: the same order again would not be a new sample of the host's
    moods."""
    from labctl.analysis.answer.grade import evidence
    from labctl.cli.sweep import command as sweep_command
    from labctl.cli.sweep import request_of
    from labctl.store.records.run_record import AdviceVerified

    recorded = recorded_sweep(run)
    if recorded is None:
        raise UsageError(
            f"run '{run.name}' does not name its study",
            hint="Measure it with 'labctl sweep STUDY --tuning " + shlex.quote(tuning) + "'.",
        )
    again = sweep_command.make_context("sweep", recorded[0], parent=context)
    again.params.update(
        tunings=(tuning,),
        seed=secrets.randbelow(2**31) if seed is None else seed,
        results=results,
    )
    verifies = AdviceVerified(run=run.name, tuning=tuning, evidence=evidence(run))
    return replace(request_of(again), verifies=verifies)


def check_lab(run: LoadedRun) -> None:
    """Raise UsageError where the run's studies and tunings came from a lab folder that isn't the
    caller's now: a run may come from anywhere, so its folder is never taken by itself."""
    from labctl.base.paths import lab

    recorded = recorded_sweep(run)
    named = recorded[1] if recorded else None
    if named is not None and lab().folder != Path(named):
        raise UsageError(
            f"run '{run.name}' was made with the lab folder {named}",
            hint=f"If that is yours: labctl --lab {shlex.quote(named)} advise "
            f"{shlex.quote(run.name)} --verify",
        )


def check_same(run: LoadedRun, plan: PlanRecord) -> None:
    """Raise UsageError where a plan asks for something else than the run's, or has its seed."""
    from labctl.analysis.answer.grade import differing as keys_of

    if plan.seed == run.plan.seed:
        raise UsageError(
            f"seed {plan.seed} is the seed of run '{run.name}'",
            hint="Give another --seed, or leave it out.",
        )
    differing = keys_of(plan, run.plan)
    # They decide which trials count. An older run knows fewer of them.
    limits = run.plan.limits
    if {key: plan.limits.get(key) for key in limits} != limits:
        differing.append("limits")
    if differing:
        raise UsageError(
            f"the study of run '{run.name}' has changed: {', '.join(differing)} "
            f"{'differs' if len(differing) == 1 else 'differ'} now",
            hint="Restore the study's file on the host of the run, or make a new run and use "
            "its advice.",
        )
