"""Install packages with an image's own apt, chrooted into its tree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from labctl.base import process
from labctl.base.deadline import Deadline
from labctl.guest import apt
from labctl.guest.tree import empty_folder, read_file, remove_file, write_file

_CHROOT = Path(__file__).with_name("install_root.sh")
_CONFIG = "etc/apt/apt.conf.d/99labctl"
_SOURCES = "etc/apt/labctl.list"
_NO_SERVICES = "usr/sbin/policy-rc.d"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOUNTED = ("etc/resolv.conf", "etc/hosts")
"""Host files for name resolution, mounted while packages are installed."""


def install(
    tree: Path, packages: Sequence[str], exclude: Sequence[str], deadline: Deadline
) -> None:
    """Install packages and what they need. `exclude`: path patterns that are never unpacked
    (dpkg(1), --path-exclude).

    They come from the host's sources where they are of the same release, else from the image's.
    No service is started, and nothing of the host stays in the tree. Raises ProcessError.
    """
    made = [name for name in _MOUNTED if read_file(tree, name) is None]
    for name in made:
        write_file(tree, name, "")
    write_file(tree, _CONFIG, _apt_config(tree, exclude, deadline))
    # invoke-rc.d(8): "action forbidden".
    write_file(tree, _NO_SERVICES, "#!/bin/sh\nexit 101\n", mode=0o755)
    hint = "Try 'apt-get update' on the host: its package sources are used where they fit."
    for command in (["update"], ["install", "--yes", *packages]):
        process.run(in_tree(tree, ["apt-get", "--quiet", *command]), deadline=deadline, hint=hint)
    for name in (_CONFIG, _SOURCES, _NO_SERVICES, *made):
        remove_file(tree, name)
    for folder in ("var/lib/apt/lists", "var/cache/apt"):
        empty_folder(tree, folder)


def names_like(tree: Path, name: str, deadline: Deadline) -> list[str]:
    """Return names of packages that begin as `name` does, by the lists that a failed installation
    left in the tree."""
    listed = process.run(
        in_tree(tree, ["apt-cache", "pkgnames", name[:3]]), deadline=deadline, check=False
    )
    return sorted(listed.stdout.split())


def installed_packages(tree: Path, deadline: Deadline) -> dict[str, str]:
    """Return the version of each package. Raises ProcessError when dpkg's database can't be
    read."""
    listed = process.run(
        ["dpkg-query", f"--admindir={tree}/var/lib/dpkg", "-W", "-f", "${Package} ${Version}\n"],
        deadline=deadline,
    )
    return dict(sorted(line.split() for line in listed.stdout.splitlines()))


def _apt_config(tree: Path, exclude: Sequence[str], deadline: Deadline) -> str:
    """apt.conf(5) for the time of the installation."""
    lines = [
        *apt.host_options(deadline),
        'APT::Install-Recommends "false";',
        'APT::Sandbox::User "root";',
        'Dpkg::Use-Pty "0";',
        # What is unpacked twice after a crash is thrown away anyway.
        'DPkg::Options:: "--force-unsafe-io";',
        'DPkg::Options:: "--force-confold";',
        *(f'DPkg::Options:: "--path-exclude={pattern}";' for pattern in exclude),
    ]
    if sources := _host_sources(tree):
        write_file(tree, _SOURCES, "\n".join(sources) + "\n")
        lines += [f'Dir::Etc::SourceList "/{_SOURCES}";', 'Dir::Etc::SourceParts "-";']
    return "\n".join(lines) + "\n"


def _host_sources(tree: Path) -> list[str]:
    text = (read_file(tree, "usr/lib/os-release") or b"").decode(errors="replace")
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    if fields.get("ID") != "debian":
        return []
    return apt.host_sources(fields.get("VERSION_CODENAME", ""))


def in_tree(tree: Path, argv: Sequence[str], *, network: bool = True) -> list[str]:
    """Return the argv that runs `argv` in a tree, in namespaces of its own, so that whatever a
    package starts or mounts ends with it. `network`: whether it has the host's."""
    namespaces = ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    if not network:
        namespaces.append("--net")
    environment = [
        f"PATH={_PATH}",
        "HOME=/root",
        "LC_ALL=C.UTF-8",
        "DEBIAN_FRONTEND=noninteractive",
    ]
    return ["unshare", *namespaces, "sh", str(_CHROOT), str(tree), "env", "-i", *environment, *argv]
