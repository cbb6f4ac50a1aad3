"""Apply advice on this host: its own steps, with the way back written down before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from labctl.base.errors import UsageError
from labctl.base.wording import printable
from labctl.cli.host import (
    changed_json,
    foreseen_json,
    restore_timer,
    show_foreseen,
    show_tuned,
    tell,
)
from labctl.cli.parts.common import print_json

if TYPE_CHECKING:
    from labctl.base.paths import StatePaths
    from labctl.host.settings.knobs import Foreseen
    from labctl.host.settings.tunables import Tunable
    from labctl.rollout.advice import Advised
    from labctl.rollout.steps import Command, Step
    from labctl.run.planning.host import HostRequest

_NOT_UNDONE = {
    "tuned": "tuned changes more than can be restored, and its daemon may have to be started",
    "c-states": "cpupower also enables idle states that were disabled before",
    "cpu-dma-latency": "a service must keep it open",
}
"""Knobs whose steps change what no journal has, and why."""

_STEP_S = 300.0
"""Seconds for a command of the advice: update-grub looks at every disk for other systems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Name the domain, its disk and where libvirt has it. `vcpus`: those of the domain, as far as
    known; `other_host`: this host in words, where the run measured another one."""

    domain: str | None
    disk: str | None
    uri: str
    vcpus: int | None
    other_host: str


def apply_advice(
    places: StatePaths,
    run: str,
    advised: Advised,
    target: Target,
    *,
    restore_after: str | None,
    check: bool,
    as_json: bool,
) -> None:
    """Carry out the steps of advice that belong to the host, or with `check` say what they would
    change.

    What is changed stays until 'labctl host restore': all of it or, where a step fails, none.
    Raises UsageError for a tuning that changes nothing on the host or what can't be undone, and
    where the domain or disk that is changed isn't named; HostError where this host can't have it
    or a step fails.
    """
    from labctl.run.commands.host_tuning import Lasting, tune

    _check(advised, target)
    asked = _asked(advised, f"{advised.tuning} (advise {run})")
    carrying = _Carrying(_host_steps(advised), target)
    found = _foreseen(asked, carrying)
    if check:
        if as_json:
            print_json(foreseen_json(found, _after_reboot(advised)))
        else:
            show_foreseen(found, _after_reboot(advised))
        return
    if found:
        lasting = Lasting(tunables=carrying.tunables(), act=carrying.carry_out)
        with restore_timer(places, restore_after):
            tuned = tune(asked, places, tell, lasting)
        changed, refused = list(tuned.changed), list(tuned.refused)
    else:
        changed, refused = [], []
    if as_json:
        print_json(
            {
                "schema": 1,
                "tuning": advised.tuning,
                "changed": [changed_json(entry) for entry in changed],
                "refused": refused,
                "needs_reboot": _after_reboot(advised),
                "when_started": _when_started(advised),
                "in_guest": _in_guest(advised),
                "notes": list(advised.rollout.notes),
            }
        )
        return
    show_tuned(changed, refused)
    for title in _after_reboot(advised):
        click.echo(printable(f"in force after a reboot of the host: {title}"))
    for title in _when_started(advised):
        click.echo(printable(f"in force after the next start of the virtual machine: {title}"))
    for title in _in_guest(advised):
        click.echo(printable(f"left to do inside the guest: {title}"))
    for note in advised.rollout.notes:
        click.echo(printable(f"note: {note}"))


def _check(advised: Advised, target: Target) -> None:
    """Raise UsageError for what `apply_advice` doesn't take."""
    from labctl.base.placement import refuse
    from labctl.rollout.steps import DISK

    rollout, tuning = advised.rollout, advised.tuning
    refuse(tuning, rollout.refused)
    steps = _host_steps(advised)
    for knob, why in _NOT_UNDONE.items():
        if knob in dict(rollout.host):
            raise UsageError(
                f"'{tuning}' sets '{knob}', which cannot be undone completely: {why}",
                hint="Write the steps with --out FOLDER and apply them by hand.",
            )
    if not steps:
        raise UsageError(
            f"'{tuning}' changes nothing on the host",
            hint="Its steps are inside the guest ('labctl advise' lists them), or the run did not "
            "record them.",
        )
    if rollout.edits_domain and target.domain is None:
        raise UsageError(
            f"'{tuning}' changes a virtual machine, but none is named",
            hint="Name it with --domain; 'virsh list --all' shows them.",
        )
    words = [word for step in steps for command in step.commands for word in command.argv]
    if target.disk is None and any(DISK in word for word in words):
        raise UsageError(
            f"'{tuning}' changes a disk, but none is named",
            hint=f"Name it with --disk; 'virsh domblklist {target.domain}' shows them.",
        )
    if target.vcpus is None:
        if target.other_host:
            raise UsageError(
                f"the run measured another host ({target.other_host}), and its CPU numbers "
                "apply only there",
                hint="Add --domain to plan the pins for this host.",
            )
    elif rollout.vcpus is not None and target.vcpus != rollout.vcpus:
        raise UsageError(
            f"the steps of '{tuning}' are for {rollout.vcpus} vCPUs, but '{target.domain}' "
            f"has {target.vcpus}",
            hint="The notes of 'labctl advise' explain why they could not be fitted.",
        )


