"""A mirror that serves other files than those that its Release file, signed by a known key, names:
both ways in which an image gets packages refuse it. The mirror is a folder, its key a new one."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from labctl.base.errors import BrokenError
from labctl.base.process import Deadline
from labctl.guest import apt, build, chroot

from .publisher import Signer

INSTALL = Path(build.__file__).parents[1] / "host/install.sh"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0
    or platform.machine() != "x86_64"
    or not all(map(shutil.which, ("mmdebstrap", "apt-get", "gpg", "gpgv", "dpkg-deb"))),
    reason="needs root on x86-64, mmdebstrap, apt, gpg and dpkg-deb",
)


@dataclass(frozen=True)
class Mirror:
    """A folder with two packages of a suite `x`, and the keyring that has its key."""

    root: Path
    keyring: Path

    @property
    def index(self) -> Path:
        return self.root / "dists/x/main/binary-amd64/Packages"

    @property
    def package(self) -> Path:
        return self.root / "kernel-x.deb"

    @property
    def signed(self) -> Path:
        return self.root / "dists/x/InRelease"

    def source(self) -> str:
        return f"deb [arch=amd64 signed-by={self.keyring}] file://{self.root} x main"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Mirror:
    folder = tmp_path_factory.mktemp("signed")
    mirror = Mirror(folder / "mirror", folder / "keyring.gpg")
    mirror.index.parent.mkdir(parents=True)
    entries = []
    for name in ("apt", "kernel-x"):
        made = folder / name / "DEBIAN/control"
        made.parent.mkdir(parents=True)
        made.write_text(
            f"Package: {name}\nVersion: 1\nArchitecture: amd64\nEssential: yes\n"
            "Maintainer: x <x@example.org>\nDescription: x\n"
        )
        deb = mirror.root / f"{name}.deb"
        argv = ["dpkg-deb", "--root-owner-group", "--build", str(folder / name), str(deb)]
        subprocess.run(argv, check=True, capture_output=True)
        entries.append(
            f"{made.read_text()}Filename: {deb.name}\nSize: {deb.stat().st_size}\n"
            f"SHA256: {_sha256(deb)}\n"
        )
    mirror.index.write_text("\n".join(entries))
    release = mirror.signed.with_name("Release")
    release.write_text(
        "Suite: x\nCodename: x\nDate: Mon, 01 Jan 2024 00:00:00 UTC\nArchitectures: amd64\n"
        f"Components: main\nSHA256:\n {_sha256(mirror.index)} {mirror.index.stat().st_size} "
        "main/binary-amd64/Packages\n"
    )
    mirror.keyring.write_bytes(signer.keyring())
    mirror.signed.write_bytes(signer.clear(release.read_bytes()))
    return mirror


@pytest.fixture
def mirror(whole: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    """A copy that may be changed, which is the only source of packages."""
    copied = Mirror(tmp_path / "mirror", tmp_path / "keyring.gpg")
    shutil.copytree(whole.root, copied.root)
    shutil.copy(whole.keyring, copied.keyring)
    monkeypatch.setattr(apt, "sources_of", lambda suite: [copied.source()])
    return copied


def _changed(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


CHANGES: dict[str, tuple[Callable[[Mirror, Signer], object], str]] = {
    "index": (
        lambda one, _: _changed(one.index, b"Version: 1", b"Version: 2"),
        "Hash Sum mismatch",
    ),
    "package": (
        lambda one, _: _changed(one.package, b"!<arch>\n", b"!<arcH>\n"),
        "Hash Sum mismatch",
    ),
    "signed file": (lambda one, _: _changed(one.signed, b"Suite: x", b"Suite: y"), "is not signed"),
    "no signature": (lambda one, _: one.signed.unlink(), "is not signed"),
    "unknown key": (
        lambda one, stranger: one.keyring.write_bytes(stranger.keyring()),
        "is not signed",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", ["new image", "packages for an image"])
def test_a_mirror_that_serves_changed_files_is_refused(
    mirror: Mirror,
    stranger: Signer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    change: str,
) -> None:
    act, said = CHANGES[change]
    act(mirror, stranger)
    with pytest.raises(BrokenError, match=rf"^apt refused a file of a mirror: .*{said}$"):
        _install(way, tmp_path, monkeypatch)


@pytest.mark.parametrize("way", ["new image", "packages for an image"])
def test_the_unchanged_mirror_is_believed(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It fails later: these packages hold no file, and dpkg is another program here."""
    with pytest.raises(BrokenError) as error:
        _install(way, tmp_path, monkeypatch)
    assert "refused" not in error.value.message
    assert re.search("apt.deb not accessible|Sub-process .*false", error.value.message)


@pytest.mark.parametrize("change", [*CHANGES, None])
def test_labctl_setup_installs_nothing_of_it(
    mirror: Mirror, stranger: Signer, tmp_path: Path, change: str | None
) -> None:
    """What the script runs, with apt's own sentence."""
    act, said = CHANGES[change] if change else (lambda *_: None, "Sub-process .*false")
    act(mirror, stranger)
    config = _apt_in(tmp_path / "tree")
    (tmp_path / "tree/etc/apt/sources.list").write_text(f"{mirror.source()}\n")
    script = INSTALL.read_text()
    functions = script[script.index("is_root()") : script.index("# Say what to install")]
    done = subprocess.run(
        ["bash", "-ec", f"{functions}\napt update\napt install kernel-x"],
        env={**os.environ, "APT_CONFIG": str(config), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert re.search(said, done.stderr), done.stderr


def _install(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "work/tree"
    deadline = Deadline.after(120, "installing")
    if way == "new image":
        recipe = SimpleNamespace(spec=SimpleNamespace(packages=(), exclude=(), files={}))
        tree.parent.mkdir()
        build.bootstrapped_tree(
            tree, "x", "kernel-x", cast(Any, recipe), deadline, lambda event: None
        )
        return
    config = _apt_in(tree)
    monkeypatch.setattr(
        chroot, "in_tree", lambda _, argv: ["env", f"APT_CONFIG={config}", "LC_ALL=C.UTF-8", *argv]
    )
    chroot.install(tree, ["kernel-x"], [], deadline)


def _apt_in(tree: Path) -> Path:
    """Make a tree in which the host's apt finds nothing of the host's; return its configuration."""
    for name in ("usr/lib/os-release", "var/lib/dpkg/status", "etc/apt/root.conf"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("")
    (tree / "usr/lib/os-release").write_text("ID=debian\nVERSION_CODENAME=x\n")
    for name in ("var/cache/apt/archives/partial", "var/log/apt"):
        (tree / name).mkdir(parents=True)
    # The tree has no apt. The host's reads the tree's files, and may not call the host's dpkg.
    for name in ("usr/lib/apt", "usr/share/dpkg"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).symlink_to(f"/{name}")
    config = tree / "etc/apt/root.conf"
    config.write_text(f'RootDir "{tree}";\nDir::Bin::dpkg "/bin/false";\n')
    return config


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
