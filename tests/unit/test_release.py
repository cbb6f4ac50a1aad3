"""What a release is made of: versions that agree, locked packages, the bill of materials."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labctl import __version__
from tools import sbom

CHECKOUT = Path(__file__).parents[2]
LOCK = """\
app==1.0 \\
    --hash=sha256:{a}
    # via labctl (pyproject.toml)
base_lib==2.0 \\
    --hash=sha256:{b} \\
    --hash=sha256:{a}
    # via
    #   app
    #   tester
tester==3.0 \\
    --hash=sha256:{b}
    # via labctl (pyproject.toml)
""".format(a="a" * 64, b="b" * 64)


def top_of(changelog: str) -> str:
    """The version that the newest section is about: "[0.1.0] - DATE", or "Towards 0.1.0"."""
    section = re.findall(r"^## (\[.*)", changelog, re.M)[0]
    if section == "[Unreleased]":
        return re.findall(r"^Towards ([\d.]+),", changelog, re.M)[0]
    return re.findall(r"^\[([\d.]+)\] - \d{4}-\d\d-\d\d$", section)[0]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "# Changelog\n\n## [Unreleased]\n\nTowards 0.2.0, the next.\n\n## [0.1.0]\n",
            "0.2.0",
        ),
        ("# Changelog\n\n## [0.1.0] - 2026-12-01\n\n## [0.0.1] - 2026-11-01\n", "0.1.0"),
    ],
)
def test_the_newest_section_names_its_version(text: str, version: str) -> None:
    assert top_of(text) == version


def test_all_files_name_one_version() -> None:
    assert top_of((CHECKOUT / "CHANGELOG.md").read_text()) == __version__
    debian = (CHECKOUT / "debian/changelog").read_text()
    assert re.findall(r"^labctl \((.+)\) ", debian)[0] == __version__


def test_a_lock_is_read_with_what_needs_each_package() -> None:
    locked = sbom.read_lock(LOCK)
    assert sorted(locked) == ["app", "base-lib", "tester"]
    assert locked["base-lib"].needed_by == {"app", "tester"}
    assert locked["base-lib"].hashes == ("b" * 64, "a" * 64)
    assert sbom.closure(["app"], locked) == {"app", "base-lib"}
    assert sbom.closure(sbom.roots(["tester>=2,<4"]), locked) == {"tester", "base-lib"}


def test_every_locked_package_has_one_scope() -> None:
    names = [one.name for part in sbom.scopes().values() for one in part]
    text = "".join((CHECKOUT / name).read_text() for name in (sbom.LOCK, sbom.BUILD_LOCK))
    assert sorted(names) == sorted(
        {sbom.canonical(x) for x in re.findall(r"^([\w.-]+)==", text, re.M)}
    )
    required, optional, excluded = ({x.name for x in part} for part in sbom.scopes().values())
    assert {"click", "pydantic-core", "libvirt-python"} <= required
    assert {"pyarrow", "ansible-core"} <= optional
    assert {"pytest", "hatchling"} <= excluded


def test_the_bill_is_the_same_twice_and_names_each_package_by_its_hashes() -> None:
    tool = [sys.executable, "-I", "-S", CHECKOUT / "tools/sbom.py"]
    text = subprocess.run(tool, capture_output=True, check=True, text=True).stdout
    bill = json.loads(text)
    assert bill == sbom.sbom()
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == (
        "CycloneDX",
        __version__,
    )
    assert all(one["hashes"] for one in bill["components"])
    known = {one["bom-ref"] for one in bill["components"]} | {f"pkg:pypi/labctl@{__version__}"}
    assert {x for one in bill["dependencies"] for x in [one["ref"], *one["dependsOn"]]} == known


def test_requirements_are_the_locks_own_lines() -> None:
    lock = (CHECKOUT / sbom.LOCK).read_text()
    assert all(one.text in lock for one in sbom.scopes()["required"])
    names = re.findall(r"^([\w.-]+)==.* \\\n    --hash=sha256:", sbom.requirements(), re.M)
    assert len(names) == len(sbom.scopes()["required"])


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A commit of a version that has its section, with the script."""
    for name in ("tools/release.sh", "labctl/__init__.py"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(CHECKOUT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(f"## [{__version__}] - 2026-12-01\n")
    commit(tmp_path, "first")
    return tmp_path


def commit(folder: Path, message: str) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder)]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", message]):
        subprocess.run([*git, *words], check=True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("echo >>labctl/__init__.py", "no: the work tree has no changes"),
        (
            "sed -i 's/.*/## [Unreleased]/' CHANGELOG.md && git -c user.name=a -c user.email=a@b"
            " commit -qam second",
            f"no: CHANGELOG.md has a dated section [{__version__}]",
        ),
        (f"git tag v{__version__}", f"no: the tag v{__version__} is free"),
    ],
)
def test_a_checkout_that_is_not_ready_is_not_released(
    checkout: Path, change: str, says: str
) -> None:
    subprocess.run(["sh", "-c", change], cwd=checkout, check=True)
    done = subprocess.run(
        ["tools/release.sh"], cwd=checkout, capture_output=True, check=False, text=True
    )
    assert done.returncode == 1
    assert done.stderr == f"release: {says}\n"
    assert not (checkout / "dist").exists()
