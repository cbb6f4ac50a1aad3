"""Trial folders made of recorded output, whole or damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from labctl.base.errors import BrokenError
from labctl.run.trials.parse import believable
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialFolder
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting

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


def outputs_of(program: str) -> list[Path]:
    return sorted((FIXTURES / program).glob("*"))


def file_of(program: str, recorded: Path) -> str:
    """The trial's raw file that such an output is: one that the program writes, or what it
    prints."""
    found = workload(program)
    setting = Setting(
        parameters=found.check_parameters({}),
        vcpus=1,
        duration_s=max(1.0, found.file.trial.least_s),
        data_paths=("/dev/vdb",),
        peer="198.18.0.1",
    )
    written = (name for name in found.command(setting).files if name.endswith(recorded.suffix))
    return next((f"files/{name}" for name in written), "stdout.txt")


def parser_of(program: str) -> Callable[[TrialFolder], Iterator[object]]:
    """All that a workload makes of its output."""
    return workload(program).with_parameters({}).parse


def read_raw(
    data: bytes, file: str, parse: Callable[[TrialFolder], Iterator[object]]
) -> list[object]:
    """What a parser makes of a trial with such a raw file; [] for what is refused."""
    with TemporaryDirectory() as place:
        folder = trial_of_output(Path(place))
        folder.write_raw(file, data)
        with suppress(BrokenError), believable(place):
            return list(parse(folder))
    return []


def trial_of_output(folder: Path) -> TrialFolder:
    """A trial's folder with what is beside a workload's raw file."""
    made = TrialFolder(folder)
    made.write_raw("stderr.txt", b"")
    made.write_raw_json(
        "runner.json", {"duration_s": 1.0, "rusage": {"utime_s": 0.5, "stime_s": 0.1}}
    )
    return made
