"""host.json: what the host's kernel counted before and after a trial's measured window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labctl.base.errors import BrokenError
from labctl.store.trial import TrialFolder

RAW = "host.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshots:
    """`before` and `after` as written; `seconds` of CLOCK_MONOTONIC between the two."""

    where: str
    kind: str
    clk_tck: int
    trial_cpus: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    seconds: float

    @property
    def is_native(self) -> bool:
        return self.kind == "native"


def read_snapshots(raw: TrialFolder) -> Snapshots:
    """Raises BrokenError naming the file when it is missing or isn't two snapshots."""
    where = str(raw.path / RAW)
    data = raw.read_json(RAW)
    try:
        before, after = data["before"], data["after"]
        seconds = (after["monotonic_ns"] - before["monotonic_ns"]) / 1e9
        found = Snapshots(
            where=where,
            kind=str(data["kind"]),
            clk_tck=int(data["clk_tck"]),
            trial_cpus=str(data["trial_cpus"]),
            before=before,
            after=after,
            seconds=seconds,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BrokenError(
            f"{where}: expected two snapshots with 'monotonic_ns', found something else ({error!r})"
        ) from error
    if not seconds > 0 or found.clk_tck <= 0:
        raise BrokenError(f"{where}: expected a window of more than 0 s, found {seconds:g} s")
    return found
