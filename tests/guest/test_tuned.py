"""Real tuned sets this host up, and labctl's journal puts back what it changed.

tuned is the guest image's: its files show through in a mount namespace of each command's own, so
that nothing is installed on the host, and no daemon starts there. What it sets is the host's.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from labctl.base.errors import BusyError
from labctl.base.paths import StatePaths, host_lock
from labctl.guest.images import Image
from labctl.host.lock import host_locked
from labctl.host.settings.journal import Journal
from labctl.host.settings.tunables import FileValue
from labctl.host.settings.tuned import TUNED
from labctl.study.tunings import load_tunings, tuning_names
from tests.guest.conftest import Sandbox, wait_for

pytestmark = pytest.mark.alone

TUNINGS = [name for name, t in load_tunings(tuning_names()).items() if TUNED in t.host]
KILLS = 12
PATTERNS = (
    *("proc/sys/vm/*", "proc/sys/kernel/*", "proc/sys/net/core/*", "proc/sys/net/ipv4/tcp_*"),
    *("sys/kernel/mm/transparent_hugepage/*", "sys/kernel/mm/ksm/run", "sys/block/*/queue/*"),
    *("sys/devices/virtual/workqueue/cpumask", "sys/devices/virtual/workqueue/*/cpumask"),
    *("sys/devices/system/cpu/cpu*/cpufreq/*", "sys/devices/system/machinecheck/*/ignore_ce"),
)
ALIVE = ("ns_last_pid", "_fill_level", "random", "tcp_mem", "cur_freq", "pagecache_max")
"""Parts of the names of what changes by itself."""

# With tuned's daemon on a bus of its own; both die with the namespace's first process.
DAEMON = """
mkdir -p /run/dbus /run/tuned
cp -a /etc/tuned /run/etc-tuned
mount --bind /run/etc-tuned /etc/tuned
dbus-daemon --system --nofork --nopidfile 2> /run/bus.log &
for _ in $(seq 300); do [ -S /run/dbus/system_bus_socket ] && break; sleep 0.1; done
echo balanced > /etc/tuned/active_profile
echo manual > /etc/tuned/profile_mode
tuned --log=/run/tuned.log 2> /run/tuned.err &
for _ in $(seq 600); do tuned-adm active 2> /dev/null | grep -q ^Current && break; sleep 0.2; done
"""

DOCTOR = """
from labctl.host.doctor import tuned
from labctl.host.doctor.reader import Reader

print(tuned.drift(Reader(), None).status)
"""


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """No run measures while the host is changed, and none is measured beside it."""
    with ExitStack() as stack:

        def locked() -> bool:
            try:
                stack.enter_context(host_locked(host_lock(), what="tests of tuned"))
            except BusyError:
                return False
            return True

        wait_for(locked, 600, "the end of another run")
        yield


@pytest.fixture
def host(image: Image, tmp_path: Path) -> Host:
    tree = image.dir / "tree"
    assert (tree / "usr/sbin/tuned").exists(), "run 'labctl image build' first"
    found = Host(tree, Sandbox(tmp_path / "state", tmp_path / "results"))
    if (probe := found.run("tuned --version")).returncode != 0:
        pytest.skip(f"this host can't lay one folder over another: {probe.stderr.strip()}")
    return found


class Host:
    """This host with the image's tuned."""

    def __init__(self, tree: Path, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        layers = [
            f"mount -t overlay overlay -o lowerdir=/{name}:{shlex.quote(str(tree / name))} /{name}"
            for name in ("usr", "etc")
        ]
        # /run: where a daemon of the host's own would be found, and the lock that we hold.
        self.setup = "\n".join(["set -e", *layers, "mount -t tmpfs tmpfs /run", "set +e", ""])

    def argv(self, script: str, *, processes: bool = False) -> list[str]:
        own = ["--pid", "--fork", "--kill-child", "--mount-proc"] if processes else []
        return ["unshare", "--mount", *own, "sh", "-c", self.setup + script]

    def run(self, script: str, *, processes: bool = False) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(script, processes=processes),
            env=self.sandbox.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def labctl(self, *words: str) -> str:
        return shlex.join(self.sandbox.argv("host", *words))


def settings() -> dict[str, str]:
    """Everything on this host that a profile could set and that stays as it is by itself."""
    found = {}
    for pattern in PATTERNS:
        for path in Path("/").glob(pattern):
            if not any(part in str(path) for part in ALIVE):
                try:
                    found[str(path)] = FileValue(str(path)).read()
                except (OSError, UnicodeDecodeError):
                    continue
    return found


def tuned_processes() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(b"/tuned") for word in words[:3]):
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("name", TUNINGS)
def test_what_tuned_changed_is_put_back_without_it(host: Host, name: str) -> None:
    before, running = settings(), tuned_processes()
    done = host.run(host.labctl("tune", name, "--json"))
    assert done.returncode == 0, done.stderr
    during = settings()
    told = {change["name"]: change for change in json.loads(done.stdout)["changed"]}
    differing = {path for path in before if before[path] != during.get(path)}
    assert "/proc/sys/vm/swappiness" in differing
    assert differing <= told.keys()
    assert tuned_processes() == running
    assert restored(host) == before
    assert Journal(StatePaths(host.sandbox.state).journal).pending() == []


