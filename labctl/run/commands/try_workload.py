"""Try a workload: run it once for a few seconds on one side, and read its metrics.

No warm-up, no collectors, no verdicts. The results are the argv that ran, its output, and what each
metric's reader found in it.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labctl.base.channel import ChannelClosed
from labctl.base.command import Command, CommandResult, FileSystem, Server
from labctl.base.errors import BrokenError, HostError, LabctlError
from labctl.base.events import Listener, Note
from labctl.base.paths import StatePaths
from labctl.base.process import MARK
from labctl.base.tuning import Kind
from labctl.host.accelerator import Requested
from labctl.run.commands.host_checks import refuse_problems
from labctl.run.guests.base_guest import guest_base
from labctl.run.guests.bench import Bench, fresh_bench
from labctl.run.guests.lab import Lab
from labctl.run.guests.lab_opening import open_lab
from labctl.run.guests.leftovers import alone
from labctl.run.planning.plan import plan_sweep
from labctl.run.planning.planned import SweepRequest
from labctl.run.trials.beside import serving
from labctl.run.trials.parse import believable
from labctl.run.trials.request import SLACK_S, cgroup_of, new_data, setting_of
from labctl.run.trials.trial import ran_reasons, store_output
from labctl.run.trials.window_checks import oddities
from labctl.store.samples import Sample
from labctl.store.trial import TrialFolder
from labctl.study.load_study import OneProgram, Overrides
from labctl.workloads.declared_metrics import check_outputs, stored_runs
from labctl.workloads.loops import Output, repeated_argv
from labctl.workloads.metric_file import Explained, explain_run, told_with
from labctl.workloads.registry import workload_of
from labctl.workloads.setting import Parameters
from labctl.workloads.workload import Workload

# Read the output of one try. Metrics are independent: an error in one hides no other's value.


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Hold the metrics of one try. `metrics`: of the first run, by metric; `values`: those that a
    trial would have, as text with units; `error`: why it would have none."""

    metrics: Mapping[str, Explained] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    runs: int = 1
    error: str | None = None

    @property
    def problem(self) -> str | None:
        """Return the first reason why a trial with this output would be invalid."""
        wrong = (f"metric '{n}': {m.error}" for n, m in self.metrics.items() if m.error)
        return next(wrong, self.error)


def read_output(program: Workload, folder: TrialFolder, parameters: Parameters) -> Read:
    """Return the metrics of a stored output."""
    metrics: Mapping[str, Explained] = {}
    runs: list[Any] = []
    try:
        with believable("the output"):
            runs = list(stored_runs(program.file, folder))
            metrics = explained(program, runs[0], parameters)
            found = list(program.with_parameters(parameters).parse(folder))
    except LabctlError as error:
        said = "\n".join(filter(None, (error.message, error.hint)))
        return Read(metrics=metrics, runs=max(1, len(runs)), error=said)
    values = {one.key: f"{one.value:g} {one.unit}" for one in found if isinstance(one, Sample)}
    return Read(metrics=metrics, values=values, runs=max(1, len(runs)))


def read_recorded(program: Workload, output: Output, parameters: Parameters) -> Read:
    """Return the metrics of a recorded output of one run."""
    try:
        check_outputs(program.file, [output])
    except LabctlError as error:
        return Read(metrics=explained(program, output, parameters), error=error.message)
    return Read(metrics=explained(program, output, parameters))


def explained(program: Workload, output: Output, parameters: Parameters) -> dict[str, Explained]:
    """Return how each metric is read from one run's output."""
    metrics = told_with(program.file.metrics, parameters)
    return explain_run(metrics, output, skip_s=program.file.trial.skip_s)


_RUN_MARK = f"{MARK}run\n".encode()
_END_OF_INPUT = re.compile(rb"(?i)\bEOFError\b|unexpected end of (?:file|input)|no input\b")

