"""Run a workload once on a machine, and read its metrics."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labctl.base.channel import ChannelClosed
from labctl.base.command import Command, FileSystem, Server
from labctl.base.errors import BrokenError
from labctl.run.commands.try_reading import Read, read_output
from labctl.run.guests.bench import Bench
from labctl.run.guests.lab import Lab
from labctl.run.trials.peer import serving
from labctl.run.trials.ran_checks import ran_reasons
from labctl.run.trials.trial_request import SLACK_S
from labctl.run.trials.trial_setting import cgroup_of, new_data, setting_of
from labctl.run.trials.window import store_output
from labctl.store.trial import TrialFolder
from labctl.study.load_study import OneProgram
from labctl.workloads.loops import repeated_argv
from labctl.workloads.registry import workload_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Hold what one try did. `commands`: what ran, by what it was for; `failure`: why it counts
    for nothing."""

    side: str
    commands: Mapping[str, str]
    status: int | None = None
    """None of a program that did not come to its end."""
    seconds: float = 0.0
    stdout: bytes = b""
    stderr: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    servers: Sequence[bytes] = ()
    failure: str | None = None
    read: Read = field(default_factory=Read)


def run_once(lab: Lab, bench: Bench, one: OneProgram) -> Tried:
    """Return what one run of the program did on that machine; no warm-up, nothing collected."""
    program = workload_of(one.workload)
    setting = setting_of(lab, bench, program, one.workload)
    new_data(lab, bench, program, setting)
    command = program.command(setting)
    servers = program.servers(setting)
    commands = commands_of(command, servers)
    placed: dict[str, Any] = {"cpus": bench.cpus, "sched": bench.sched}
    try:
        with (
            serving(lab, program, setting.parameters),
            bench.channel.serving(servers, **placed) as ended,
            cgroup_of(lab, bench, command),
        ):
            result = bench.channel.run(command, seconds=setting.duration_s + SLACK_S, **placed)
    except ChannelClosed:
        raise
    except BrokenError as error:
        # It was killed, printed too much, or its server or set-up failed.
        why = "\n".join(filter(None, (error.message, error.hint)))
        return Tried(side=str(bench.kind), commands=commands, failure=why)
    with tempfile.TemporaryDirectory(dir=lab.work) as path:
        folder = TrialFolder(Path(path))
        store_output(folder, result)
        failure = next(iter(ran_reasons(program, command, result, ended, folder)), None)
        read = read_output(program, folder, setting.parameters)
    return Tried(
        side=str(bench.kind),
        commands=commands,
        status=result.returncode,
        seconds=result.duration_s,
        stdout=result.stdout,
        stderr=result.stderr,
        files=result.files,
        servers=[server.output for server in ended.ended],
        failure=failure,
        read=read,
    )


def commands_of(command: Command, beside: Sequence[Server | FileSystem]) -> dict[str, str]:
    """Return what runs, by what it is for, as a shell would take it; of labctl's own loop, what it
    repeats."""
    disks = [one for one in beside if isinstance(one, FileSystem)]
    servers = [one for one in beside if isinstance(one, Server)]
    prepare = [argv for disk in disks for argv in disk.prepare]
    found = {f"prepare {n}": shlex.join(argv) for n, argv in enumerate(prepare, start=1)}
    found |= {f"serve {n}": shlex.join(one.argv) for n, one in enumerate(servers, start=1)}
    found |= {f"setup {n}": shlex.join(argv) for n, argv in enumerate(command.setup, start=1)}
    repeats = repeated_argv(command.argv)
    name = "command" if repeats is None else "command, again and again"
    found[name + _isolation(command)] = shlex.join(repeats or command.argv)
    found |= {f"after {n}": shlex.join(argv) for n, argv in enumerate(command.after, start=1)}
    return found


def _isolation(command: Command) -> str:
    """Return what a command runs under of its own, "" where that is nothing."""
    policy, limits = str(command.sched.policy) if command.sched else "other", command.cgroup
    under = f", under SCHED_{policy.upper()}" if policy != "other" else ""
    return under + (f", in a cgroup ({', '.join(limits.controllers)})" if limits else "")
