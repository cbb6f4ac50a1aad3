"""Records of the workload game-stream, made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from labctl.store.run_folder import LoadedRun
from labctl.store.samples import sample
from labctl.store.trial import TrialFolder

SECONDS = 6
BIN_BYTES = 62_500
"""1 Mb/s in half a second."""


def record(
    stream_mbit: Sequence[float], competitor_mbit: Sequence[float] | None = None, **other: Any
) -> dict[str, Any]:
    """What game_stream writes of 6 s: bitrates in Mb/s by bin, no loss, every frame prompt."""
    others = competitor_mbit or [0.0] * len(stream_mbit)
    bins = [
        [round(mine * BIN_BYTES), round(theirs * BIN_BYTES), 100, 0]
        for mine, theirs in zip(stream_mbit, others, strict=True)
    ]
    return {
        "version": 1,
        "seconds": SECONDS,
        "hz": 60,
        "competitor": "cubic" if competitor_mbit else "none",
        "capacity_mbit": 15,
        "target_bit": [],
        "rtt": [[n / 10, 12.0] for n in range(SECONDS * 10)],
        "received": {
            "bin_s": 0.5,
            "bins": bins,
            "frames": [n / 60 + 0.02 for n in range(SECONDS * 60)],
        },
        **other,
    }


def with_streams(run: LoadedRun, folder: Path) -> LoadedRun:
    """The run as if each of its trials had streamed: bitrates grow with the block's number."""
    trials = []
    for trial in run.trials:
        number, attempt = trial.record.number, trial.record.attempt
        at = folder / "trials" / f"{number:04d}.{attempt}"
        (at / "files").mkdir(parents=True)
        rate = 8.0 + trial.record.block
        left = json.dumps(record([rate] * 12, [0.0] * 4 + [4.0] * 4 + [0.0] * 4))
        (at / "files" / "stream.json").write_text(left)
        one = sample("stream_bitrate", rate * 1e6, source="files/stream.json")
        trials.append(replace(trial, folder=TrialFolder(at), readings=[*trial.readings, one]))
    return replace(run, trials=tuple(trials))
