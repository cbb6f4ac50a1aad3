"""Real guests. They need root, QEMU and the built image; `make test` sees to all three."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from labctl.base.paths import StatePaths
from labctl.guest.images import MANIFEST, Image, find
from labctl.guest.recipe import load_recipe
from labctl.host import own_cgroups
from labctl.run.guests.leftovers import leftover_cgroups
from labctl.study.order import block_order
from tests.guest import kept_boots

LABCTL = (sys.executable, "-m", "labctl.cli.main")
STUDY = Path(__file__).parent / "small.yaml"
TINY = STUDY.with_name("tiny.yaml")
QUIET = ("--condition=quiet", "--accel=tcg")


DISTURBED = pytest.mark.flaky(reruns=2)
"""Of tests that find on a real schedule what was put there: a host may be disturbed, and the hosts
of other guests below it more so, but not three times running."""


def tiny(first: str = "native") -> tuple[str, ...]:
    """A sweep of the least study, a boot and three trials, whose block begins with that arm."""
    arms = yaml.safe_load(TINY.read_text())["tunings"]
    return ("sweep", str(TINY), f"--seed={seed_for(first, arms)}", *QUIET)


LATENCY = {
    "program: sysbench-cpu": "program: cyclictest",
    "{max_prime: 2000}": "{}",
    "events_per_s": "open_latency_mean",
}
"""What makes the least study one of a workload that needs no instructions counted."""


TWO = {"[native, baseline, pinned+fifo]": "[native, baseline]"}
"""For what is the same in every guest."""


def changed_study(folder: Path, changes: Mapping[str, str]) -> str:
    """The least study with some of its words changed."""
    text = TINY.read_text()
    for was, now in changes.items():
        assert was in text
        text = text.replace(was, now)
    path = folder / "changed.yaml"
    path.write_text(text)
    return str(path)


def booting_within(seconds: int) -> dict[str, str]:
    """The change that gives a guest so long to answer."""
    return {"attempts: 3": f"attempts: 3\n  boot_s: {seconds}"}


def seed_for(first: str, arms: Sequence[str]) -> int:
    """A seed whose first block begins with that arm: a test needs no others before it."""
    orders = ((seed, block_order(arms, seed=seed, block=1, what="tunings")) for seed in count())
    return next(seed for seed, order in orders if order[0] == first)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.guest)


@dataclass(frozen=True)
class Sandbox:
    """A state folder and a results folder of the test's own; the image is the host's."""

    state: Path
    results: Path
    boots: Path | None = field(default=None, kw_only=True)
    """Folder of the boots that guests come from; None: each boots for itself."""
    pids: set[int] = field(default_factory=set, kw_only=True)
    """Processes of labctl that were started here."""

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "LABCTL_STATE_DIR": str(self.state),
            "LABCTL_RESULTS": str(self.results),
            kept_boots.FOLDER: str(self.boots),
        }

    def argv(self, *words: str) -> list[str]:
        program = LABCTL if self.boots is None else (sys.executable, "-m", kept_boots.__name__)
        return [*program, *words]

    def labctl(
        self,
        *words: str,
        seconds: float = 1800,
        lab: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """`lab`: a lab folder whose files shadow labctl's own; `environment`: what is other."""
        argv, shadowed = self.argv(*words), {"LABCTL_LAB": str(lab)} if lab else {}
        with subprocess.Popen(
            argv,
            env={**self.environment, **shadowed, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            self.pids.add(process.pid)
            try:
                out, err = process.communicate(timeout=seconds)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def start(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.argv(*words),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Where a shell's background job runs the tests, SIGINT is ignored, and labctl would
            # go on ignoring it (as nohup has it).
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.pids.add(process.pid)
        return process

    @property
    def libvirt_cache(self) -> Path:
        return StatePaths(self.state).libvirt_root / "cache"

    def runs(self) -> list[Path]:
        return sorted(path.parent for path in self.results.glob("*/run.json"))

    def trials(self, run: Path) -> list[dict[str, Any]]:
        paths = sorted(run.glob("trials/*/trial.json"))
        return [json.loads(path.read_text()) for path in paths]

    def measured_trials(self) -> list[Path]:
        """Folders of trials that are warm and not yet over."""
        return [
            path.parent
            for run in self.runs()
            for path in run.glob("trials/*/warmup.json")
            if not path.with_name("host.json").exists()
        ]

    def shadow_image(self, image: Image, **manifest: str) -> Path:
        """In place of the host's images: this one, with another manifest, and first boots of its
        own. Built files, and what first boots made before, are linked to. Returns its folder."""
        images = self.state / "images"
        if images.is_symlink():
            images.unlink()
        own = images / image.dir.name
        shutil.rmtree(own, ignore_errors=True)
        (own / "prepared").mkdir(parents=True)
        for folder in (image.dir, image.prepared_dir):
            for path in folder.iterdir():
                if path != image.prepared_dir:
                    (own / path.relative_to(image.dir)).symlink_to(path)
        (own / MANIFEST).unlink()
        (own / MANIFEST).write_text(json.dumps({**image.manifest, **manifest}))
        return own

    def prepared(self, image: Image) -> list[Path]:
        """What first boots in this sandbox have made."""
        folder = self.state / "images" / image.dir.name / "prepared"
        return [path for path in folder.iterdir() if not path.is_symlink()]

    def leftovers(self) -> list[str]:
        """Everything of ours that is still on the host."""
        found = [f"process {pid}" for pid in self.qemu_pids()]
        # Not glob: it stumbles over what others take away meanwhile.
        for folder, names, _ in os.walk("/sys/fs/cgroup"):
            found += [f"{folder}/{name}" for name in names if self._is_left(name)]
        found += map(str, leftover_cgroups(StatePaths(self.state)))
        mounts = Path("/proc/mounts").read_text()
        found += [
            f"a mount in {folder}"
            for folder in (self.state, (self.state / "data").resolve())
            if str(folder) in mounts
        ]
        work = self.state / "running"
        found += [str(path) for path in work.glob("*")] if work.exists() else []
        journal = self.state / "journal.jsonl"
        if journal.exists() and journal.read_text():
            found.append(f"journal: {journal.read_text()}")
        return found

    def _is_left(self, cgroup: str) -> bool:
        """Whether a labctl of this sandbox, which has ended, has made a cgroup of that name."""
        pid = cgroup.rpartition("-")[2] if cgroup.startswith("labctl-") else ""
        return pid.isdigit() and int(pid) in self.pids and not Path("/proc", pid).exists()

    def qemu_pids(self) -> list[int]:
        """QEMU processes whose files lie in this sandbox."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            arguments = arguments_of(int(path.parent.name))
            if b"qemu-system" in arguments and str(self.state).encode() in arguments:
                found.append(int(path.parent.name))
        return found

    def guest_pids(self) -> list[int]:
        """Those that run a guest: libvirt also starts QEMU to ask what it can do."""
        return [pid for pid in self.qemu_pids() if b"guest=" in arguments_of(pid)]


def arguments_of(pid: int) -> bytes:
    """A process's argv; b"" of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def native_pids(name: str, of: subprocess.Popen[str]) -> list[int]:
    """Processes of that name on the native side of a labctl."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            groups = path.with_name("cgroup").read_text()
            if path.read_text().strip() == name and f"labctl-native-{of.pid}" in groups:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@contextmanager
def changed_tree(folder: Path, image: Image) -> Iterator[Path]:
    """The tree of a shadowed image, to be written to; the real one stays as it is."""
    tree, upper, work = folder / "tree", folder / "upper", folder / "work"
    tree.unlink()
    for path in (tree, upper, work):
        path.mkdir()
    layers = f"lowerdir={image.tree},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", str(tree)], check=True)
    try:
        yield tree
    finally:
        subprocess.run(["umount", str(tree)], check=True)


def huge_page_pools() -> dict[str, str]:
    """How many huge pages of each size the host has set aside."""
    found = Path("/sys/kernel/mm/hugepages").glob("*/nr_hugepages")
    return {path.parent.name: path.read_text().strip() for path in found}


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended: nobody may have waited for one that has."""
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except (OSError, ProcessLookupError):
        return False


def wait_for(
    condition: Callable[[], Any],
    seconds: float,
    what: str,
    of: subprocess.Popen[str] | None = None,
) -> Any:
    """`of`: the process that brings it about, which ends the wait when it ends."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        has_ended = of is not None and of.poll() is not None
        if value := condition():
            return value
        if of is not None and has_ended:
            out, _ = of.communicate()
            raise AssertionError(f"{what} did not happen: it ended with {of.returncode}: {out}")
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen within {seconds} s")


@pytest.fixture(scope="session")
def kept() -> Iterator[Path]:
    """What no test need make for itself: what a host keeps from run to run (images, the data disk,
    half a gigabyte that a run takes for dirty, and what libvirt knows of QEMU), and booted guests.

    Beside the host's own state: layers of an image are hard links."""
    folder = StatePaths.default().root / f"tests-{os.getpid()}"
    folder.mkdir(mode=0o711)  # QEMU's user passes through
    try:
        for name in ("boots", "data", "images", "libvirt"):
            (folder / name).mkdir()
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def sandboxed(kept: Path, results: Path, *, is_first: bool = False) -> Iterator[Sandbox]:
    """`is_first`: nothing is known there yet, of QEMU or of programs; only the image is built."""
    # Not below pytest's own folder: paths of unix sockets end at 107 bytes.
    # The same ones again and again: a guest's XML names them, and a kept boot goes by it.
    names = (Path(f"/var/tmp/labctl-test-{os.getpid()}-{number}") for number in count(1))
    state = next(path for path in names if not path.exists())
    state.mkdir(mode=0o711)
    cache = StatePaths.default().cache
    cache.mkdir(exist_ok=True)
    for folder in [kept / "images", kept / "data"] + ([] if is_first else [cache]):
        (state / folder.name).symlink_to(folder)
    sandbox = Sandbox(state, results, boots=None if is_first else kept / "boots")
    if not is_first:
        sandbox.libvirt_cache.parent.mkdir()
        sandbox.libvirt_cache.symlink_to(kept / "libvirt")
    try:
        yield sandbox
    finally:
        for pid in sandbox.qemu_pids():
            os.kill(pid, signal.SIGKILL)
        for group in leftover_cgroups(StatePaths(state)):
            own_cgroups.remove(group)
        subprocess.run(["rm", "-rf", str(state)], check=True)


@pytest.fixture(scope="session")
def built(kept: Path) -> Image:
    """A copy of the host's own image, as far as QEMU reads it: who may read its files depends on
    the guest that runs, and guests of another process of tests may run meanwhile."""
    assert os.geteuid() == 0, "guest tests need root"
    found = find(load_recipe("debian-13"), StatePaths.default())
    assert found is not None, "run 'labctl image build' first"
    own = kept / "images" / found.dir.name
    shutil.copytree(found.dir, own, ignore=lambda folder, names: [found.tree.name])
    (own / found.tree.name).symlink_to(found.tree)
    return Image.load(own)


@dataclass(frozen=True)
class Swept:
    """A small sweep that is over. `leftovers`: what was on the host when it had ended."""

    sandbox: Sandbox
    report: dict[str, Any]
    leftovers: list[str]


@pytest.fixture(scope="session")
def swept(built: Image, kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swept]:
    """For all tests that only read what a sweep has made. It is a first run: libvirt asks QEMU what
    it can, and instructions are counted, which other tests then need not do. The image boots for
    the first time where it never has."""
    with first_run(kept, tmp_path_factory.mktemp("results")) as made:
        host = StatePaths.default().cache
        shutil.copytree(StatePaths(made.sandbox.state).cache, host, dirs_exist_ok=True)
        shutil.copytree(made.sandbox.libvirt_cache, kept / "libvirt", dirs_exist_ok=True)
        yield made


@contextmanager
def first_run(kept: Path, results: Path) -> Iterator[Swept]:
    with sandboxed(kept, results, is_first=True) as sandbox:
        done = sandbox.labctl("sweep", str(STUDY), "--seed=1", *QUIET, "--json")
        assert done.returncode == 0, done.stderr
        assert "warning :" not in done.stderr, "libvirt's own messages"
        yield Swept(sandbox, json.loads(done.stdout), sandbox.leftovers())


@pytest.fixture(scope="session")
def image(built: Image, request: pytest.FixtureRequest) -> Image:
    """The host's image, booted once: tests of what may go wrong want to start from one that is as
    it should be."""
    if not any(built.prepared_dir.glob("*.qcow2")):
        request.getfixturevalue("swept")
    return built


@pytest.fixture
def sandbox(
    image: Image, kept: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    with sandboxed(kept, tmp_path_factory.mktemp("results")) as made:
        yield made
