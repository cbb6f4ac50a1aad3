"""Make a workload of its declaration (`workload_file.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from labctl.base.command import Command, CommandResult, FileSystem, Ready, Server, User
from labctl.base.errors import UsageError
from labctl.base.expressions import evaluate, fill_in
from labctl.base.places_inside import CWD, DISK, NOBODY, WORK, brought_folder
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.workloads import marked, repeated
from labctl.workloads.declared_metrics import readings_of, window_rates_of
from labctl.workloads.failures import last_words
from labctl.workloads.workload import Parameters, Peer, Setting, WorkloadBase, peer_of
from labctl.workloads.workload_file import ConditionalFile, DeclaredFile, ReadyFile, ServeFile

LOCALHOST = "127.0.0.1"
ONCE_LIMIT_S = 600.0
_STOPPED = 124
"""Status of timeout(1) where the time was up, whatever its command's was."""
WARM_UP_RUNS = 3
"""Runs of a warm-up window of a program that is repeated."""
_CAPABILITIES = {
    "realtime": ("sys_nice",),
    "memlock": ("ipc_lock",),
    "perf": ("perfmon",),
    "tracing": ("sys_admin", "dac_override"),
    "net-admin": ("net_admin", "net_raw"),
    "raw-disk": ("dac_override",),
}
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    # Else SQLite and others take /var/tmp where they may write there, on the guest's disk.
    "TMPDIR": WORK,
    "TZ": "UTC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredWorkload(WorkloadBase):
    """Run what a file declares. `declared`: the checked file; `definition`: the same as it was
    read, which travels with a run."""

    declared: DeclaredFile
    definition: Mapping[str, Any]
    chosen: Parameters = field(default_factory=dict)
    """Parameters of the trial that is parsed (`with_parameters`)."""

    @property
    def where(self) -> str:
        return f"workload '{self.name}'"

    def check_parameters(self, given: Mapping[str, object]) -> Parameters:
        found = WorkloadBase.check_parameters(self, given)
        for refusal in self.declared.refuse:
            if evaluate(refusal.when, found, f"{self.where}: refuse"):
                raise UsageError(f"{self.where}: {fill_in(refusal.message, found, self.where)}")
        return found

    def check_duration(self, duration_s: float) -> None:
        trial = self.declared.trial
        if trial.kind == "once":
            return
        steps = duration_s / trial.step_s
        if duration_s < trial.least_s or abs(steps - round(steps)) > 1e-6:
            nearest = max(trial.least_s, round(steps) * trial.step_s)
            raise UsageError(
                f"{self.where} cannot run for {duration_s:g} s: it takes steps of "
                f"{trial.step_s:g} s, from {trial.least_s:g} s on",
                hint=f"Give it {nearest:g} s.",
            )

    def writes_data_disk(self, parameters: Parameters) -> bool:
        disk = self.declared.data_disk
        if self._has_file_system:
            return True
        if disk is None or isinstance(disk.writes, bool):
            return disk is not None and bool(disk.writes)
        return bool(evaluate(disk.writes, parameters, f"{self.where}: data_disk.writes"))

    def left_out(self, parameters: Parameters) -> Mapping[str, str]:
        where = f"{self.where}: sides"
        return {
            one.side: one.reason
            for one in self.declared.sides
            if one.when is None or evaluate(one.when, parameters, where)
        }

    def peer(self, parameters: Parameters) -> Peer | None:
        for server in self.declared.serve:
            if server.on == "peer":
                values = dict(parameters) | {"server": "0.0.0.0", "peer": "0.0.0.0"}  # noqa: S104
                argv = self._filled(server.argv, values, "serve")
                port = server.ready.tcp or server.ready.udp
                assert port is not None  # the file was checked
                protocol = "udp" if server.ready.udp else "tcp"
                return Peer(command=Command(argv=argv), protocol=protocol, port=port)
        return None

    def servers(self, setting: Setting) -> tuple[Server | FileSystem, ...]:
        values = self._variables(setting, setting.duration_s)
        servers = [self._server(one, values) for one in self.declared.serve if one.on == "machine"]
        if not self._has_file_system:
            return tuple(servers)
        disk = FileSystem(
            device=setting.data_paths[0],
            at=DISK,
            environment=self._environment(values),
            user=self._user,
            prepare=tuple(self._filled(one, values, "prepare") for one in self.declared.prepare),
        )
        return (disk, *servers)

    def command(self, setting: Setting) -> Command:
        self.check_duration(setting.duration_s)
        trial = self.declared.trial
        argv = self._argv(self._variables(setting, setting.duration_s))
        if trial.kind == "repeat" and trial.begins is not None:
            argv = repeated.for_seconds(argv, setting.duration_s)
        elif trial.kind == "repeat":
            argv = marked.for_seconds(argv, setting.duration_s, self._files())
        return self._command(setting, argv)

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        trial, warm = self.declared.trial, self.declared.trial.warm_up
        values = self._variables(setting, setting.duration_s)
        if warm.parameters:
            given = {
                name: fill_in(value, values, f"{self.where}: warm_up")
                if isinstance(value, str)
                else value
                for name, value in warm.parameters.items()
            }
            parameters = {**setting.parameters, **self._as_declared(given)}
            setting = replace(setting, parameters=parameters)
        if trial.kind == "repeat":
            argv = self._argv(self._variables(setting, window_s))
            runs = warm.runs or WARM_UP_RUNS
            if trial.begins is not None:
                return self._command(setting, repeated.times(argv, runs))
            return self._command(setting, marked.times(argv, runs, self._files()))
        steps = max(1, round(window_s / trial.step_s))
        duration_s = max(trial.least_s, steps * trial.step_s)
        operations = 0
        if trial.counts:
            operations = self._window_operations(setting, window_s, rate, values)
            duration_s = 0
        return self._command(
            setting, self._argv(self._variables(setting, duration_s, operations=operations))
        )

    def _window_operations(
        self, setting: Setting, window_s: float, rate: float | None, values: Mapping[str, Any]
    ) -> int:
        if rate is not None:
            return max(setting.vcpus, round(rate * window_s))
        first = self.declared.trial.first_operations
        if isinstance(first, str):
            first = int(evaluate(first, values, f"{self.where}: trial.first_operations"))
        return max(setting.vcpus, first or 0)

    def exact_command(self, setting: Setting, operations: int) -> Command | None:
        if not self.calibratable:
            return None
        values = self._variables(setting, 0, operations=operations) | {"threads": 1}
        return self._command(setting, self._argv(values))

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        return window_rates_of(self.declared, self.rate_metric, stdout, files)

    def why_failed(self, result: CommandResult) -> str | None:
        is_stopped = self.declared.trial.kind == "until-stopped"
        if result.returncode in ([_STOPPED] if is_stopped else self.declared.exit_status):
            return None
        text = (result.stdout + b"\n" + result.stderr).decode(errors="replace")
        meant = [
            meaning
            for pattern, meaning in self.declared.explain.items()
            if re.search(pattern, text, re.M)
        ]
        said = [words for text in (result.stderr, result.stdout) if (words := _end_of(text))]
        why = "; ".join(said) or "it printed nothing"
        early = " before it was stopped" if is_stopped else ""
        ended = f"{self.name} ended{early} with status {result.returncode}"
        return "; ".join([f"{ended}: {why}", *meant])

    def with_parameters(self, given: Mapping[str, object]) -> DeclaredWorkload:
        return replace(self, chosen=self.check_parameters(given))

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        return readings_of(self.declared, raw, self.chosen, self.rate_metric)

    def _command(self, setting: Setting, argv: tuple[str, ...]) -> Command:
        values = self._variables(setting, setting.duration_s)
        trial = self.declared.trial
        limit_s = trial.limit_s or (ONCE_LIMIT_S if trial.kind == "once" else None)
        if trial.kind == "until-stopped":
            ends = f"{setting.duration_s:g}"
            argv = ("/usr/bin/timeout", "--signal=INT", ends, *argv)
        return Command(
            argv=argv,
            environment=self._environment(values),
            user=self._user,
            capabilities=self._capabilities,
            scratch_mib=self.declared.scratch_mib,
            open_files=self.declared.open_files,
            setup=tuple(self._filled(one, values, "setup") for one in self.declared.setup),
            after=tuple(self._filled(one, values, "after") for one in self.declared.after),
            files=() if trial.kind == "repeat" else self._files(),
            timeout_s=limit_s,
            label=self.name,
        )

    def _server(self, one: ServeFile, values: Mapping[str, Any]) -> Server:
        return Server(
            argv=self._filled(one.argv, values, "serve"),
            environment=self._environment(values),
            user=self._user,
            capabilities=self._capabilities,
            scratch_mib=self.declared.scratch_mib,
            open_files=self.declared.open_files,
            ready=self._ready(one.ready, values),
            stop=one.stop,
            grace_s=one.grace_s,
        )

    def _ready(self, ready: ReadyFile, values: Mapping[str, Any]) -> Ready:
        kind, value = next(
            (kind, found)
            for kind in ("tcp", "udp", "unix", "log", "command")
            if (found := getattr(ready, kind)) is not None
        )
        if kind == "command":
            value = self._filled(value, values, "serve.ready")
        elif kind in ("unix", "log"):
            value = fill_in(value, values, f"{self.where}: serve.ready")
        return Ready(kind=kind, value=value, timeout_s=ready.timeout_s)

    @property
    def _has_file_system(self) -> bool:
        disk = self.declared.data_disk
        return disk is not None and disk.use == "filesystem"

    @property
    def _user(self) -> User:
        named: Mapping[str, User] = {"root": None, "nobody": NOBODY}
        return named.get(self.declared.user, self.declared.user)

    @property
    def _capabilities(self) -> tuple[str, ...]:
        wanted = (name for one in self.declared.privileges for name in _CAPABILITIES.get(one, ()))
        return tuple(dict.fromkeys(wanted))

    def _environment(self, values: Mapping[str, Any]) -> dict[str, str]:
        own = {
            name: fill_in(text, values, f"{self.where}: env.{name}")
            for name, text in self.declared.env.items()
        }
        return {**_ENVIRONMENT, "HOME": WORK, **own}

    def _argv(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        argv: list[str] = []
        for number, item in enumerate(self.declared.command, start=1):
            where = f"{self.where}: command, item {number}"
            if not isinstance(item, ConditionalFile):
                argv.append(fill_in(item, values, where))
            elif evaluate(item.when, values, where):
                argv += self._filled(item.argv, values, f"command, item {number}")
        return tuple(argv)

    def _filled(self, argv: list[str], values: Mapping[str, Any], key: str) -> tuple[str, ...]:
        return tuple(fill_in(item, values, f"{self.where}: {key}") for item in argv)

    def _variables(
        self, setting: Setting, duration_s: float, *, operations: int = 0
    ) -> dict[str, Any]:
        """Return what expressions may use; docs/workloads.md lists it."""
        peer = setting.peer
        if peer is None and any(one.on == "peer" for one in self.declared.serve):
            peer = peer_of(setting, self.name)
        data_paths = [DISK] if self._has_file_system else list(setting.data_paths)
        return {
            **setting.parameters,
            "vcpus": setting.vcpus,
            "threads": setting.vcpus,
            "cpus": setting.cpu_list,
            "first_cpu": int(setting.cpu_list.replace("-", ",").split(",")[0]),
            "duration": _as_whole(duration_s),
            "operations": operations,
            "work": WORK,
            "cwd": CWD,
            "files": brought_folder(self.name),
            "data_path": data_paths[0] if data_paths else "",
            "data_paths": data_paths,
            "server": peer or LOCALHOST,
            "peer": peer or "",
            "skip_s": _as_whole(self.declared.trial.skip_s),
        }

    def _files(self) -> tuple[str, ...]:
        declared = self.declared
        read = (name for metric in declared.metrics.values() for name in metric.files)
        beside = (
            one.file
            for one in (declared.operations, declared.windows)
            if one is not None and one.file is not None
        )
        return tuple(dict.fromkeys([*read, *beside, *declared.keep]))

    def _as_declared(self, given: Mapping[str, Any]) -> Parameters:
        """Return values of parameters that a text may have been filled in for."""
        found = {}
        for parameter in self.parameters:
            if parameter.name in given:
                found[parameter.name] = parameter.check(self.name, _number(given[parameter.name]))
        return found


def _end_of(output: bytes) -> str:
    """Return the last lines of an output, without the marks of labctl's own loop."""
    return last_words(re.sub(rb"\x1erun\n", b"", output), lines=3)


def _as_whole(seconds: float) -> float | int:
    """Return whole seconds as such: many programs take no '10.0'."""
    return int(seconds) if seconds == int(seconds) else seconds


def _number(value: Any) -> Any:
    """Return a filled-in text as the number that it is."""
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    return value
