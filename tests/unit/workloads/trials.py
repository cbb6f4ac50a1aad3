"""Trial folders made of recorded output, whole or damaged."""

from __future__ import annotations

from pathlib import Path

from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialFolder

FIXTURES = Path(__file__).parent / "fixtures"
"""A folder for each workload, by its name; the tool's version is in the names of its files."""


def recorded(name: str) -> str:
    (file,) = FIXTURES.glob(f"*/{name}")
    return file.read_text()


def trial(folder: Path, **files: str) -> TrialFolder:
    """A trial folder; underscores in a name stand for the slash and the dot: files__fio_json."""
    made = TrialFolder(folder)
    for name, text in {"stdout_txt": "", "stderr_txt": "", **files}.items():
        path, _, suffix = name.replace("__", "/").rpartition("_")
        made.write_raw(f"{path}.{suffix}", text)
    return made


def values(readings: list[Reading]) -> dict[str, float]:
    return {r.key: r.value for r in readings if isinstance(r, Sample)}


def reasons(readings: list[Reading]) -> dict[str, str]:
    return {r.metric: r.reason for r in readings if isinstance(r, Unavailable)}
