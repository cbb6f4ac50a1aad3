"""Read and write a trial's folder: raw files as the tools wrote them, and what was parsed from
them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from labctl.base.errors import BrokenError
from labctl.base.held import open_regular
from labctl.store.digests import Digests, digests_of
from labctl.store.jsonfile import newer, read_json, read_json_and_digest, write_bytes, write_json
from labctl.store.readings import Kinds, Readings
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.shapes import SAMPLES, TRIAL, Shape, fitting

SCHEMA = 1
"""Version of trial.json and of samples.json. A reader refuses a newer one."""


_ANEW = "'labctl run reparse RUN' makes it anew from the raw files."


class TrialStatus(StrEnum):
    DONE = "done"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """Hold what `trial.json` says. `cell` assigns each factor its level.

    Times: `measured_s` and `warmup_s` are what the workload took, `wall_s` all of the trial.
    """

    number: int
    attempt: int
    block: int
    boot: int
    position: int
    cell: Mapping[str, str]
    status: TrialStatus
    reasons: tuple[str, ...] = ()
    measured_s: float = 0.0
    warmup_s: float = 0.0
    wall_s: float = 0.0
    started_at: str = ""
    restored: bool = False
    parsed_with: Mapping[str, Any] = field(default_factory=dict)
    """Input of parsing beside the raw files: workload, its parameters, the machine's kind."""
    digests: Digests | None = None
    """Digests of the trial's other files when it ended; None for a trial by an older labctl."""
    reparsed: Mapping[str, Any] | None = None
    """Record of a later parsing of the samples: when (`at`), by which labctl, and which raw files
    had `changed` by then; `invalid`: the trial is so because they can't be parsed any more."""
    redacted: Mapping[str, Any] | None = None
    """Record of a redacted copy: when (`at`), by which labctl, which files were `changed` for it
    and which `left_out`."""

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "number": self.number,
            "attempt": self.attempt,
            "block": self.block,
            "boot": self.boot,
            "position": self.position,
            "cell": dict(self.cell),
            "status": str(self.status),
            "reasons": list(self.reasons),
            "measured_s": self.measured_s,
            "warmup_s": self.warmup_s,
            "wall_s": self.wall_s,
            "started_at": self.started_at,
            "restored": self.restored,
            "parsed_with": dict(self.parsed_with),
            # Left out where there is none: trials of older labctls hold no such key.
            **({"digests": self.digests.to_json()} if self.digests else {}),
            **({"reparsed": dict(self.reparsed)} if self.reparsed else {}),
            **({"redacted": dict(self.redacted)} if self.redacted else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrialRecord:
        return cls(
            number=data["number"],
            attempt=data["attempt"],
            block=data["block"],
            boot=data["boot"],
            position=data["position"],
            cell=dict(data["cell"]),
            status=TrialStatus(data["status"]),
            reasons=tuple(data["reasons"]),
            measured_s=data["measured_s"],
            warmup_s=data["warmup_s"],
            wall_s=data["wall_s"],
            started_at=data["started_at"],
            restored=data["restored"],
            parsed_with=data["parsed_with"],
            digests=Digests.from_json(found) if (found := data.get("digests")) else None,
            reparsed=data.get("reparsed"),
            redacted=data.get("redacted"),
        )


@dataclass(frozen=True, slots=True)
class TrialFolder:
    """Read and write one folder under `trials/`: `0007`, and `0007.2` for the second attempt at
    it.
    """

    path: Path

    @property
    def _run(self) -> Path:
        """Return the run's folder; no file is written outside it."""
        return self.path.parents[1]

    def write_raw(self, name: str, data: bytes | str) -> None:
        """Write a raw file; raises HostError where a link stands in the way to it."""
        data = data.encode() if isinstance(data, str) else data
        write_bytes(self.path / name, data, below=self._run)

    def write_raw_json(self, name: str, value: Any) -> None:
        write_json(self.path / name, value, below=self._run)

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read_text(self, name: str) -> str:
        """Raise BrokenError naming the file when it isn't there or isn't text."""
        try:
            with open(open_regular(self.path / name), encoding="utf-8") as file:
                return file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise BrokenError(f"{self.path / name} cannot be read: {error}") from error

    def read_json(self, name: str) -> Any:
        return read_json(self.path / name)

    @property
    def has_record(self) -> bool:
        """Return whether the attempt came to an end, whichever; one that was cut off has none."""
        return self.has("trial.json")

    def write_record(self, record: TrialRecord) -> None:
        write_json(self.path / "trial.json", record.to_json(), below=self._run)

    def digests(self) -> Digests:
        """Return the digests of every file but trial.json, as they are now; raises BrokenError
        naming one that can't be read."""
        return digests_of(self.path)

    def check_samples(self, digests: Digests | None) -> None:
        """Raise BrokenError where samples.json isn't the one that the trial left, by `digests`; a
        trial of an older labctl has none."""
        if digests is None or digests.samples is None:
            return
        path = self.path / "samples.json"
        try:
            with open(open_regular(path), "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError as error:
            raise BrokenError(f"{path} is missing", hint=_ANEW) from error
        except OSError as error:
            raise BrokenError(f"{path} cannot be read: {error.strerror}") from error
        _check_digest(path, digest, digests)

    def read_record(self) -> TrialRecord:
        """Raise BrokenError naming the place where trial.json isn't what was written."""
        path = self.path / "trial.json"
        if not path.exists():
            raise BrokenError(
                f"{self.path} is of a trial that was cut off: it has no trial.json",
                hint="A resumed run does the trial again.",
            )
        hint = f"Remove the folder {self.path}: a resumed run does the trial again."
        data = _whole(path, _current(path), TRIAL, hint)
        try:
            return TrialRecord.from_json(data)
        except ValueError as error:  # a status that isn't ours
            raise BrokenError(f"{path} is no trial record: {error}", hint=hint) from error

    def write_readings(self, readings: Iterable[Reading]) -> None:
        readings = list(readings)
        write_json(
            self.path / "samples.json",
            {
                "schema": SCHEMA,
                "samples": [r.to_json() for r in readings if isinstance(r, Sample)],
                "unavailable": [r.to_json() for r in readings if isinstance(r, Unavailable)],
            },
            below=self._run,
        )

    def read_readings(
        self, kinds: Kinds | None = None, *, digests: Digests | None = None
    ) -> Readings:
        """Return the samples, then what was unavailable; `kinds` are shared by the trials of a run.

        Raises BrokenError naming the place where samples.json isn't what was written: by its shape,
        and by `digests` where the trial's record has them.
        """
        path = self.path / "samples.json"
        kinds = Kinds() if kinds is None else kinds
        data, digest = read_json_and_digest(path)
        _refuse_newer(path, data)
        if digests is not None:
            _check_digest(path, digest, digests)
        try:
            return kinds.of_json(data)
        except (KeyError, TypeError, AttributeError, ValueError):
            pass  # the long way says what is wrong, and where
        data = _whole(path, data, SAMPLES, _ANEW)
        try:
            return kinds.of_json(data)
        except ValueError as error:  # a unit or a direction that isn't ours
            raise BrokenError(f"{path} holds no samples: {error}", hint=_ANEW) from error


def _check_digest(path: Path, digest: str, digests: Digests) -> None:
    if digest != digests.samples:
        raise BrokenError(
            f"{path} was changed after its trial ended (its digest is another)", hint=_ANEW
        )


def _current(path: Path) -> Any:
    """Return the file's content; raises UsageError when a newer labctl wrote it."""
    data = read_json(path)
    _refuse_newer(path, data)
    return data


def _refuse_newer(path: Path, data: Any) -> None:
    schema = data.get("schema") if isinstance(data, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise newer(path, schema, SCHEMA)


def _whole(path: Path, data: Any, shape: Shape, hint: str) -> Any:
    """Return `data`; raises BrokenError naming the first place where it isn't whole."""
    data, problems = fitting(data, shape)
    if problems:
        raise BrokenError(f"{path} is not whole: {problems[0]}", hint=hint)
    return data
