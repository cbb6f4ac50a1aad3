"""Hosts with a real sshd each, in network and mount namespaces of this machine (hosts.sh).

They need root, and openssh-server's files: those of a package that is fetched, and not installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from labctl import __version__
from labctl.base.paths import host_lock
from labctl.store.archive import RunArchive, archive_digest, pack
from labctl.store.jsonfile import canonical
from labctl.study.load_study import load_study
from labctl.workloads.registry import checkers

HERE = Path(__file__).parent
PROGRAMS = Path(sys.executable).parent
LABCTL = PROGRAMS / "labctl"
STUDY = HERE.parent / "guest" / "tiny.yaml"
RECORDED = HERE.parent / "unit/fixtures/versions/0.1.0-whole.tar.xz"
SEED = 7
_KEPT = Path("/var/tmp/labctl-fleet-packages")
"""Files of sshd, kept from one day to the next."""
_SSHD = "openssh-server"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.fleet)


@pytest.fixture(scope="session")
def packages() -> Path:
    """sshd's files, as its packages bring them."""
    assert os.geteuid() == 0, "the hosts of these tests need root"
    if not (_KEPT / "usr/sbin/sshd").exists():
        shutil.rmtree(_KEPT, ignore_errors=True)
        made = _KEPT.with_name(f"{_KEPT.name}.{os.getpid()}")
        made.mkdir()
        try:
            _download(made)
            made.rename(_KEPT)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    # Everyone may make a folder there, and root runs what is in it.
    assert _KEPT.lstat().st_uid == 0, f"{_KEPT} is another user's: remove it"
    return _KEPT


