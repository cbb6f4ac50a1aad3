"""Read and write a trial's folder: raw files as the tools wrote them, and what was parsed from
them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, with_config

from labctl.base.errors import FileError
from labctl.base.trust import open_regular
from labctl.store.archive import RunArchive
from labctl.store.digests import Digests, digests_from, digests_of
from labctl.store.jsonfile import newer, read_json_and_digest, write_bytes, write_json
from labctl.store.records.tolerant import Flag, Number, Text, Whole, adapter, as_far_as_whole
from labctl.store.samples import Kinds, Reading, Readings, Sample, SamplesRecord, Unavailable

_ANEW = "'labctl run reparse RUN' restores it from the raw files."


SCHEMA = 1
"""Version of trial.json and of samples.json. A reader refuses a newer one."""


class TrialStatus(StrEnum):
    DONE = "done"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reparsed:
    """Record when and by which labctl the samples were parsed again. `changed`: raw files that had
    changed by then; `invalid`: the trial is invalid because they can no longer be parsed."""

    at: Text
    labctl: Text
    changed: tuple[Text, ...]
    invalid: Flag = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactedTrial:
    """Record when and by which labctl a redacted copy was made, and which files were `changed` for
    it and which `left_out`."""

    at: Text
    labctl: Text
    changed: tuple[Text, ...]
    left_out: tuple[Text, ...]


@with_config(ConfigDict(extra="ignore", ser_json_inf_nan="constants"))
@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """Hold `trial.json`. `cell` assigns each factor its level.

    Times: `measured_s` and `warmup_s` are the workload's, `wall_s` is the whole trial's.
    """

    number: Whole
    attempt: Whole
    block: Whole
    boot: Whole
    position: Whole
    cell: dict[str, Text]
    status: TrialStatus
    reasons: tuple[Text, ...] = ()
    measured_s: Number = 0.0
    warmup_s: Number = 0.0
    wall_s: Number = 0.0
    started_at: Text = ""
    restored: Flag = False
    parsed_with: dict[str, Any] = field(default_factory=dict)
    """Input of parsing beside the raw files: workload, its parameters, the machine's kind."""
    digests: Digests | None = None
    """Digests of the trial's other files when it ended; None for a trial by an older labctl."""
    reparsed: Reparsed | None = None
    redacted: RedactedTrial | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the content of trial.json."""
        content = adapter(TrialRecord).dump_python(self, mode="json")
        # Left out if missing: trials of older labctls have no such key.
        for name in _LATER:
            if content[name] is None:
                del content[name]
        if self.reparsed and not self.reparsed.invalid:
            del content["reparsed"]["invalid"]
        return {"schema": SCHEMA, **content}

    @classmethod
    def read(cls, data: Any) -> tuple[TrialRecord | None, list[str]]:
        """Return the record in a trial.json, and a sentence's end for each invalid part, as
        `as_far_as_whole`."""
        record, unfit = as_far_as_whole(cls, data)
        if isinstance(data, dict) and (lacking := _NEEDED - data.keys()):
            unfit.append(f"'the file' has no '{min(lacking)}'")
        return record, unfit

    @classmethod
    def from_json(cls, data: Any) -> TrialRecord:
        """Return the record; raises ValueError for what `to_json` cannot return."""
        return adapter(TrialRecord).validate_python(data)


_LATER = ("digests", "reparsed", "redacted")
_NEEDED = frozenset(one.name for one in fields(TrialRecord)) - frozenset(_LATER)


@dataclass(frozen=True, slots=True)
class TrialFolder:
    """Read and write one folder under `trials/`: `0007`, and `0007.2` for the second attempt at
    it.
    """

    path: Path
    archive: RunArchive | None = field(default=None, compare=False)
    """Archive of the run, if the folder is in one: then only files for reports can be read."""

    @property
    def _run(self) -> Path:
        """Return the run's folder; nothing is written outside it."""
        return self.path.parents[1]

    def write_raw(self, name: str, data: bytes | str) -> None:
        """Write a raw file; raises HostError if its path contains a link."""
        data = data.encode() if isinstance(data, str) else data
        write_bytes(self.path / name, data, below=self._run)

    def write_raw_json(self, name: str, value: Any) -> None:
        write_json(self.path / name, value, below=self._run)

    def has(self, name: str) -> bool:
        if self.archive is not None:
            return self.archive.has(self._member(name))
        return (self.path / name).is_file()

    def _member(self, name: str) -> str:
        """Return a file's name in the run's folder."""
        return f"trials/{self.path.name}/{name}"

    def _json_and_digest(self, name: str) -> tuple[Any, str]:
        if self.archive is not None:
            return self.archive.json_and_digest(self._member(name))
        return read_json_and_digest(self.path / name)

    def read_text(self, name: str) -> str:
        """Raise BrokenError naming the file if it is missing or not text."""
        try:
            with open(open_regular(self.path / name), encoding="utf-8") as file:
                return file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"{self.path / name} cannot be read: {error}") from error

    def read_json(self, name: str) -> Any:
        return self._json_and_digest(name)[0]

    @property
    def has_record(self) -> bool:
        """Return whether the attempt came to an end; an interrupted one has no record."""
        return self.has("trial.json")

    def write_record(self, record: TrialRecord) -> None:
        write_json(self.path / "trial.json", record.to_json(), below=self._run)

    def digests(self) -> Digests:
        """Return the present digests of every file but trial.json; raises BrokenError naming one
        that cannot be read."""
        if self.archive is not None:
            return digests_from(self.archive.sums_by_trial.get(self.path.name, {}))
        return digests_of(self.path)

    def check_samples(self, digests: Digests | None) -> None:
        """Raise BrokenError if samples.json is not the one that the trial left, by `digests`; a
        trial of an older labctl has none."""
        if digests is None or digests.samples is None:
            return
        path = self.path / "samples.json"
        try:
            with open(open_regular(path), "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError as error:
            raise FileError(f"{path} is missing", hint=_ANEW) from error
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror}") from error
        _check_digest(path, digest, digests)

    def read_record(self) -> TrialRecord:
        """Raise BrokenError naming the invalid place if trial.json is invalid."""
        path = self.path / "trial.json"
        if not (self.has_record or path.exists()):
            raise FileError(
                f"{self.path} belongs to an interrupted trial: it has no trial.json",
                hint="A resumed run repeats the trial.",
            )
        hint = f"Remove the folder {self.path}: a resumed run repeats the trial."
        data = self.read_json("trial.json")
        _refuse_newer(path, data)
        record, unfit = TrialRecord.read(data)
        if unfit or record is None:
            raise FileError(f"{path} is incomplete: {unfit[0]}", hint=hint)
        return record

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
        """Return the samples, then unavailable metrics; `kinds` are shared by the trials of a run.

        Raises BrokenError naming the place if samples.json is invalid: by its form, and by
        `digests` if the trial's record has them.
        """
        path = self.path / "samples.json"
        kinds = Kinds() if kinds is None else kinds
        data, digest = self._json_and_digest("samples.json")
        _refuse_newer(path, data)
        if digests is not None:
            _check_digest(path, digest, digests)
        try:
            return kinds.of_json(data)
        except (KeyError, TypeError, AttributeError, ValueError):
            pass  # the slow parser names the fault and its place
        _, unfit = as_far_as_whole(SamplesRecord, data)
        what = f"is incomplete: {unfit[0]}" if unfit else "holds no samples"
        raise FileError(f"{path} {what}", hint=_ANEW)


def _check_digest(path: Path, digest: str, digests: Digests) -> None:
    if digest != digests.samples:
        raise FileError(
            f"{path} was changed after its trial ended (its digest differs)", hint=_ANEW
        )


def _refuse_newer(path: Path, data: Any) -> None:
    schema = data.get("schema") if isinstance(data, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise newer(path, schema, SCHEMA)
