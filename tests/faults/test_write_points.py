"""A fault at each single call by which labctl changes a file that it keeps: what is there then is
the old or the new, never a third, and goes on as the page of faults says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

FAILED = ("EIO", "ENOSPC", "EROFS")
QUICK = (
    *("reparse", "import", "export", "index", "fleet-add"),
    *("tune", "restore", "image-build", "image-rm", "data-disks"),
)
"""Of these a kill before each call takes a minute in all."""
SLOW = ("sweep", "import-csv", "export-folder", "export-redacted")

SCRATCH = ("data.img", "data.qcow2", ".lock")
"""Written anew before a guest reads them, or without content."""


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that counts a process's calls."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler for the library that counts calls")
    made = tmp_path_factory.mktemp("shim") / "shim.so"
    source = HERE / "shim.c"
    argv = [compiler, "-O1", "-shared", "-fPIC", "-o", str(made), str(source), "-ldl"]
    subprocess.run(argv, check=True)
    return made


def outcomes(shim: Path, folder: Path, writing: str, *hows: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "tests.faults.write_points", writing, str(folder), *hows]
    done = subprocess.run(
        argv,
        env={**os.environ, "LD_PRELOAD": str(shim), "LABCTL_LAB": ""},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check(found: dict[str, Any]) -> None:
    """At least as many faults as calls, and no third state after any."""
    assert len(found["outcomes"]) > len(found["calls"]) > 1
    faults = [
        f"{one['how']} after {one['after']}: {'; '.join(one['problems'])}"
        for one in found["outcomes"]
        if one["problems"]
    ]
    assert faults == []


@pytest.mark.parametrize("writing", QUICK)
def test_a_kill_at_any_write_leaves_the_old_or_the_new_and_goes_on(
    shim: Path, tmp_path: Path, writing: str
) -> None:
    check(outcomes(shim, tmp_path, writing, "kill"))


@pytest.mark.parametrize("writing", [*QUICK, *SLOW])
def test_what_is_renamed_into_its_place_is_on_the_disk_before_and_its_name_after(
    shim: Path, tmp_path: Path, writing: str
) -> None:
    found = outcomes(shim, tmp_path, writing)
    careless = [one for one in found["careless"] if Path(one.split()[-1]).name not in SCRATCH]
    assert careless == []


@pytest.mark.faults
@pytest.mark.parametrize("how", ["kill", "torn", "dropped"])
@pytest.mark.parametrize("writing", SLOW)
def test_a_kill_at_any_write_of_long_ones(
    shim: Path, tmp_path: Path, writing: str, how: str
) -> None:
    check(outcomes(shim, tmp_path, writing, how))


@pytest.mark.faults
@pytest.mark.parametrize("writing", QUICK)
def test_a_torn_write_and_a_loss_of_power_leave_the_old_or_the_new(
    shim: Path, tmp_path: Path, writing: str
) -> None:
    check(outcomes(shim, tmp_path, writing, "torn", "dropped"))


@pytest.mark.faults
@pytest.mark.parametrize("writing", ["sweep", "reparse", "index", "tune"])
def test_a_clock_that_steps_by_a_day_and_back_changes_nothing(
    shim: Path, tmp_path: Path, writing: str
) -> None:
    check(outcomes(shim, tmp_path, writing, "+1d", "-1d"))


@pytest.mark.faults
@pytest.mark.parametrize("how", FAILED)
@pytest.mark.parametrize("writing", [*QUICK, "sweep"])
def test_a_disk_that_fails_at_any_write_is_told_in_a_sentence(
    shim: Path, tmp_path: Path, writing: str, how: str
) -> None:
    check(outcomes(shim, tmp_path, writing, how))
