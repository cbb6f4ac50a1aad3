"""A small study, and what it is checked against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.base.errors import UsageError

STUDY = """\
title: Does it work?
description: A small study.
roles:
  native: native
  baseline: baseline
  control: control
  handicap: handicap
tunings: [native, baseline, control, handicap, pinned]
workloads:
  cpu:
    program: sysbench-cpu
    parameters: {max_prime: 2000}
    duration_s: 10
    primary: events_per_s
    margin_percent: 5
  read:
    program: fio-random
    parameters: {mode: randread}
    duration_s: 10.5
    primary: iops
    margin_percent: 2.5
conditions: [quiet, neighbour]
blocks: 10
blocks_per_boot: 4
guest:
  image: debian-12
  vcpus: auto
  memory_mib: 1024
limits:
  attempts: 3
  other_cpu: 0.1
  warmup_cap_s: 30
exercises:
  pinned: [cpu, read]
  handicap: [cpu]
quick:
  tunings: [baseline, control, handicap, native, pinned]
  workloads: [cpu]
  conditions: [neighbour]
  duration_s: 2
  blocks_per_boot: 5
"""


@dataclass(frozen=True)
class Program:
    """A program whose one parameter has a default and some values that it may take."""

    parameter: str
    values: tuple[int | str, ...]
    primary: str
    rate_metric: str | None
    uses_data_disk: bool = False
    deciding: tuple[str, ...] = ("latency_p50", "latency_p95", "latency_p99")
    definition: Mapping[str, Any] | None = None

    def check_parameters(self, given: Mapping[str, object]) -> dict[str, int | str]:
        for name, value in given.items():
            if name != self.parameter or value not in self.values:
                raise UsageError(f"'{name}' is {value!r}", hint="Look it up.")
        return {self.parameter: self.values[0]} | {
            k: v for k, v in given.items() if isinstance(v, (int, str))
        }

    def why_no_neighbour(self, parameters: Mapping[str, Any], run_s: float) -> str | None:
        return "it uses the data disk" if self.uses_data_disk else None

    def check_duration(self, duration_s: float) -> None:
        if duration_s % 0.5:
            raise UsageError("only half seconds are taken")


class SomePrograms(dict[str, Program]):
    """Hold programs by name, as labctl.workloads.registry does."""

    def of(self, declared: Any) -> Program:
        return self[declared.program]

    def define(self, name: str, mapping: Any, path: Path) -> Program:
        raise NotImplementedError


PROGRAMS = SomePrograms(
    {
        "sysbench-cpu": Program("max_prime", (2000, 2001, 3000), "events_per_s", "events_per_s"),
        "fio-random": Program("mode", ("randread", "randwrite"), "iops", "iops"),
        "cpu-hog": Program("method", ("int64", "pi"), "ops_per_s", "ops_per_s"),
    }
)

NAMES = ("native", "native+pinned", "baseline", "control", "handicap", "pinned", "mine")