def test_a_tune_that_is_killed_is_undone_whenever_it_was_killed(host: Host) -> None:
    before, running = settings(), tuned_processes()
    with tuning(host) as tune:
        started = time.monotonic()
        assert tune.wait(timeout=300) == 0
        takes_s = time.monotonic() - started
    assert restored(host) == before
    moments = random.Random(20261121)
    changed = 0
    for _ in range(KILLS):
        with tuning(host) as tune:
            time.sleep(moments.uniform(0, 1.0) * takes_s)
            os.kill(tune.pid, signal.SIGKILL)
            tune.wait()
        # tuned dies with the labctl that has started it.
        wait_for(lambda: tuned_processes() == running, 60, "the end of tuned")
        changed += settings() != before
        assert restored(host) == before
    assert changed, "no kill came while anything was changed"


@contextmanager
def tuning(host: Host) -> Iterator[subprocess.Popen[bytes]]:
    """labctl host tune, from when it has written down what tuned is about to change."""
    journal = StatePaths(host.sandbox.state).journal
    tune = subprocess.Popen(
        host.argv("exec " + host.labctl("tune", "virtual-host")),
        env=host.sandbox.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: journal.exists() and journal.stat().st_size, 300, "the first change")
        yield tune
    finally:
        tune.kill()
        tune.wait()


def test_a_daemon_that_lives_applies_the_profile_and_gets_its_own_back(host: Host) -> None:
    before = settings()
    ask = shlex.join([sys.executable, "-c", DOCTOR])
    done = host.run(
        DAEMON
        + "\n".join(
            [
                "tuned-adm active || { cat /run/*.log /run/*.err; exit 77; }",
                host.labctl("tune", "virtual-host") + " > /dev/null || exit 1",
                "tuned-adm active; tuned-adm verify --ignore-missing > /dev/null; echo $?",
                ask,
                "echo 33 > /proc/sys/vm/swappiness",
                "tuned-adm verify --ignore-missing > /dev/null; echo $?",
                ask,
                "echo 10 > /proc/sys/vm/swappiness",
                host.labctl("restore") + " > /dev/null || exit 1",
                "tuned-adm active; ls /etc/tuned | grep labctl",
                "exit 0",
            ]
        ),
        processes=True,
    )
    if done.returncode == 77:
        pytest.skip(f"tuned's daemon does not start here: {done.stdout[-300:]}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Current active profile: balanced",
        "Current active profile: labctl-applied",
        *("0", "ok"),
        *("1", "warn"),
        "Current active profile: balanced",
    ]
    assert settings() == before


def restored(host: Host) -> dict[str, str]:
    """The settings after `labctl host restore`, which sees no tuned."""
    script = f"mount -t tmpfs tmpfs /run && exec {host.labctl('restore')}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        env=host.sandbox.environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return settings()
