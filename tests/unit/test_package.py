"""The wheel: what a user without a checkout gets."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from labctl.base import process
from labctl.base.paths import DATA_FOLDERS
from labctl.base.process import Deadline
from tools import man_pages

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that an installed wheel makes, with labctl and its data in it."""
    folder = tmp_path_factory.mktemp("wheel")
    process.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, CHECKOUT],
        deadline=Deadline.after(120, "building the wheel"),
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def relative_files(folder: Path) -> Iterator[Path]:
    return (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def run_elsewhere(
    installed: Path, folder: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> process.Completed:
    # -P keeps the empty folder itself off the path, -S the checkout that this Python knows.
    packages = os.pathsep.join([str(installed), *(p for p in sys.path if p.endswith("-packages"))])
    return process.run(
        [sys.executable, "-P", "-S", *arguments],
        env={"PYTHONPATH": packages, "LABCTL_LAB": str(folder), **(env or {})},
        cwd=folder,
        deadline=Deadline.after(60, "the installed labctl"),
        check=False,
    )


@pytest.mark.parametrize("kind", DATA_FOLDERS)
def test_the_wheel_carries_every_data_folder(installed: Path, kind: str) -> None:
    carried = set(relative_files(installed / "labctl" / "data" / kind))
    assert carried == set(relative_files(CHECKOUT / kind))
    assert carried


def test_the_wheel_carries_every_file_of_the_package(installed: Path) -> None:
    ours = {
        path
        for path in relative_files(CHECKOUT / "labctl")
        if "__pycache__" not in path.parts and path.parts[0] != "data"
    }
    assert ours <= set(relative_files(installed / "labctl"))


def test_the_wheel_carries_nothing_else(installed: Path) -> None:
    folders = {path.parts[0] for path in relative_files(installed)}
    beside = (".dist-info", ".data")
    assert {folder for folder in folders if not folder.endswith(beside)} == {"labctl"}


def test_the_wheel_carries_the_recorded_runs(installed: Path) -> None:
    carried = {path.name for path in (installed / "labctl" / "data" / "results").iterdir()}
    assert carried == {path.name for path in (CHECKOUT / "results").glob("*.tar.xz")}
    assert len(carried) == 5


def test_the_wheel_carries_the_lessons(installed: Path) -> None:
    carried = installed / "labctl" / "data" / "docs" / "lessons"
    ours = CHECKOUT / "docs" / "lessons"
    assert set(relative_files(carried)) == set(relative_files(ours))


def test_the_wheel_carries_the_man_pages(installed: Path) -> None:
    (pages,) = installed.glob("*.data/data/share/man/man1")
    assert {path.name for path in pages.iterdir()} == {name for name, _ in man_pages.pages()}


def test_the_wheel_carries_completion_scripts(installed: Path) -> None:
    (share,) = installed.glob("*.data/data/share")
    scripts = {str(path) for path in relative_files(share) if path.parts[0] != "man"}
    assert scripts == {
        "bash-completion/completions/labctl",
        "fish/vendor_completions.d/labctl.fish",
        "zsh/site-functions/_labctl",
    }
    for script in scripts:
        assert "_LABCTL_COMPLETE=" in (share / script).read_text()
    (beside,) = share.parents[1].iterdir()
    assert beside.name == "data"


def test_the_wheel_names_its_licence_and_carries_its_text(installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info/METADATA")
    assert "License-Expression: Apache-2.0" in metadata.read_text().splitlines()
    carried = metadata.parent / "licenses" / "LICENSE"
    assert carried.read_bytes() == (CHECKOUT / "LICENSE").read_bytes()


def test_the_wheel_needs_pyarrow_for_its_extras_alone(installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info/METADATA")
    needed = [line for line in metadata.read_text().splitlines() if "Dist: pyarrow" in line]
    assert needed == [
        "Requires-Dist: pyarrow>=15; extra == 'fleet'",
        "Requires-Dist: pyarrow>=15; extra == 'parquet'",
    ]


def test_an_installed_labctl_explains_the_words_of_its_reports(
    installed: Path, tmp_path: Path
) -> None:
    script = "from labctl.cli.main import main; main()"
    done = run_elsewhere(installed, tmp_path, "-c", script, "explain", "noise", "floor")
    assert "The A/A control's interval" in done.stdout, done.stderr


def test_an_installed_labctl_brings_the_recorded_runs(installed: Path, tmp_path: Path) -> None:
    script = "from labctl.cli.main import main; main()"
    done = run_elsewhere(installed, tmp_path, "-c", script, "report", "example")
    assert "sysbench-cpu with a noisy neighbour" in done.stdout, done.stderr


def test_an_installed_labctl_uses_the_data_inside(installed: Path, tmp_path: Path) -> None:
    script = "from labctl.base.paths import shipped_data; print(shipped_data())"
    done = run_elsewhere(installed, tmp_path, "-c", script)
    assert done.stdout.strip() == str(installed / "labctl" / "data")


def test_an_installed_labctl_lists_its_tunings_from_an_empty_folder(
    installed: Path, tmp_path: Path
) -> None:
    script = "from labctl.cli.main import main; main()"
    done = run_elsewhere(installed, tmp_path, "-c", script, "tuning", "list")
    assert done.returncode == 0, done.stderr
    for name in ("baseline", "pinned+fifo", "native+pinned"):
        assert name in done.stdout
    assert list(tmp_path.iterdir()) == []