class _Carrying:
    """Carry out the host's steps of a tuning, for one domain and disk."""

    def __init__(self, steps: Sequence[Step], target: Target) -> None:
        self._steps = steps
        self._domain = target.domain or ""
        self._disk = target.disk or ""
        self._uri = target.uri

    def tunables(self) -> list[Tunable]:
        """Return all that the steps may change, so that it can be put back."""
        from labctl.host.settings.permanent import ConfigFile, DomainDefinition

        found: list[Tunable] = [ConfigFile(step.file.path) for step in self._steps if step.file]
        if self._edits_domain():
            found.append(DomainDefinition(self._uri, self._domain))
        return found

    def _edits_domain(self) -> bool:
        return any(command.edits_domain for step in self._steps for command in step.commands)

    def _check_domain(self) -> None:
        """Raise HostError where the domain that is to be changed can't be read."""
        from labctl.base.errors import HostError
        from labctl.host.settings.permanent import DomainDefinition

        if not self._edits_domain():
            return
        try:
            DomainDefinition(self._uri, self._domain).read()
        except OSError as error:
            raise HostError(
                f"the domain '{self._domain}' can't be read: {error.strerror}",
                hint=f"'virsh --connect {self._uri} list --all' lists the domains.",
            ) from error

    def foreseen(self) -> Iterator[Foreseen]:
        """Yield what the steps would change. Only reads."""
        from labctl.host.settings.knobs import Foreseen
        from labctl.host.settings.permanent import ConfigFile, content

        self._check_domain()
        for step in self._steps:
            if step.file is not None:
                now, then = ConfigFile(step.file.path).read(), content(step.file.text)
                if now != then:
                    yield Foreseen(name=step.file.path, now=now, then=then)
                continue
            for command in step.commands:
                if self._is_due(command) and self._would_change(command):
                    name = f"domain {self._domain}" if command.edits_domain else step.title
                    yield Foreseen(name=name, now="as it is", then=step.title)

    def carry_out(self) -> None:
        """Write the files, and run the commands. Raises HostError, BrokenError, OSError."""
        from pathlib import Path

        from labctl.host.settings.permanent import ConfigFile, content, write_config

        for step in self._steps:
            if step.file is not None:
                if ConfigFile(step.file.path).read() == content(step.file.text):
                    continue  # its commands only put it in force
                write_config(Path(step.file.path), step.file.text)
            for command in step.commands:
                if self._is_due(command):
                    self._run(command.argv)

    def _is_due(self, command: Command) -> bool:
        unless = command.unless
        if unless is None:
            return True
        said = self._run(unless.argv)
        return unless.text not in (said.splitlines() if unless.whole_line else said)

    def _would_change(self, command: Command) -> bool:
        """Ask virt-xml, which prints the difference without making it."""
        if not command.edits_domain:
            return True
        return command.changed in self._run([word for word in command.argv if word != "--define"])

    def _run(self, argv: Sequence[str]) -> str:
        from labctl.base import process
        from labctl.base.process import Deadline
        from labctl.rollout.steps import filled

        return process.run(
            filled(argv, self._domain, self._disk),
            env={"LIBVIRT_DEFAULT_URI": self._uri, "VIRSH_DEFAULT_CONNECT_URI": self._uri},
            deadline=Deadline.after(_STEP_S, argv[0]),
        ).stdout


def _asked(advised: Advised, name: str) -> HostRequest:
    """Return the knobs, which are in force at once. Raises HostError where this host can't have
    them."""
    from labctl.base.errors import HostError
    from labctl.host.settings import knobs
    from labctl.host.settings.knob import KnobPlace
    from labctl.run.planning.host import HostRequest

    rollout = advised.rollout
    host = dict(rollout.host)
    place = KnobPlace(housekeeping=rollout.cpus.others, isolated=rollout.cpus.vcpus)
    if problems := knobs.problems(host, place):
        raise HostError(
            f"this host can't do that: {'; '.join(problems)}",
            hint="'labctl host status' shows what can be set here.",
        )
    return HostRequest(names=(name,), host=host, words=(), risks=(), place=place)


def _foreseen(asked: HostRequest, carrying: _Carrying) -> list[Foreseen]:
    from labctl.base.errors import HostError
    from labctl.host.settings.knobs import foreseen

    try:
        return [*foreseen(asked.host, asked.place), *carrying.foreseen()]
    except OSError as error:
        raise HostError(
            f"{error.filename or 'the host'} can't be read: {error.strerror}"
        ) from error


def _host_steps(advised: Advised) -> list[Step]:
    from labctl.rollout.steps import Machine

    return advised.rollout.at(Machine.HOST)


def _after_reboot(advised: Advised) -> list[str]:
    from labctl.rollout.steps import InForce

    steps = _host_steps(advised)
    return [step.title for step in steps if step.in_force is InForce.HOST_REBOOT]


def _when_started(advised: Advised) -> list[str]:
    from labctl.rollout.steps import InForce

    steps = _host_steps(advised)
    return [step.title for step in steps if step.in_force is InForce.GUEST_START]


def _in_guest(advised: Advised) -> list[str]:
    from labctl.rollout.steps import Machine

    return [step.title for step in advised.rollout.at(Machine.GUEST)]
