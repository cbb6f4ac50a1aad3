"""labctl without its optional extra `parquet`: what works, and what names the remedy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from labctl.base.errors import HostError
from labctl.cli.parts import common
from labctl.cli.parts.common import need_pyarrow
from labctl.report.export.formats import FORMATS
from labctl.store import index
from tests.unit.synthetic import synthetic_run, write_run

Run = Callable[..., subprocess.CompletedProcess[str]]

HIDDEN = "import sys; sys.modules['pyarrow'] = None\n"
LABCTL = "from labctl.cli.main import main\nmain()\n"
CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A Python that has no pyarrow, in an empty folder."""
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    monkeypatch.setenv("LABCTL_LAB", str(CHECKOUT))
    monkeypatch.setenv("LABCTL_RESULTS", str(tmp_path / "results"))

    def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", HIDDEN + code, *words]
        return subprocess.run(
            argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )

    return run


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("report", "example"), "sysbench-cpu"),
        (("report", "example", "--format", "csv"), "sysbench-cpu"),
        (("tuning", "list"), "baseline"),
        (("sweep", "pinning", "--quick", "--plan-only"), "trials"),
        (("fleet", "wheelhouse", "--help"), "wheelhouse"),
    ],
)
def test_a_command_that_writes_no_parquet_works(
    python: Run, words: tuple[str, ...], shown: str
) -> None:
    done = python(LABCTL, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout


def test_a_table_of_a_program_is_read(python: Run) -> None:
    code = (
        "from tests.unit.workloads.readers.outputs import metric, read\n"
        "print(read(metric(csv={'column': 'b'}), 'a,b\\n1,2\\n'))\n"
    )
    assert python(code).stdout == "{'it': 2.0}\n"


NEEDING = [
    ("--format parquet", ("report", "example", "--format", "parquet", "--out", "f")),
    ("--format parquet", ("report", "example", "--parquet", "--out", "f")),
    ("labctl fleet report", ("fleet", "report", "fleet-1")),
    ("labctl fleet compare", ("fleet", "compare", "fleet-1", "fleet-2")),
    ("labctl fleet advise", ("fleet", "advise", "fleet-1")),
    ("labctl fleet rollout", ("fleet", "rollout", "fleet-1", "--tuning", "pinned")),
    ("labctl fleet sweep", ("fleet", "sweep", "-i", "web1,", "pinning")),
    ("labctl fleet sweep", ("fleet", "sweep", "--resume", "fleet-1")),
]


@pytest.mark.parametrize(("what", "words"), NEEDING)
def test_a_command_that_needs_it_names_the_remedy_before_any_work(
    python: Run, tmp_path: Path, what: str, words: tuple[str, ...]
) -> None:
    done = python(LABCTL, *words)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"labctl: '{what}' needs pyarrow, which is not installed\n        Run 'make setup'.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_installed_labctl_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(common, "shipped_data", lambda: tmp_path)
    with pytest.raises(HostError) as caught:
        need_pyarrow("--format parquet")
    assert caught.value.hint == "Install it: pip install 'labctl[parquet]'."


def test_the_formats_that_need_it_are_those_that_say_so() -> None:
    assert [one.name for one in FORMATS if one.needs_pyarrow] == ["parquet"]


def test_a_large_run_is_read_without_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "_SMALLEST_BYTES", 0)
    monkeypatch.setattr(index, "_SETTLED_NS", -(10**12))
    run = write_run(tmp_path / "run", synthetic_run(blocks=2))
    with monkeypatch.context() as hiding:
        hiding.setitem(sys.modules, "pyarrow", None)
        hiding.setitem(sys.modules, "pyarrow.parquet", None)
        first = run.load()
    written = run.path / index.NAME
    assert not written.exists()
    run.load()
    there = written.read_bytes()  # of a labctl that has pyarrow
    with monkeypatch.context() as hiding:
        hiding.setitem(sys.modules, "pyarrow", None)
        hiding.setitem(sys.modules, "pyarrow.parquet", None)
        second = run.load()
    assert written.read_bytes() == there
    assert (first.problems, second.problems) == ((), ())
    assert [list(trial.readings) for trial in first.trials] == [
        list(trial.readings) for trial in second.trials
    ]
