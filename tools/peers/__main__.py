"""Give labctl every domain and every topology of libvirt's test suite: nothing may crash or take a
second, and what is refused must be what `refused.txt` says, with its reason.

`python -m tools.peers [--release SUITE] [--record]`: the source package comes from Debian's archive
by apt, in a folder of its own.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import click

from labctl.base.errors import LabctlError
from labctl.cli.main import cli

REFUSED = Path(__file__).parent / "refused.txt"
DOMAINS = ("qemuxml2argvdata", "qemuxmlconfdata")  # its name in older and newer releases
TOPOLOGIES = ("virhostcpudata", "vircaps2xmldata")
SLOW_S = 1.0
CPUS, NODES = 1024, 16
"""The host that domains are planned for: more CPUs and NUMA nodes than any of theirs names."""


def fetched(suite: str, folder: Path) -> Path:
    """Return the folder `tests` of libvirt's source package in a suite of Debian."""
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True)
    sources = folder / "sources.list"
    sources.write_text(f"deb-src {_mirror()} {suite} main\n")
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": lists,
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in options.items())]
    subprocess.run([*apt, "update"], check=True, cwd=folder)
    # Of the package only its sources, held to the digest in the signed list.
    uris = said_by([*apt, "--print-uris", "source", "libvirt"])
    (url, archive, digest), *_ = re.findall(
        r"^'(\S+)' (libvirt_\S+\.orig\.tar\.\w+) \d+ (SHA256:\w+)$", uris, re.MULTILINE
    )
    helper = [
        "/usr/lib/apt/apt-helper",
        "-oAPT::Sandbox::User=root",
        "download-file",
        url,
        archive,
        digest,
    ]
    subprocess.run(helper, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    subprocess.run(["tar", "-xf", archive, "--wildcards", "*/tests/*"], check=True, cwd=folder)
    (tests,) = folder.glob("libvirt-*/tests")
    return tests


def said_by(argv: list[str]) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def _mirror() -> str:
    """Return the address that this host's own packages of Debian come from."""
    sites = said_by(["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"])
    found = [site for site in sites.split() if site.rstrip("/").endswith("/debian")]
    if not found:
        raise SystemExit("apt knows no mirror of Debian here")
    return found[0]


def large_host(folder: Path) -> Path:
    """Make the /sys of a host of CPUS cores, which has room for any of the domains."""
    cpu = folder / "devices/system/cpu"
    for number in range(CPUS):
        topology = cpu / f"cpu{number}/topology"
        topology.mkdir(parents=True)
        for name, value in (("core_id", number), ("core_cpus_list", number)):
            (topology / name).write_text(f"{value}\n")
        (topology / "physical_package_id").write_text("0\n")
    (cpu / "online").write_text(f"0-{CPUS - 1}\n")
    node, per_node = folder / "devices/system/node", CPUS // NODES
    for number in range(NODES):
        (node / f"node{number}").mkdir(parents=True)
        first = number * per_node
        (node / f"node{number}/cpulist").write_text(f"{first}-{first + per_node - 1}\n")
    (node / "has_memory").write_text(f"0-{NODES - 1}\n")
    return folder


def copies_of_sys(tests: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield each recorded topology as a copy of /sys: both folders have what is below
    devices/system."""
    for kind in TOPOLOGIES:
        for path in sorted((tests / kind).glob("linux-*/")):
            system = path / "system" if (path / "system").is_dir() else path
            if not (system / "cpu").is_dir():
                continue
            copy = folder / kind / path.name
            (copy / "devices").mkdir(parents=True)
            (copy / "devices/system").symlink_to(system.resolve())
            yield f"{kind}/{path.name}", copy


def refusal(words: list[str]) -> str | None:
    """Return why labctl refuses a command line, in its first line; None where it doesn't."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            cli.main(words, "labctl", standalone_mode=False)
    except LabctlError as error:
        return error.message.splitlines()[0]
    except click.ClickException as error:
        return error.format_message().splitlines()[0]
    return None


def plain(reason: str, path: Path) -> str:
    """Return a reason without what differs between releases: its file and its line."""
    return re.sub(
        r" \(line \d+\)", "", reason.replace(f"'{path}'", "FILE").replace(str(path), "FILE")
    )


@click.command()
@click.option("--release", default="", help="Suite of Debian; this host's by default.")
@click.option("--record", is_flag=True, help="Add today's refusals to the recorded ones.")
def main(release: str, record: bool) -> None:
    """Try the inputs of libvirt's test suite, and say what differs from what is recorded."""
    suite = (
        release
        or re.findall(
            r"^VERSION_CODENAME=(\S+)$", Path("/etc/os-release").read_text(), re.MULTILINE
        )[0]
    )
    recorded = dict(line.split("\t", 1) for line in REFUSED.read_text().splitlines())
    problems, refused, slowest, tried = [], {}, 0.0, 0
    with tempfile.TemporaryDirectory(prefix="labctl-peers-") as name:
        folder = Path(name)
        tests, host = fetched(suite, folder), large_host(folder / "host")
        asked: dict[str, tuple[Path, list[str]]] = {}
        for kind in DOMAINS:
            for path in sorted((tests / kind).glob("*.xml")):
                words = ["tuning", "diff", "pinned+fifo", f"--domain={path}", f"--sysfs={host}"]
                asked[f"domain/{path.stem}"] = path, words
        for what, copy in copies_of_sys(tests, folder / "copies"):
            asked[what] = copy, ["pins", f"--sysfs={copy}"]
        for what, (path, words) in asked.items():
            began = time.monotonic()
            try:
                reason = refusal(words)
            except Exception:
                problems.append(f"{what}: crashed\n{traceback.format_exc()}")
                continue
            took, tried = time.monotonic() - began, tried + 1
            slowest = max(slowest, took)
            if took > SLOW_S:
                problems.append(f"{what}: took {took:.1f} s")
            if reason is not None:
                refused[what] = plain(reason, path)
    for what in asked:
        if refused.get(what) != recorded.get(what) and not record:
            problems.append(
                f"{what}: {refused.get(what, 'taken')}; recorded: {recorded.get(what, 'taken')}"
            )
    if record:
        lines = sorted(f"{what}\t{reason}\n" for what, reason in {**recorded, **refused}.items())
        REFUSED.write_text("".join(lines))
    for problem in problems:
        click.echo(problem)
    click.echo(
        f"{tried} inputs of libvirt in {suite}: {len(refused)} refused, the slowest took "
        f"{slowest:.2f} s, {len(problems)} problems"
    )
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
