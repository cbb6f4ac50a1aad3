"""Define what a workload is: a command for either side, and a parser of what it leaves behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from labctl.base.command import Command, CommandResult, FileSystem, Server
from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import UsageError
from labctl.base.yamlfile import nearest
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.workloads.failures import last_words

Value = int | float | str
Parameters = Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerParameter:
    name: str
    default: int
    minimum: int
    maximum: int
    description: str
    power_of_two: bool = False

    def check(self, program: str, value: object) -> int:
        # True is an int to Python, and nobody means it by one.
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._error(program, value)
        if not self.minimum <= value <= self.maximum:
            raise self._error(program, value)
        if self.power_of_two and value & (value - 1):
            raise self._error(program, value)
        return value

    def _error(self, program: str, value: object) -> UsageError:
        kind = "power of two" if self.power_of_two else "whole number"
        return UsageError(
            f"workload '{program}': '{self.name}' is {value!r}, "
            f"not a {kind} from {self.minimum} to {self.maximum}",
            hint=f"{self.name}: {self.description}; {self.default} when left out.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceParameter:
    name: str
    default: str
    choices: tuple[str, ...]
    description: str

    def check(self, program: str, value: object) -> str:
        if not isinstance(value, str) or value not in self.choices:
            raise UsageError(
                f"workload '{program}': '{self.name}' is {value!r}",
                hint=nearest(str(value), self.choices),
            )
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberParameter:
    name: str
    default: float
    minimum: float
    maximum: float
    description: str

    def check(self, program: str, value: object) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not self.minimum <= float(str(value)) <= self.maximum:
            raise UsageError(
                f"workload '{program}': '{self.name}' is {value!r}, "
                f"not a number from {self.minimum:g} to {self.maximum:g}",
                hint=f"{self.name}: {self.description}; {self.default:g} when left out.",
            )
        return float(str(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class BooleanParameter:
    name: str
    default: bool
    description: str

    def check(self, program: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise UsageError(
                f"workload '{program}': '{self.name}' is {value!r}, neither true nor false",
                hint=f"{self.name}: {self.description}.",
            )
        return value


Parameter = IntegerParameter | NumberParameter | ChoiceParameter | BooleanParameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Describe one use of a workload. `parameters` are whole (from `check_parameters`).

    `data_paths`: the data disks as the machine sees them, block devices in the guest and regular
    files natively; none for a workload that needs none. `peer`: the address at which the machine
    finds its peer; None where it has none. `cpus`: those that the machine runs it on, by the
    machine's own numbers; None for the first `vcpus` of them.
    """

    parameters: Parameters
    vcpus: int
    duration_s: float
    data_paths: tuple[str, ...] = ()
    peer: str | None = None
    cpus: CpuSet | None = None

    @property
    def cpu_list(self) -> str:
        """Return as many of its CPUs as a guest has vCPUs, for programs that pin their own
        threads.
        """
        cpus = range(self.vcpus) if self.cpus is None else sorted(self.cpus)[: self.vcpus]
        return format_cpus(cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Describe the server that a workload talks to: it runs on the host, out of the image's tree,
    with a network of its own. It is ready when it has `port` of `protocol` (udp or tcp)."""

    command: Command
    protocol: str
    port: int


class Workload(Protocol):
    """Define a program with parameters. Commands are the same on both sides, except for the paths
    of the data disk, the peer and the CPUs."""

    @property
    def name(self) -> str: ...

    @property
    def operation(self) -> str:
        """Return what one of its operations is, for docs/workloads.md."""

    @property
    def durations(self) -> str:
        """Return how long it can run, in words, as `check_duration` has it."""

    @property
    def parameters(self) -> tuple[Parameter, ...]: ...

    @property
    def binaries(self) -> tuple[str, ...]:
        """Return what it executes, as paths in the image's tree: their hashes are compared."""

    @property
    def primary(self) -> str:
        """Return the metric that a study should decide on when it has no reason for another."""

    @property
    def rate_metric(self) -> str | None:
        """Return the metric that holds operations per second; None where more isn't better."""

    @property
    def deciding(self) -> tuple[str, ...]:
        """Return metrics that may be primary beside these two."""

    @property
    def definition(self) -> Mapping[str, Any] | None:
        """Return what its file declares; None for one that is written in Python."""

    @property
    def calibratable(self) -> bool:
        """Return whether user instructions per operation are a constant: no lock, no spin, no
        I/O."""

    @property
    def uses_data_disk(self) -> bool: ...

    @property
    def places_itself(self) -> bool:
        """Return whether its main thread chooses its own CPUs among those that it is given."""

    @property
    def schedules_itself(self) -> bool:
        """Return whether it sets its own scheduling policy."""

    def left_out(self, parameters: Parameters) -> Mapping[str, str]:
        """Return the sides (native, guest) that can't run it, with the reason."""

    @property
    def tracers(self) -> tuple[str, ...]:
        """Return what it needs of the tracers of the kernel that it runs under, by ftrace's
        names."""

    def check_parameters(self, given: Mapping[str, object]) -> Parameters:
        """Return all parameters, defaults filled in; raises UsageError."""

    def check_duration(self, duration_s: float) -> None:
        """Raise UsageError when the program can't run for exactly that long."""

    def writes_data_disk(self, parameters: Parameters) -> bool:
        """Return whether the data disk must be reset before the next trial."""

    def peer(self, parameters: Parameters) -> Peer | None:
        """Return whom it talks to over the network; None for a workload that sends nothing."""

    def servers(self, setting: Setting) -> tuple[Server | FileSystem, ...]:
        """Return what is there on the machine itself, from before the warm-up to after the window:
        servers, and a file system on the data disk before them."""

    def command(self, setting: Setting) -> Command: ...

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        """Return the same load in one or more windows of about `window_s` each. `rate`: the
        operations per second of the window before (what `window_rates` said of it), None for the
        first."""

    def exact_command(self, setting: Setting, operations: int) -> Command | None:
        """Return the same work done exactly `operations` times by one thread, for counting its
        instructions; None where the workload isn't calibratable."""

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        """Return operations per second of each window of a warm-up command, in order; [] where
        `rate_metric` is None.

        Raises BrokenError when the output isn't the program's.
        """

    def why_failed(self, result: CommandResult) -> str | None:
        """Return why a run counts for nothing, by its status; None for one that succeeded."""

    def with_parameters(self, given: Mapping[str, object]) -> Workload:
        """Return the workload as a trial had it, for `parse`. Raises UsageError."""

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        """Yield every metric of a trial, `operations` among them where `rate_metric` isn't None.

        Raises BrokenError naming the raw file.
        """

    def periods(self, raw: TrialFolder, parameters: Parameters) -> Iterator[Reading]:
        """Return what a program of a fixed pace would have reported of all its periods, those that
        it missed and skipped included (open_loop.py); of other programs nothing.

        Raises BrokenError naming the raw file.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadBase:
    """Provide what most workloads have in common, and the others override: they use no data disk
    and no peer, take whole seconds, and their instructions per operation are no constant."""

    name: str
    operation: str
    durations: str = "whole seconds"
    parameters: tuple[Parameter, ...] = ()
    binaries: tuple[str, ...]
    primary: str
    rate_metric: str | None = None
    deciding: tuple[str, ...] = ("latency_p50", "latency_p95", "latency_p99")
    definition: Mapping[str, Any] | None = None
    calibratable: bool = False
    uses_data_disk: bool = False
    places_itself: bool = False
    schedules_itself: bool = False
    tracers: tuple[str, ...] = ()

    def check_parameters(self, given: Mapping[str, object]) -> Parameters:
        return check_parameters(self.name, self.parameters, given)

    def check_duration(self, duration_s: float) -> None:
        check_whole_seconds(self.name, duration_s)

    def writes_data_disk(self, parameters: Parameters) -> bool:
        return False

    def peer(self, parameters: Parameters) -> Peer | None:
        return None

    def left_out(self, parameters: Parameters) -> Mapping[str, str]:
        return {}

    def servers(self, setting: Setting) -> tuple[Server | FileSystem, ...]:
        return ()

    def exact_command(self, setting: Setting, operations: int) -> Command | None:
        return None

    def why_failed(self, result: CommandResult) -> str | None:
        if result.returncode == 0:
            return None
        said = last_words(result.stderr)
        return f"{self.binaries[-1]} ended with status {result.returncode}: {said}"

    def with_parameters(self, given: Mapping[str, object]) -> Self:
        return self

    def periods(self, raw: TrialFolder, parameters: Parameters) -> Iterator[Reading]:
        return iter(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher(WorkloadBase):
    """Define a program that watches for whole seconds and has no rate: it warms up by the shortest
    run that it knows."""

    def watching(self, setting: Setting, seconds: int) -> Command:
        """Return what runs it for so long."""
        raise NotImplementedError

    def command(self, setting: Setting) -> Command:
        self.check_duration(setting.duration_s)
        return self.watching(setting, int(setting.duration_s))

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        return self.watching(setting, 1)

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        return []


def check_parameters(
    program: str, declared: tuple[Parameter, ...], given: Mapping[str, object]
) -> dict[str, Value]:
    """Return every declared parameter's value, defaults filled in; raises UsageError."""
    names = [parameter.name for parameter in declared]
    for name in given:
        if name not in names:
            raise UsageError(
                f"workload '{program}' has no parameter '{name}'", hint=nearest(name, names)
            )
    return {p.name: p.check(program, given.get(p.name, p.default)) for p in declared}


def check_whole_seconds(program: str, duration_s: float) -> None:
    """Check that the duration is whole seconds, for programs that take no other; raise
    UsageError.
    """
    if duration_s < 1 or duration_s != int(duration_s):
        raise UsageError(
            f"workload '{program}' cannot run for {duration_s:g} s: it takes whole seconds only",
            hint=f"Give it {max(1, round(duration_s))} s.",
        )


def peer_of(setting: Setting, program: str) -> str:
    """Return the peer's address; raises UsageError where the machine has no link to one."""
    if setting.peer is None:
        raise UsageError(f"workload '{program}' needs a peer and was given none")
    return setting.peer


def integer(parameters: Parameters, name: str) -> int:
    """Return a parameter that `check_parameters` has made sure is an integer."""
    value = parameters[name]
    if not isinstance(value, int):
        raise TypeError(f"parameter {name} is {value!r}")
    return value
