"""Install packages with an image's own apt, chrooted into its tree."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from labctl.base import process
from labctl.base.errors import UsageError
from labctl.base.paths import NOBODY
from labctl.base.process import Deadline
from labctl.guest import apt
from labctl.guest.tree import empty_folder, read_file, remove_file, write_file

_CHROOT = Path(__file__).with_name("install_root.sh")
_APT_GET = ("apt-get", "--quiet")
_CONFIG = "etc/apt/apt.conf.d/99labctl"
_SOURCES = "etc/apt/labctl.list"
_NO_SERVICES = "usr/sbin/policy-rc.d"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOUNTED = ("etc/resolv.conf", "etc/hosts")
"""Host files for name resolution, mounted while packages are installed."""


def install(
    tree: Path, packages: Sequence[str], exclude: Sequence[str], deadline: Deadline
) -> None:
    """Install packages and their dependencies. `exclude`: path patterns that are never unpacked
    (dpkg(1), --path-exclude).

    They come from the host's sources if these are of the same release, else from the image's. No
    service is started, and nothing of the host stays in the tree. Raises UsageError for unknown
    package names, ProcessError.
    """
    made = [name for name in _MOUNTED if read_file(tree, name) is None]
    for name in made:
        write_file(tree, name, "")
    write_file(tree, _CONFIG, _apt_config(tree, exclude, deadline))
    # invoke-rc.d(8): "action forbidden".
    write_file(tree, _NO_SERVICES, "#!/bin/sh\nexit 101\n", mode=0o755)
    hint = "Try 'apt-get update' on the host: its package sources are used if they match."
    with apt.refusing():
        process.run(in_tree(tree, [*_APT_GET, "update"]), deadline=deadline, hint=hint)
        _refuse_unknown(tree, packages, deadline)
        process.run(
            in_tree(tree, [*_APT_GET, "install", "--yes", *packages]), deadline=deadline, hint=hint
        )
    for name in (_CONFIG, _SOURCES, _NO_SERVICES, *made):
        remove_file(tree, name)
    for folder in ("var/lib/apt/lists", "var/cache/apt"):
        empty_folder(tree, folder)


def _refuse_unknown(tree: Path, packages: Sequence[str], deadline: Deadline) -> None:
    """Raise UsageError for unknown package names. apt itself would treat some as patterns, or as
    packages to remove (apt-get(8), "install")."""
    listed = process.run(in_tree(tree, ["apt-cache", "pkgnames"]), deadline=deadline)
    known = set(listed.stdout.split())
    missing = sorted(set(packages) - known)
    if not missing:
        return
    where = _os_release(tree).get("VERSION_CODENAME") or "the image's sources"
    told = []
    for name in missing:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        question = f"; did you mean '{near[0]}'?" if near else ""
        told.append(f"no package '{name}' in {where}{question}")
    raise UsageError(
        "\n".join(told),
        hint="'apt-cache search WORD' finds names, on a host of that release.",
    )


def _apt_config(tree: Path, exclude: Sequence[str], deadline: Deadline) -> str:
    """Return the apt.conf(5) of the installation."""
    lines = [
        *apt.host_options(deadline),
        'APT::Install-Recommends "false";',
        'APT::Sandbox::User "root";',
        'Dpkg::Use-Pty "0";',
        # The tree is discarded after a crash anyway.
        'DPkg::Options:: "--force-unsafe-io";',
        'DPkg::Options:: "--force-confold";',
        *(f'DPkg::Options:: "--path-exclude={pattern}";' for pattern in exclude),
    ]
    if sources := _host_sources(tree):
        write_file(tree, _SOURCES, "\n".join(sources) + "\n")
        lines += [f'Dir::Etc::SourceList "/{_SOURCES}";', 'Dir::Etc::SourceParts "-";']
    return "\n".join(lines) + "\n"


def _host_sources(tree: Path) -> list[str]:
    fields = _os_release(tree)
    if fields.get("ID") != "debian":
        return []
    return apt.sources_of(fields.get("VERSION_CODENAME", ""))


def _os_release(tree: Path) -> dict[str, str]:
    text = (read_file(tree, "usr/lib/os-release") or b"").decode(errors="replace")
    return dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))


def in_tree(tree: Path, argv: Sequence[str]) -> list[str]:
    """Return the argv that runs `argv` in a tree, in namespaces of its own, so that everything that
    a package starts or mounts ends with it."""
    environment = [f"PATH={_PATH}", "HOME=/root", "LC_ALL=C.UTF-8"]
    environment.append("DEBIAN_FRONTEND=noninteractive")
    return [*_unshare(), "sh", str(_CHROOT), str(tree), "env", "-i", *environment, *argv]


def in_tree_alone(tree: Path, folder: str, argv: Sequence[str]) -> list[str]:
    """Return the argv that runs `argv` in a folder of a tree without network, as a user without
    privileges who cannot gain any."""
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    environment = [f"PATH={_PATH}", f"HOME={folder}", "LC_ALL=C.UTF-8"]
    inside = ["env", "-i", "-C", folder, *environment, "setpriv", *user, *argv]
    return [*_unshare("--net", "--ipc"), "sh", str(_CHROOT), str(tree), *inside]


def _unshare(*more: str) -> list[str]:
    mounts = ["--mount", "--propagation", "private"]
    return ["unshare", *mounts, "--pid", "--fork", "--kill-child", *more]
