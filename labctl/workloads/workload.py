"""Define workloads: a command for either side, and a parser of its results, both declared in its
file (`workload_file.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from labctl.base.command import Command, CommandResult, FileSystem, Server
from labctl.base.errors import UsageError
from labctl.base.link import Bottleneck
from labctl.base.process import last_words
from labctl.base.templates import evaluate, fill_in
from labctl.base.tuning import Policy
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.workloads import loops
from labctl.workloads.commands import Commands
from labctl.workloads.declared_metrics import readings_of, window_rates_of
from labctl.workloads.setting import (
    Parameter,
    Parameters,
    Peer,
    Setting,
    check_parameters,
)
from labctl.workloads.workload_file import DeclaredFile

_STOPPED = 124
"""Status of timeout(1) when the time was up, whatever its command's was."""
WARM_UP_RUNS = 3
"""Runs of a warm-up window of a program that is repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Run a program as its file declares it. Commands are the same on both sides, except for the
    paths of the data disk, the peer and the CPUs.

    `file`: the checked file; `definition`: the same as it was read, which is stored with a run.
    `binaries`: the programs that it executes, as paths in the image's tree, whose hashes are
    compared. `rate_metric`: the metric of operations per second; None if more is not better.
    `deciding`: metrics that may be primary beside these two. `chosen`: parameters of the trial that
    is parsed (`with_parameters`); empty for the defaults.
    """

    name: str
    file: DeclaredFile
    definition: Mapping[str, object]
    parameters: tuple[Parameter, ...]
    binaries: tuple[str, ...]
    rate_metric: str | None
    deciding: tuple[str, ...]
    chosen: Parameters = field(default_factory=dict)

    @property
    def operation(self) -> str:
        """Return the description of one of its operations, for docs/workloads.md."""
        return self.file.operation

    @property
    def durations(self) -> str:
        """Return how long it can run, in words, as `check_duration` accepts it."""
        trial = self.file.trial
        if trial.kind == "once":
            return "its own: one run of fixed work"
        if trial.step_s == 1:
            least = f", {trial.least_s:g} or more" if trial.least_s > 1 else ""
            return f"whole seconds{least}"
        if not trial.step_s:
            return f"{trial.least_s:g} s or more"
        return f"steps of {trial.step_s:g} s, at least {trial.least_s:g} s"

    @property
    def primary(self) -> str:
        """Return the default primary metric of a study."""
        return self.file.primary

    @property
    def calibratable(self) -> bool:
        """Return whether user instructions per operation are a constant: no lock, no spin, no
        I/O."""
        return self.file.constant_instructions

    @property
    def uses_data_disk(self) -> bool:
        return self.file.data_disk is not None

    @property
    def places_itself(self) -> bool:
        """Return whether its main thread chooses its own CPUs among the given ones."""
        return self.file.places_itself

    @property
    def schedules_itself(self) -> bool:
        """Return whether it sets its own scheduling policy."""
        return self.file.schedules_itself

    @property
    def tracers(self) -> tuple[str, ...]:
        """Return the tracers that it needs of the kernel that it runs under, by ftrace's names."""
        return tuple(self.file.needs.tracers)

    def congestion_control(self, parameters: Parameters) -> str:
        """Return the congestion control that its peer or competitor uses on the host; "" for
        any."""
        asked = self.file.needs.congestion_control
        where = f"{self.where}: needs.congestion_control"
        return "" if asked is None else str(evaluate(asked, parameters, where))

    @property
    def _commands(self) -> Commands:
        return Commands(self.name, self.file)

    @property
    def where(self) -> str:
        return self._commands.where

    def check_parameters(self, given: Mapping[str, object]) -> Parameters:
        """Return all parameters, defaults filled in; raises UsageError."""
        found = check_parameters(self.name, self.parameters, given)
        for refusal in self.file.refuse:
            if evaluate(refusal.when, found, f"{self.where}: refuse"):
                said = fill_in(refusal.message, found, self.where)
                raise UsageError(f"{self.where}: {said}", hint=refusal.hint)
        return found

    @property
    def least_s(self) -> float:
        """Return the shortest time that it can run for."""
        return self.file.trial.least_s

    def check_duration(self, duration_s: float) -> None:
        """Raise UsageError if the program cannot run for exactly that long."""
        trial = self.file.trial
        if trial.kind == "once":
            return
        steps = duration_s / trial.step_s if trial.step_s else 0.0
        if duration_s < trial.least_s or abs(steps - round(steps)) > 1e-6:
            nearest = max(trial.least_s, round(steps) * trial.step_s)
            raise UsageError(
                f"{self.where} cannot run for {duration_s:g} s: expected {self.durations}",
                hint=f"Use {nearest:g} s.",
            )

    def why_no_neighbour(self, parameters: Parameters, run_s: float) -> str | None:
        """Return why it cannot run beside a trial, in runs of `run_s` if it runs for a duration;
        None if it can."""
        file = self.file
        if file.data_disk is not None:
            return "it uses the data disk, which is the measured machine's"
        if any(self._commands.served("peer", parameters)):
            return "it talks to a peer, and neighbours have no link to one"
        if {"realtime", "root"} & {*file.privileges} or file.user == "root":
            return "it asks for rights with which it could starve or change the host"
        sched = self._commands.sched(parameters)
        has_policy = sched is not None and sched.policy is not Policy.OTHER
        if has_policy or self._commands.has_cgroup(parameters):
            return "it has a policy or a cgroup of its own, and a neighbour has its condition's"
        if file.setup or file.after:
            return "its 'setup' and 'after' surround one run, and neighbours run again and again"
        if native := self.left_out(parameters).get("native"):
            return f"it doesn't run on the host: {native}"
        if file.trial.kind == "duration":
            try:
                self.check_duration(run_s)
            except UsageError as error:
                return f"its 'run_s' doesn't fit: {error.message}"
        return None

    def writes_data_disk(self, parameters: Parameters) -> bool:
        """Return whether the data disk must be reset before the next trial."""
        disk = self.file.data_disk
        if self._commands.has_file_system:
            return True
        if disk is None or isinstance(disk.writes, bool):
            return disk is not None and bool(disk.writes)
        return bool(evaluate(disk.writes, parameters, f"{self.where}: data_disk.writes"))

    def left_out(self, parameters: Parameters) -> Mapping[str, str]:
        """Return the sides (native, guest) that cannot run it, with the reason."""
        where = f"{self.where}: sides"
        return {
            one.side: one.reason
            for one in self.file.sides
            if one.when is None or evaluate(one.when, parameters, where)
        }

    def controllers(self, parameters: Parameters) -> tuple[str, ...]:
        """Return the cgroup controllers that its command needs."""
        somewhere = Setting(
            parameters=parameters,
            vcpus=self.file.needs.vcpus,
            duration_s=1,
            data_paths=("disk",),
            peer="peer",
        )
        limits = self._commands.cgroup(self._commands.variables(somewhere, 1))
        return limits.controllers if limits else ()

    def peer(self, parameters: Parameters) -> Peer | None:
        """Return the server that it talks to over the network; None for a workload that sends
        nothing. Raises UsageError if the file has several."""
        return self._commands.peer(parameters)

    def competitor(self, parameters: Parameters) -> Peer | None:
        """Return the server beside it whose packets pass the same bottleneck; None without one."""
        return self._commands.peer(parameters, "competitor")

    @property
    def narrows_link(self) -> bool:
        """Return whether its trials have a bottleneck on the way to the peer."""
        return self.file.link is not None

    def bottleneck(self, parameters: Parameters) -> Bottleneck | None:
        """Return the bottleneck on the way to the peer; None without one. Raises UsageError."""
        return self._commands.bottleneck(parameters)

    def servers(self, setting: Setting) -> tuple[Server | FileSystem, ...]:
        """Return what exists on the machine itself from before the warm-up to after the window:
        servers, and before them a file system on the data disk."""
        return self._commands.servers(setting)

    def command(self, setting: Setting) -> Command:
        """Return the command of a trial. Raises UsageError for an unsupported duration or
        machine."""
        self.check_duration(setting.duration_s)
        made = self._commands
        argv = made.argv(made.variables(setting, setting.duration_s))
        if self.file.trial.kind == "repeat":
            argv = loops.for_seconds(argv, setting.duration_s, made.marked())
        return made.command(setting, argv)

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        """Return the same load in one or more windows of about `window_s` each. `rate`: the
        operations per second of the window before (from `window_rates`), None for the first."""
        made, trial, warm = self._commands, self.file.trial, self.file.trial.warm_up
        values = made.variables(setting, setting.duration_s, window_s=window_s)
        if warm.parameters:
            given = {
                name: _number(fill_in(value, values, f"{self.where}: warm_up"))
                if isinstance(value, str)
                else value
                for name, value in warm.parameters.items()
            }
            setting = replace(setting, parameters={**setting.parameters, **given})
        if trial.kind == "repeat":
            argv = made.argv(made.variables(setting, window_s, window_s=window_s))
            runs = warm.runs or WARM_UP_RUNS
            return made.command(setting, loops.times(argv, runs, made.marked()))
        steps = max(1, round(window_s / trial.step_s)) if trial.step_s else 0
        duration_s = max(trial.least_s, steps * trial.step_s if steps else window_s)
        operations = 0
        if trial.counts:
            operations = self._window_operations(setting, window_s, rate, values)
            duration_s = 0
        values = made.variables(setting, duration_s, operations=operations, window_s=window_s)
        return made.command(setting, made.argv(values))

    def _window_operations(
        self, setting: Setting, window_s: float, rate: float | None, values: Mapping[str, object]
    ) -> int:
        trial, vcpus = self.file.trial, setting.vcpus
        if rate is not None:
            wanted = rate * window_s
        elif isinstance(first := trial.first_operations, str):
            wanted = float(evaluate(first, values, f"{self.where}: trial.first_operations"))
        else:
            wanted = float(first or 0)
        if trial.counts == "each":
            return vcpus * max(1, round(wanted / vcpus))
        return max(vcpus, round(wanted))

    def exact_command(self, setting: Setting, operations: int) -> Command | None:
        """Return the same work done exactly `operations` times by one thread, for counting its
        instructions; None if the workload is not calibratable."""
        if not self.calibratable:
            return None
        values = self._commands.variables(setting, 0, operations=operations) | {"threads": 1}
        return self._commands.command(setting, self._commands.argv(values))

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        """Return operations per second of each window of a warm-up command, in order; [] if
        `rate_metric` is None. Raises BrokenError if the output is not the program's."""
        return window_rates_of(self.file, self.rate_metric, stdout, files)

    def why_failed(self, result: CommandResult) -> str | None:
        """Return why a run does not count, by its status; None for one that succeeded."""
        is_stopped = self.file.trial.kind == "until-stopped"
        if result.returncode in ([_STOPPED] if is_stopped else self.file.exit_status):
            return None
        text = (result.stdout + b"\n" + result.stderr).decode(errors="replace")
        meant = [
            meaning
            for pattern, meaning in self.file.explain.items()
            if re.search(pattern, text, re.M)
        ]
        said = [
            words for text in (result.stderr, result.stdout) if (words := last_words(text, lines=3))
        ]
        why = "; ".join(said) or "it printed nothing"
        early = " before it was stopped" if is_stopped else ""
        ended = f"{self.name} ended{early} with status {result.returncode}"
        return "; ".join([f"{ended}: {why}", *meant])

    def with_parameters(self, given: Mapping[str, object]) -> Workload:
        """Return the workload with a trial's parameters, for `parse`. Raises UsageError."""
        return replace(self, chosen=self.check_parameters(given))

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        """Yield every metric of a trial, including `operations` if `rate_metric` is not None.
        Raises BrokenError naming the raw file."""
        parameters = self.chosen or self.check_parameters({})
        return readings_of(self.file, raw, parameters, self.rate_metric)


def _number(text: str) -> int | float | str:
    """Return a filled-in text as the number that it is."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