def _download(folder: Path) -> None:
    download = ["apt-get", "-qq", "download", _SSHD, "openssh-sftp-server"]
    if subprocess.run([*download, *_libraries()], cwd=folder, check=False).returncode:
        subprocess.run(["apt-get", "-qq", "update"], check=True)
        subprocess.run([*download, *_libraries()], cwd=folder, check=True)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(folder)], check=True)
        package.unlink()
    # A folder named lib would hide the link /lib.
    for name in ("lib", "usr/share"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _libraries() -> list[str]:
    """Those that sshd needs and this machine lacks; they differ between releases."""
    said = subprocess.run(["apt-cache", "depends", _SSHD], capture_output=True, text=True)
    found = []
    for name in re.findall(r"Depends: (lib\S+)$", said.stdout, re.M):
        ask = ["dpkg-query", "-W", "-f", "${db:Status-Status}", name]
        if subprocess.run(ask, capture_output=True, text=True).stdout != "installed":
            found.append(name)
    return found


@dataclass(frozen=True)
class Rig:
    """Hosts h1, h2, …, of which the last one's key isn't the known one."""

    hub: int
    stand: Path
    hosts: tuple[str, ...]

    def run(
        self, *words: str | Path, seconds: float = 120, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """A command on the control node."""
        return subprocess.run(
            self.argv(*words), env=self._environment(environment), capture_output=True, text=True,
            timeout=seconds, check=False, cwd="/",
        )  # fmt: skip

    @contextmanager
    def start(self, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
        """A command on the control node, which is not waited for."""
        process = subprocess.Popen(
            self.argv(*words), env=self._environment({}), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, cwd="/",
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        with process:
            try:
                yield process
            finally:
                process.kill()

    def argv(self, *words: str | Path) -> list[str]:
        namespaces = ("--net", "--mount", "--uts", "--ipc", "--pid")
        return ["nsenter", "--target", str(self.hub), *namespaces, "--", *map(str, words)]

    def on(self, host: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """A command on a host, not through ssh."""
        return self.run("/run/rig/enter", host, *words)

    def do(self, host: str, what: str) -> None:
        """What a host's stand-in of labctl does from now on."""
        (self.stand / f"{host}.do").write_text(what + "\n")

    def calls(self, host: str) -> list[str]:
        """How a host's stand-in was called so far."""
        path = self.stand / f"{host}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def sweep(
        self, results: Path, *words: str | Path, seed: int = SEED, seconds: float = 120
    ) -> Swept:
        """`labctl fleet sweep` of the study that the stand-in's run is of."""
        argv = (LABCTL, "fleet", "sweep", "--json", "--results", results, *words)
        if "--resume" not in words:
            argv += (STUDY, "--seed", str(seed), "--inventory", "/run/rig/hosts.yml")
        fast = ("labctl_sweep_look_every_s=1",)
        argv += tuple(word for one in fast for word in ("--set", one))
        done = self.run(*argv, seconds=seconds)
        assert done.stdout.startswith("{"), done.stderr + done.stdout
        return Swept(done, json.loads(done.stdout))

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        return {
            **os.environ,
            "HOSTS": "/run/rig",
            # This machine's own names processes that are in no namespace of the rig.
            "LABCTL_STATE_DIR": str(self.stand / "state"),
            "ANSIBLE_CONFIG": "/run/rig/ansible.cfg",
            "ANSIBLE_HOME": "/run/rig/home",
            # In memory: on some disks a file takes a millisecond to make after others were removed.
            "TMPDIR": "/run/rig/tmp",
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            **more,
        }


@dataclass(frozen=True)
class Swept:
    done: subprocess.CompletedProcess[str]
    said: dict[str, Any]

    @property
    def statuses(self) -> dict[str, str]:
        return {host: one["status"] for host, one in self.said["hosts"].items()}

    def reason(self, host: str) -> str:
        return str(self.said["hosts"][host]["reason"])

    @property
    def folder(self) -> Path:
        return Path(self.said["path"])


def child(process: subprocess.Popen[str]) -> int:
    """The command itself: nsenter, which was started, has forked and waits for it."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


@cache
def stand_in_run() -> tuple[bytes, str]:
    """A run of the study with the seed, as far as its plan goes: a recorded one's trials. Returns
    its archive and that one's digest."""
    with TemporaryDirectory() as made:
        run = Path(made, "run")
        run.mkdir()
        RunArchive(RECORDED).unpack(run)
        plan = json.loads((run / "plan.json").read_text())
        study = load_study(str(STUDY), programs=checkers())
        plan |= {"seed": SEED, "study_digest": study.digest}
        content = {key: value for key, value in plan.items() if key not in ("schema", "digest")}
        plan["digest"] = hashlib.sha256(canonical(content).encode()).hexdigest()
        (run / "plan.json").write_text(json.dumps(plan))
        files = {str(path.relative_to(run)): path for path in run.rglob("*") if path.is_file()}
        packed = Path(made, "run.tar.xz")
        with packed.open("wb") as target:
            pack(files, target, "run-1")
        return packed.read_bytes(), archive_digest(RunArchive(packed))


@contextmanager
def hosts_up(
    packages: Path, count: int, *, measuring: bool = False, root: Path | None = None
) -> Iterator[Rig]:
    """So many hosts, until the block ends. `measuring`: they have this machine's
    lock and cgroups. `root`: h1's, with another release of Debian."""
    # Hosts have /tmp and /run of their own, and everything else of this machine's.
    stand = Path(f"/var/tmp/labctl-fleet-{os.getpid()}-{time.monotonic_ns() % 10**6}")
    stand.mkdir()
    try:
        archive, digest = stand_in_run()
        (stand / "all.run.tar.xz").write_bytes(archive)
        (stand / "all.digest").write_text(digest)
        shutil.copytree(packages, stand / "packages")
        program = stand / "packages/usr/local/bin/labctl"
        program.parent.mkdir(parents=True)
        text = (HERE / "stand_in.sh").read_text()
        program.write_text(text.replace("@STAND@", str(stand)).replace("@VERSION@", __version__))
        program.chmod(0o755)
        with _hosts(stand, count, measuring=measuring, root=root) as process:
            yield Rig(child(process), stand, tuple(f"h{n}" for n in range(1, count + 1)))
    finally:
        shutil.rmtree(stand)


@contextmanager
def _hosts(
    stand: Path, count: int, *, measuring: bool, root: Path | None
) -> Iterator[subprocess.Popen[str]]:
    """hosts.sh, until the block ends."""
    process = subprocess.Popen(
        [str(HERE / "hosts.sh"), "-n", str(count), "sh", "-c", "echo up; exec sleep infinity"],
        env={
            **os.environ,
            "RIG_PACKAGES": str(stand / "packages"),
            "RIG_CHECKOUT": str(HERE.parents[1]),
            "RIG_SHARED": str(stand),
            "RIG_MEASURES": "yes" if measuring else "no",
            "RIG_LOCK": str(host_lock().parent),
            "RIG_LOCK_FROM": str(host_lock().parent) if measuring else "",
            "RIG_ROOT": str(root or ""),
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n", f"hosts.sh ended with {process.wait()}"
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def rig(packages: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    marker = request.node.get_closest_marker("hosts")
    count, options = (marker.args[0], marker.kwargs) if marker else (3, {})
    with hosts_up(packages, count, **options) as made:
        yield made


def left_behind() -> set[Sequence[str]]:
    """What the rig could leave on this machine."""
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True)
    mounts = Path("/proc/mounts").read_text()
    return {tuple(line.split()) for line in (links.stdout + mounts).splitlines()}
