"""`labctl completion`: the script of each shell, and the names that a shell is given."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from labctl.cli.help import SHELLS
from labctl.cli.main import _COMMANDS
from tests.unit.cli.conftest import Labctl


def run_completion(
    words: str, python: Sequence[str], **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python],
        env={
            **os.environ,
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
            "_LABCTL_COMPLETE": "bash_complete",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def completed(words: str, kind: str = "plain", **environment: str) -> list[str]:
    """What bash is offered for the last of the words; `kind`: "file" for what it completes."""
    done = run_completion(words, ["-m", "labctl.cli.main"], **environment)
    assert done.stderr == ""
    offers = [line.partition(",") for line in done.stdout.split()]
    return [word for found, _, word in offers if found == kind]


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_its_script(labctl: Labctl, shell: str) -> None:
    said = labctl("completion", shell)
    assert (said.code, said.err) == (0, "")
    assert f"_LABCTL_COMPLETE={shell}_complete" in said.out


def test_another_shell_is_wrong_usage(labctl: Labctl) -> None:
    assert labctl("completion", "tcsh").code == 2


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("labctl tun", {"tuning"}),
        ("labctl dom", {"domain"}),
        ("labctl sweep pinn", {"pinning"}),
        ("labctl sweep pinning --tuning pinned+f", {"pinned+fifo", "pinned+fifo+iothreads"}),
        ("labctl sweep pinning --workload hack", {"hackbench"}),
        ("labctl tuning show vcpusched-f", {"vcpusched-fifo"}),
        ("labctl tuning diff baseline vcpusched-f", {"vcpusched-fifo"}),
        ("labctl workload show hack", {"hackbench"}),
        ("labctl doctor --for pinn", {"pinning"}),
        ("labctl sweep pinning --condition noisy-", {"noisy-guests"}),
        ("labctl condition show noisy-", {"noisy-guests"}),
        ("labctl image show debian-12-r", {"debian-12-rt"}),
        ("labctl report example --metric iop", {"iops"}),
        ("labctl history --metric iop", {"iops"}),
        ("labctl explain iop", {"iops"}),
        ("labctl schema tun", {"tuning"}),
        ("labctl help comp", {"compare", "completion"}),
        ("labctl help tuning val", {"validate"}),
        ("labctl help report ", set()),
    ],
)
def test_names_are_completed(words: str, offered: set[str]) -> None:
    assert set(completed(words)) == offered


def test_runs_are_completed(tmp_path: Path) -> None:
    for name in ("2026-01-01-a", "2026-01-02-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    (tmp_path / "2026-01-03-c.tar.xz").write_bytes(b"")
    (tmp_path / "2026-01-04-no-run").mkdir()
    found = completed("labctl report 2026", LABCTL_RESULTS=str(tmp_path))
    assert found == ["2026-01-01-a", "2026-01-02-b", "2026-01-03-c"]
    assert completed("labctl report l", LABCTL_RESULTS=str(tmp_path)) == ["latest"]


def test_recorded_runs_are_completed(tmp_path: Path) -> None:
    found = completed("labctl report example", LABCTL_RESULTS=str(tmp_path))
    assert found == [
        "example",
        *(f"example-{name}" for name in ("disk", "kvm", "slices", "traced")),
    ]


def test_fleets_are_completed(tmp_path: Path) -> None:
    (tmp_path / "fleet-1").mkdir()
    (tmp_path / "fleet-1" / "fleet.json").write_text("{}")
    (tmp_path / "fleet-2").mkdir()
    assert completed("labctl fleet report f", LABCTL_RESULTS=str(tmp_path)) == ["fleet-1"]


@pytest.mark.parametrize(
    "words", ["labctl workload show ./m", "labctl workload show mine", "labctl report ./m"]
)
def test_the_shell_completes_paths(words: str) -> None:
    assert completed(words, kind="file") == [words.split()[-1]]


def test_a_name_that_is_no_file_is_not_completed_as_one() -> None:
    assert completed("labctl tuning show mine", kind="file") == []


@pytest.mark.parametrize(
    "words",
    [
        "labctl report ",
        "labctl tuning show p",
        "labctl explain i",
        "labctl history --metric l",
        "labctl sweep ",
        "labctl sweep pinning --workload ",
        "labctl ab --tuning p",
        "labctl workload show h",
        "labctl condition show n",
        "labctl doctor --for p",
    ],
)
def test_names_are_completed_without_libraries_that_load_slowly(words: str) -> None:
    loaded = "sorted({'numpy', 'pydantic', 'libvirt', 'lxml', 'rich'} & set(sys.modules))"
    code = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print({loaded}, file=sys.stderr))\n"
        "from labctl.cli.main import main\nmain()"
    )
    done = run_completion(words, ["-c", code])
    assert done.stdout
    assert done.stderr == "[]\n"


def test_help_is_shown_without_libraries_that_load_slowly() -> None:
    """A lesson's rules are a file's, whose model is pydantic's."""
    names = sorted({*_COMMANDS} - {"lesson"})
    code = (
        "import sys\nfrom labctl.cli.main import call\n"
        f"for name in {names}: assert call([name, '--help']) == 0\n"
        "print(sorted({'numpy', 'pydantic', 'libvirt', 'lxml', 'rich'} & set(sys.modules)),"
        " file=sys.stderr)"
    )
    done = run_completion("", ["-c", code], _LABCTL_COMPLETE="")
    assert done.stdout.count("Usage: labctl") == len(names)
    assert done.stderr == "[]\n"