# Run a workload once on a machine, and read its metrics.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Result of one try. `commands`: those that ran, by purpose; `failure`: why it does not
    count."""

    side: str
    commands: Mapping[str, str]
    status: int | None = None
    """Exit status; None for a program that did not end."""
    seconds: float = 0.0
    stdout: bytes = b""
    stderr: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    servers: Sequence[bytes] = ()
    failure: str | None = None
    notes: Sequence[str] = ()
    """Sentences on a program that probably does something else than it should."""
    read: Read = field(default_factory=Read)


def run_once(lab: Lab, bench: Bench, one: OneProgram) -> Tried:
    """Run the program once on that machine, without warm-up or collectors; return the result."""
    program = workload_of(one.workload)
    setting = setting_of(lab, bench, program, one.workload)
    new_data(lab, bench, program, setting)
    command = program.command(setting)
    servers = program.servers(setting)
    commands = commands_of(command, servers)
    try:
        with (
            serving(lab, program, setting.parameters),
            bench.channel.serving(servers, cpus=bench.cpus, sched=bench.sched) as ended,
            cgroup_of(lab, bench, command),
        ):
            result = bench.channel.run(
                command,
                seconds=setting.duration_s + SLACK_S,
                cpus=bench.cpus,
                sched=bench.sched,
            )
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
        notes=tuple(notes_on(program, result, read, setting.duration_s)),
        read=read,
    )


def notes_on(
    program: Workload, result: CommandResult, read: Read, duration_s: float
) -> Iterator[str]:
    """Yield sentences on a run that is probably not what its user means, each with the remedy."""
    yield from oddities(program, result, duration_s)
    text = result.stdout.replace(_RUN_MARK, b"") + result.stderr.replace(_RUN_MARK, b"")
    is_silent = result.returncode == 0 and not text.strip() and read.problem is not None
    if is_silent or _END_OF_INPUT.search(result.stderr):
        said = "it printed nothing; its" if is_silent else "its"
        yield (
            f"{said} standard input is empty: pass data in a file that comes along (--file "
            "PATH), as an argument or by sh -c '… <{{ files }}/NAME'"
        )


def commands_of(command: Command, beside: Sequence[Server | FileSystem]) -> dict[str, str]:
    """Return the commands by purpose, as a shell would take them; for labctl's own loop, what it
    repeats."""
    disks = [one for one in beside if isinstance(one, FileSystem)]
    servers = [one for one in beside if isinstance(one, Server)]
    prepare = [argv for disk in disks for argv in disk.prepare]
    found = {f"prepare {n}": shlex.join(argv) for n, argv in enumerate(prepare, start=1)}
    found |= {f"serve {n}": shlex.join(one.argv) for n, one in enumerate(servers, start=1)}
    found |= {f"setup {n}": shlex.join(argv) for n, argv in enumerate(command.setup, start=1)}
    repeats = repeated_argv(command.argv)
    name = "command" if repeats is None else "command, repeated"
    found[name + _isolation(command)] = shlex.join(repeats or command.argv)
    found |= {f"after {n}": shlex.join(argv) for n, argv in enumerate(command.after, start=1)}
    return found


def _isolation(command: Command) -> str:
    """Return the isolation of a command, "" if it has none."""
    policy, limits = str(command.sched.policy) if command.sched else "other", command.cgroup
    under = f", under SCHED_{policy.upper()}" if policy != "other" else ""
    return under + (f", in a cgroup ({', '.join(limits.controllers)})" if limits else "")


STUDY = "selftest"
"""Study with the roles and the image of a try."""


def try_workload(
    one: OneProgram, places: StatePaths, kind: Kind, accel: Requested, listener: Listener
) -> Tried:
    """Run the program once on that side, in the image of the self-test; return the result.

    Raises HostError for a side that cannot run it, and what a sweep raises before its first
    trial.
    """
    request = SweepRequest(
        study=STUDY,
        places=places,
        results=places.root,
        overrides=Overrides(tunings=(), program=one),
        seed=1,
        accel=accel,
    )
    with ExitStack() as stack:
        stack.enter_context(alone(places, listener, "labctl workload try"))
        planned = plan_sweep(request)
        skipped = planned.plan.skipped_workloads.get(one.name, {})
        if str(kind) in skipped:
            raise HostError(f"{one.name} does not run there ({kind}): {skipped[str(kind)]}")
        refuse_problems(places, planned)
        base = guest_base(planned, places, accel, listener)
        listener(Note(text=base.accelerator.reason))
        lab = stack.enter_context(open_lab(places, planned, base, listener=listener))
        roles = planned.plan.roles
        role = roles.native if kind is Kind.NATIVE else roles.baseline
        assert role is not None  # the self-test has both
        bench = stack.enter_context(fresh_bench(lab, lab.tunings[role]))
        return run_once(lab, bench, one)
