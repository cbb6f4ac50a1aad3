"""Run folders made up for measuring how long a report takes: of any size, of numbers drawn."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from labctl.base.units import Better, Unit
from labctl.store.jsonfile import canonical

NATIVES = ("native", "native+pinned", "native+fifo")
GUESTS = ("baseline", "control", "handicap", "pinned", "pinned+fifo", "huge-pages", "io-uring")
ARMS = (*NATIVES, *GUESTS)
TWINS = {"pinned": "native+pinned", "pinned+fifo": "native+fifo"}
WORKLOADS = ("sysbench-cpu", "sysbench-memory", "fio-randread", "cyclictest", "iperf3")
TRIALS_PER_BLOCK = len(ARMS) * len(WORKLOADS)
SAMPLES_PER_TRIAL = 100
PRIMARY = "events_per_s"

_EFFECTS = {"handicap": 0.95, "pinned": 0.8, "pinned+fifo": 1.4, "huge-pages": 1.03}
_REASONS = ("EXTERNAL_INTERRUPT", "HLT", "MSR_WRITE", "EPT_VIOLATION", "IO_INSTRUCTION", "PAUSE")


def write_run(folder: Path, trials: int, *, seed: int = 1) -> None:
    """Write a finished run of `trials` trials, each with SAMPLES_PER_TRIAL samples.

    Raises ValueError when they are no whole number of blocks.
    """
    blocks, left = divmod(trials, TRIALS_PER_BLOCK)
    if left or not blocks:
        raise ValueError(f"{trials} trials are no whole number of blocks of {TRIALS_PER_BLOCK}")
    rng = random.Random(seed)
    planned = list(_planned(blocks, rng))
    form = _form()
    _write(folder / "plan.json", _plan(planned, blocks, seed))
    _write(folder / "run.json", _record(seed))
    for entry in planned:
        trial = folder / "trials" / f"{entry['number']:04d}"
        _write(trial / "trial.json", _trial(entry))
        speed = _EFFECTS.get(entry["cell"]["tuning"], 1.0) * rng.lognormvariate(0.0, 0.05)
        values = [typical * rng.lognormvariate(0.0, 0.05) for typical in typicals(speed)]
        (trial / "samples.json").write_text(form % tuple(values), encoding="utf-8")


def _write(path: Path, value: Any) -> None:
    """Write it as labctl does, but without waiting for the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _planned(blocks: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    number = 0
    for block in range(1, blocks + 1):
        for position, tuning in enumerate(rng.sample(ARMS, len(ARMS)), start=1):
            for workload in WORKLOADS:
                number += 1
                yield {
                    "number": number,
                    "block": block,
                    "boot": (block + 1) // 2,
                    "position": position,
                    "cell": {"tuning": tuning, "workload": workload, "condition": "neighbour"},
                }


def _plan(planned: list[dict[str, Any]], blocks: int, seed: int) -> dict[str, Any]:
    content = {
        "study": "made-up",
        "title": "A run of drawn numbers",
        "study_digest": "0" * 64,
        "seed": seed,
        "quick": False,
        "factors": ["tuning", "workload", "condition"],
        "blocks": blocks,
        "baseline": "baseline",
        "control": "control",
        "handicap": "handicap",
        "tunings": {
            name: {
                "kind": "native" if name in NATIVES else "guest",
                "twin": None if name in NATIVES else TWINS.get(name, "native"),
                "description": name,
            }
            for name in ARMS
        },
        "workloads": {
            name: {"program": name, "primary": PRIMARY, "margin": 0.05} for name in WORKLOADS
        },
        "conditions": ["neighbour"],
        "trials": planned,
    }
    return {"schema": 1, "digest": sha256(canonical(content).encode()).hexdigest(), **content}


def _record(seed: int) -> dict[str, Any]:
    return {
        "schema": 1,
        "labctl": "0.1.0",
        "status": "done",
        "study": "made-up",
        "command": "labctl sweep made-up",
        "seed": seed,
        "accelerator": "kvm",
        "accelerator_reason": "numbers are drawn",
        "started_at": "2024-01-01T00:00:00+00:00",
        "ended_at": "2024-01-02T00:00:00+00:00",
        "host": {"kernel_release": "6.12.0"},
        "guest": {"kernel_release": "6.12.0"},
        "same_kernel": True,
    }


def _trial(entry: Mapping[str, Any]) -> dict[str, Any]:
    native = entry["cell"]["tuning"] in NATIVES
    return {
        "schema": 1,
        **entry,
        "attempt": 1,
        "status": "done",
        "reasons": [],
        "measured_s": 10.000123,
        "warmup_s": 3.000123,
        "wall_s": 13.200123,
        "started_at": "2024-01-01T00:00:00.000+00:00",
        "restored": not native,
        "parsed_with": {
            "program": entry["cell"]["workload"],
            "parameters": {"threads": 1, "duration": 10},
            "duration_s": 10.0,
            "kind": "native" if native else "guest",
            "accelerator": "kvm",
            "vcpus": 1,
        },
    }


_Kind = tuple[str, float, Unit, Better, str, dict[str, str]]
"""Metric, typical value, unit, direction, source and labels."""


def _kinds() -> Iterator[_Kind]:
    higher, lower, neither = Better.HIGHER, Better.LOWER, Better.NEITHER
    yield PRIMARY, 400.0, Unit.PER_SECOND, higher, "stdout.txt", {}
    for op in ("read", "write", "fsync", "trim"):
        for name in ("p50", "p95", "p99", "p999"):
            metric, width = f"latency_{name}", {"op": op, "of": f"latency_{name}"}
            yield metric, 1e-3, Unit.SECONDS, lower, "fio.json", {"op": op}
            yield "bin_width", 0.02, Unit.FRACTION, neither, "fio.json", width
        yield "latency_max", 0.1, Unit.SECONDS, lower, "fio.json", {"op": op}
    for reason in _REASONS:
        yield "exits", 1e4, Unit.PER_SECOND, lower, "kvm.json", {"reason": reason}
        yield "exit_time", 0.01, Unit.CPUS, lower, "kvm.json", {"reason": reason}
    for thread in ("vcpu", "emulator", "iothread", "vhost", "neighbour", "labctl", "other"):
        yield "host_cpu", 0.5, Unit.CPUS, lower, "host.json", {"thread": thread}


def _all_kinds() -> list[_Kind]:
    """SAMPLES_PER_TRIAL of them, the rest counters of perf."""
    kinds = list(_kinds())
    rest = range(SAMPLES_PER_TRIAL - len(kinds))
    return kinds + [
        ("cycles", 1e9, Unit.COUNT, Better.NEITHER, "perf-stat.json", {"event": f"{number:02d}"})
        for number in rest
    ]


_KINDS = _all_kinds()


def typicals(speed: float) -> list[float]:
    """Return the typical values of one trial: what is good grows with the speed, times shrink."""
    return [
        typical * speed if better is Better.HIGHER else typical / speed
        for _, typical, _, better, _, _ in _KINDS
    ]


def _form() -> str:
    """Return the text of a samples.json with a place for each value: writing a million of them as
    labctl does takes minutes."""
    found = [
        {
            "metric": metric,
            "value": "@",
            "unit": unit,
            "better": better,
            "labels": labels,
            "source": source,
        }
        for metric, _, unit, better, source, labels in _KINDS
    ]
    text = json.dumps({"schema": 1, "samples": found, "unavailable": []}, indent=1) + "\n"
    return text.replace("%", "%%").replace('"@"', "%r")
