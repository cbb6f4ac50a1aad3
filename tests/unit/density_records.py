"""Records of density runs, made of a few numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labctl.base.units import Unit
from labctl.store.density_record import (
    Bound,
    CountRecord,
    DensityRecord,
    GuestRecord,
    LimitRecord,
    StepRecord,
)

Numbers = Sequence[int | str | None]
"""A tuning's number in each block: 3, "3+" where it was bounded, None where there is none."""


def record(numbers: Mapping[str, Numbers], **changes: Any) -> DensityRecord:
    """A run whose blocks found these numbers. Guest g of n has 5 ms and 2 ms for each other guest;
    the limit breaks in the step after the number."""
    blocks = max(map(len, numbers.values()))
    made = [
        count_record(name, block, number)
        for name, of_blocks in numbers.items()
        for block, number in enumerate(of_blocks, 1)
    ]
    steps = [step for one in made for step in steps_to(one)]
    content: dict[str, Any] = {
        "labctl": "0.1",
        "command": "labctl density frame-loop",
        "workload": "frame-loop",
        "parameters": {"hz": 60},
        "definition": {},
        "duration_s": 10.0,
        "limit": LimitRecord(metric="frame_p95", bound=Bound.BELOW, value=0.016, unit=Unit.SECONDS),
        "tunings": tuple(numbers),
        "blocks": blocks,
        "search": "up",
        "most": 20,
        "most_by": "the host's memory",
        "seed": 1,
        "vcpus": 1,
        "memory_mib": 1024,
        "started_at": "2026-11-24T10:00:00+00:00",
        "status": "done",
        "accelerator": "kvm",
        "host": {"cpu_model": "A CPU", "kernel_release": "6.1"},
        "steps": tuple(steps),
        "counts": tuple(made),
    }
    return DensityRecord.made({**content, **changes})


def count_record(tuning: str, block: int, number: int | str | None) -> CountRecord:
    if number is None:
        return CountRecord(block=block, tuning=tuning, why="the guest labctl-noisy-1 is gone")
    if isinstance(number, str):
        value = int(number.rstrip("+"))
        return CountRecord(block=block, tuning=tuning, number=value, bounded="--most")
    return CountRecord(block=block, tuning=tuning, number=number)


def steps_to(count: CountRecord) -> list[StepRecord]:
    if count.number is None:
        return []
    most = count.number if count.bounded else count.number + 1
    return [step(count.tuning, count.block, n, held=n <= count.number) for n in range(1, most + 1)]


def step(tuning: str, block: int, count: int, *, held: bool | None) -> StepRecord:
    guests = tuple(
        GuestRecord(
            number=number,
            cpus=f"CPU {number % 2}",
            folder=f"b{block:02d}-{tuning}-n{count:02d}-g{number:02d}",
            value=0.005 + 0.002 * (count - 1) + 0.0001 * number,
        )
        for number in range(1, count + 1)
    )
    return StepRecord(
        block=block,
        tuning=tuning,
        count=count,
        guests=guests,
        held=held,
        common_s=9.9,
        other_cpus=0.0,
    )
