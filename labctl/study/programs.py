"""Say what a study must know of the programs that its workloads and neighbours name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from labctl.base.yamltext import YamlMapping

Parameter = int | float | str


class Program(Protocol):
    """Hold what a study must know of the program that a workload names. A UsageError of its checks
    names in quotes the parameter that is wrong."""

    @property
    def primary(self) -> str: ...

    @property
    def rate_metric(self) -> str | None: ...

    @property
    def deciding(self) -> tuple[str, ...]:
        """Return metrics that may be primary beside these two."""

    @property
    def least_s(self) -> float:
        """Return the shortest time that it can run for."""

    @property
    def uses_data_disk(self) -> bool: ...

    @property
    def definition(self) -> Mapping[str, object] | None:
        """Return what its file declares."""

    def check_parameters(self, given: Mapping[str, object], /) -> Mapping[str, Parameter]:
        """Return all parameters, defaults filled in; raises UsageError."""

    def why_no_neighbour(self, parameters: Mapping[str, Parameter], run_s: float, /) -> str | None:
        """Return why it can't run beside a trial; None where it can."""

    def check_duration(self, duration_s: float, /) -> None:
        """Raise UsageError when it can't run for exactly that long."""


class Named(Protocol):
    """Name a program with the definition that a run keeps of it."""

    @property
    def program(self) -> str: ...

    @property
    def definition(self) -> Mapping[str, object] | None: ...


class Programs(Protocol):
    """Hold the programs that a study may name, and make those that it defines itself."""

    def __getitem__(self, name: str, /) -> Program: ...

    def __iter__(self) -> Iterator[str]: ...

    def __contains__(self, name: object, /) -> bool: ...

    def define(self, name: str, mapping: YamlMapping, path: Path) -> Program:
        """Return the program of a study's own definition; raises UsageError with file and line."""

    def of(self, declared: Named) -> Program:
        """Return the program that a study's workload names."""
