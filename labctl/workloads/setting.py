"""Define the inputs of a workload: parameters, a machine's CPUs, disks and peer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import UsageError, nearest

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
        # True is an int to Python, but not to a user.
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
            f"workload '{program}': '{self.name}': expected a {kind} from {self.minimum} to "
            f"{self.maximum}, got {value!r}",
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
                f"workload '{program}': '{self.name}': expected a number from "
                f"{self.minimum:g} to {self.maximum:g}, got {value!r}",
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
                f"workload '{program}': '{self.name}': expected true or false, got {value!r}",
                hint=f"{self.name}: {self.description}.",
            )
        return value


Parameter = IntegerParameter | NumberParameter | ChoiceParameter | BooleanParameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Describe one use of a workload. `parameters` are complete (from `check_parameters`).

    `data_paths`: the data disks as the machine sees them, block devices in the guest and regular
    files natively; none for a workload that needs none. `peer`: the address at which the machine
    finds its peer; None if it has none. `cpus`: those that the machine runs it on, by the machine's
    own numbers; None for the first `vcpus` of them.
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
        threads."""
        cpus = range(self.vcpus) if self.cpus is None else sorted(self.cpus)[: self.vcpus]
        return format_cpus(cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Describe a workload's server on the peer: it runs on the host, from the image's tree, with a
    network of its own. It is ready when it has `port` of `protocol` (udp or tcp)."""

    command: Command
    protocol: str
    port: int


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


def peer_of(setting: Setting, program: str) -> str:
    """Return the peer's address; raises UsageError if the machine has no link to one."""
    if setting.peer is None:
        raise UsageError(f"workload '{program}' needs a peer")
    return setting.peer
