"""What collectors attach to and are parsed from, without a machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from labctl.base.channel import Channel
from labctl.base.tuning import Kind
from labctl.collect.collector import RawTrial, Target
from labctl.store.trial import TrialFolder
from labctl.trace.timeline.recordings import Traces

CPUS = frozenset(os.sched_getaffinity(0))


class _Silent:
    """A channel that nobody may ask."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")


def target(folder: TrialFolder | Path, **given: Any) -> Target:
    """An emulated guest of one vCPU that has nothing to tell, but for what is given."""
    nothing: Callable[[], Any] = list
    defaults: dict[str, Any] = {
        "kind": Kind.GUEST,
        "accelerator": "tcg",
        "channel": cast(Channel, _Silent()),
        "trial_cpus": CPUS,
        "vcpu_tids": (os.getpid(),),
        "threads": nothing,
        "known_threads": nothing,
        "counters": dict,
        "housekeeping": lambda: CPUS,
        "room_mib": 2048,
        "is_traced": True,
        "seconds": 20.0,
    }
    made = folder if isinstance(folder, TrialFolder) else TrialFolder(folder)
    return Target(folder=made, **{**defaults, **given})


def raw_trial(folder: TrialFolder | Path, **given: Any) -> RawTrial:
    """A trial of sysbench in an emulated guest that has no readings yet, but for what is given."""
    made = folder if isinstance(folder, TrialFolder) else TrialFolder(folder)
    defaults: dict[str, Any] = {
        "kind": "guest",
        "accelerator": "tcg",
        "program": "sysbench-cpu",
        "calibratable": True,
        "rate_metric": "events_per_s",
        "own": (),
    }
    return RawTrial(folder=made, traces=Traces(made), **{**defaults, **given})
