"""labctl on a host without a network, from the wheelhouse that the control node makes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from labctl import __version__
from labctl.fleet.ansible import environment
from labctl.fleet.wheelhouse import pinned
from tests.fleet.conftest import LABCTL, PROGRAMS, Rig, hosts_up
from tests.guest.test_another_release import ROOT, other_release

PLAY = """
- hosts: h1
  gather_facts: false
  tasks:
    - ansible.builtin.import_role:
        name: labctl.lab.labctl_install
"""


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wheels") / "labctl.tar"
    made = subprocess.run(
        [LABCTL, "fleet", "wheelhouse", "--out", path], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    return path


def install(rig: Rig, folder: Path, wheelhouse: Path, *words: str) -> tuple[int, int, str]:
    """Status, number of changes, and output."""
    (folder / "install.yml").write_text(PLAY)
    done = rig.run(
        PROGRAMS / "ansible-playbook",
        folder / "install.yml",
        f"--extra-vars=labctl_install_wheelhouse={wheelhouse}",
        # In place of the stand-in.
        "--extra-vars=labctl_install_link=/usr/local/bin/own",
        *words,
        seconds=300,
        ANSIBLE_COLLECTIONS_PATH=environment()["ANSIBLE_COLLECTIONS_PATH"],
        ANSIBLE_NOCOLOR="1",
    )
    changed = re.search(r"changed=(\d+)", done.stdout)
    return done.returncode, int(changed[1]) if changed else -1, done.stdout + done.stderr


@pytest.mark.hosts(2)
def test_a_host_gets_the_control_nodes_labctl_once(
    rig: Rig, tmp_path: Path, wheelhouse: Path
) -> None:
    status, changed, said = install(rig, tmp_path, wheelhouse, "--check")
    assert (status, changed > 0) == (0, True), said
    assert rig.on("h1", "ls", "/opt/labctl").returncode != 0, "check mode changes nothing"

    status, _, said = install(rig, tmp_path, wheelhouse)
    assert status == 0, said
    version = rig.on("h1", "/usr/local/bin/own", "--version")
    assert version.stdout.strip() == f"labctl, version {__version__}"
    listed = rig.on("h1", "/usr/local/bin/own", "tuning", "list")
    assert "pinned" in listed.stdout, "its data folders are there"
    assert rig.on("h2", "ls", "/opt/labctl").returncode != 0

    assert install(rig, tmp_path, wheelhouse)[:2] == (0, 0)

    status, _, said = install(rig, tmp_path, wheelhouse, "-e", "labctl_install_state=absent")
    assert status == 0, said
    assert rig.on("h1", "ls", "/opt/labctl", "/usr/local/bin/own").stdout == ""


@pytest.mark.hosts(2)
def test_a_wheel_that_is_not_the_named_one_is_refused(
    rig: Rig, tmp_path: Path, wheelhouse: Path
) -> None:
    opened = tmp_path / "opened"
    opened.mkdir()
    subprocess.run(["tar", "-xf", wheelhouse, "-C", opened], check=True)
    with next(opened.glob("click-*.whl")).open("ab") as file:
        file.write(b"x")
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        for path in opened.iterdir():
            archive.add(path, path.name)
    status, _, said = install(rig, tmp_path, tmp_path / "other.tar")
    assert status == 2
    assert "DO NOT MATCH THE HASHES" in said
    assert rig.on("h1", "ls", "/usr/local/bin/own").returncode != 0


def test_a_host_of_the_other_release_takes_the_same_wheelhouse(
    packages: Path, tmp_path: Path, wheelhouse: Path
) -> None:
    packages_there = "openssh-server python3-venv python3-libvirt"
    install_there = f"apt-get -qq update && apt-get -qq install --yes {packages_there}"
    with TemporaryDirectory(dir="/var/tmp", prefix="labctl-fleet-root-") as name:
        made = subprocess.run(
            [ROOT / "tools/on_release.sh", other_release(), install_there],
            env={**os.environ, "ROOT": name, "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        with hosts_up(packages, 2, root=Path(name)) as rig:
            status, _, said = install(rig, tmp_path, wheelhouse)
            assert status == 0, said
            version = rig.on("h1", "/usr/local/bin/own", "--version")
            assert version.stdout.strip() == f"labctl, version {__version__}"
            python = rig.on("h1", "/opt/labctl/venv/bin/python", "--version").stdout
            assert f" {sys.version_info.major}.{sys.version_info.minor}." not in python
            release = rig.on("h1", "cat", "/etc/os-release").stdout
            assert other_release() in release
            assert "pinned" in rig.on("h1", "/usr/local/bin/own", "tuning", "list").stdout


def test_a_wheelhouse_is_for_the_pythons_of_all_releases(wheelhouse: Path) -> None:
    with tarfile.open(wheelhouse) as archive:
        names = archive.getnames()
        file = archive.extractfile("requirements.txt")
        assert file is not None
        lines = file.read().decode().splitlines()
    for python in ("cp311", "cp313"):
        assert any(name.startswith("numpy-") and f"-{python}-" in name for name in names)
    (numpy,) = (line for line in lines if line.startswith("numpy=="))
    assert numpy.count("--hash=sha256:") >= 2
    (bindings,) = (line for line in lines if line.startswith("libvirt_python=="))
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f'python_version == "{own}"' in bindings


def test_versions_are_those_of_this_labctl() -> None:
    import pydantic

    found = pinned()
    assert found["pydantic"] == pydantic.VERSION
    assert {"libvirt-python", "pydantic-core", "numpy"} <= found.keys()
    assert not found.keys() & {"labctl", "pytest", "ansible-core", "mypy"}
