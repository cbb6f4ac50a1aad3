"""This host's real settings, in and out again: what a killed `labctl host tune` leaves is undone.

No guest is needed. Every setting is put back, whatever comes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from labctl.base.errors import BusyError, HostError
from labctl.base.paths import StatePaths, host_lock
from labctl.host.lock import host_locked
from labctl.host.settings.journal import Journal
from labctl.host.settings.tunables import FileValue
from labctl.run.planning.host import asked_for
from tests.guest.conftest import Sandbox

pytestmark = pytest.mark.alone

KILLS = 100
CANDIDATES = (
    *("thp-never", "swappiness-10", "ksm-on", "autogroup-off", "timer-migration-off"),
    *("watchdog-off", "workqueues", "irq-affinity", "governor-performance", "c-states-shallow"),
)


@pytest.fixture(scope="module")
def names() -> list[str]:
    """Tunings of the host that this one can have, and that no guest of others would mind."""
    try:
        with host_locked(host_lock(), what="tests of the host's settings"):
            pass
    except BusyError as busy:
        pytest.skip(busy.message)
    found = []
    for name in CANDIDATES:
        try:
            asked_for([name])
        except HostError:
            continue
        found.append(name)
    if len(found) < 3:
        pytest.skip("hardly any setting of this host can be changed")
    return found


def settings() -> dict[str, str]:
    """Every file that a knob may turn, with its value."""
    files = {}
    for pattern in (
        *("proc/sys/vm/swappiness", "proc/sys/vm/min_free_kbytes", "proc/irq/*/smp_affinity_list"),
        *("proc/sys/kernel/sched_autogroup_enabled", "proc/sys/kernel/timer_migration"),
        *("proc/sys/kernel/watchdog", "proc/irq/default_smp_affinity", "sys/kernel/mm/ksm/run"),
        *("sys/kernel/mm/transparent_hugepage/enabled", "sys/devices/virtual/workqueue/*/cpumask"),
        *("sys/devices/virtual/workqueue/cpumask", "sys/devices/system/cpu/cpu*/cpuidle/*/disable"),
        *("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",),
    ):
        for path in Path("/").glob(pattern):
            try:
                files[str(path)] = FileValue(str(path)).read()
            except OSError:
                continue
    assert files
    return files


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    """No guest, so no image."""
    return Sandbox(tmp_path / "state", tmp_path / "results")


@pytest.fixture
def as_it_was(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The settings before the test; they are so again after it, even if labctl fails."""
    before = settings()
    try:
        yield before
    finally:
        for path, value in before.items():
            if FileValue(path).read() != value:
                FileValue(path).write(value)


def in_a_process(
    state: Path, words: list[str], killed_when: Callable[[], bool] | None = None
) -> int:
    """Run labctl in a copy of this process, which has loaded it already, as os.waitpid says it
    ended; it is killed as soon as `killed_when` says so."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(_labctl(state, words))
        except BaseException:  # whatever it is, this process is a copy of pytest
            traceback.print_exc()
            os._exit(99)
    while killed_when is not None:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if killed_when():
            os.kill(pid, signal.SIGKILL)
            break
    return os.waitpid(pid, 0)[1]


def written(state: Path) -> int:
    """Bytes in the journal."""
    try:
        return StatePaths(state).journal.stat().st_size
    except FileNotFoundError:
        return 0


def after_bytes(state: Path, moments: random.Random, whole: int) -> Callable[[], bool]:
    """When to kill a tune whose journal comes to `whole` bytes: some instants after a drawn one of
    them was written. By the journal, for by the clock a host that is busy now and idle then would
    kill all of them too early or too late."""
    enough = moments.uniform(-0.1, 1) * whole
    instants = moments.randrange(200)

    def is_time() -> bool:
        nonlocal instants
        if written(state) >= enough:
            instants -= 1
        return instants < 0

    return is_time


def _labctl(state: Path, words: list[str]) -> int:
    from labctl.cli.main import cli

    with ExitStack() as stack:
        sink = stack.enter_context((state / "said").open("a"))
        stack.enter_context(redirect_stdout(sink))
        stack.enter_context(redirect_stderr(sink))
        result = cli.main(["--state-dir", str(state), "host", *words], standalone_mode=False)
    return result if isinstance(result, int) else 0


def test_a_killed_tune_is_undone_whenever_it_was_killed(
    tmp_path: Path,
    names: list[str],
    as_it_was: dict[str, str],
) -> None:
    assert in_a_process(tmp_path, ["tune", *names]) == 0
    whole = written(tmp_path)
    assert settings() != as_it_was
    started = time.monotonic()
    assert in_a_process(tmp_path, ["restore"]) == 0
    restoring_s = time.monotonic() - started
    assert settings() == as_it_was

    moments = random.Random(20261121)
    killed, changed = 0, 0
    journal = Journal(StatePaths(tmp_path).journal)
    for _ in range(KILLS):
        ended = in_a_process(tmp_path, ["tune", *names], after_bytes(tmp_path, moments, whole))
        assert ended in (0, signal.SIGKILL)
        killed += ended == signal.SIGKILL
        changed += settings() != as_it_was
        if moments.random() < 0.3:  # the restore is killed as well, and asked for again
            over = time.monotonic() + moments.uniform(0, restoring_s)
            in_a_process(tmp_path, ["restore"], lambda over=over: time.monotonic() > over)
        assert in_a_process(tmp_path, ["restore"]) == 0
        assert settings() == as_it_was
        assert journal.pending() == []
    # The moments were worth something.
    assert killed > KILLS // 10
    assert changed > KILLS // 10


def test_the_next_command_says_what_is_pending_and_restore_finishes_it(
    sandbox: Sandbox, names: list[str], as_it_was: dict[str, str]
) -> None:
    said = subprocess_json(sandbox, "host", "tune", *names, "--json")
    assert {entry["name"] for entry in said["changed"]} >= {
        path for path, value in settings().items() if value != as_it_was[path]
    }
    listed = sandbox.labctl("tuning", "list", "--json")
    assert "is active on this host" in listed.stderr
    assert "labctl host restore" in listed.stderr
    pending = subprocess_json(sandbox, "host", "status", "--json")["pending"]
    assert {item["state"] for item in pending} <= {"in force", "has its old value"}
    restored = subprocess_json(sandbox, "host", "restore", "--json")
    assert restored["pending"] == []
    assert settings() == as_it_was
    assert sandbox.labctl("tuning", "list", "--json").stderr == ""


def test_what_someone_else_changed_meanwhile_needs_force(
    sandbox: Sandbox, names: list[str], as_it_was: dict[str, str]
) -> None:
    swappiness = Path("/proc/sys/vm/swappiness")
    subprocess_json(sandbox, "host", "tune", "swappiness-10", "--json")
    swappiness.write_text("33")
    refused = sandbox.labctl("host", "restore")
    assert refused.returncode == 4
    assert "left: /proc/sys/vm/swappiness" in refused.stdout
    assert "someone else has set it to '33' since" in refused.stdout
    assert "--force" in refused.stderr
    assert swappiness.read_text().strip() == "33"
    assert sandbox.labctl("host", "restore", "--force").returncode == 0
    assert settings() == as_it_was


def subprocess_json(sandbox: Sandbox, *words: str) -> dict[str, list[dict[str, str]]]:
    done: subprocess.CompletedProcess[str] = sandbox.labctl(*words)
    assert done.returncode == 0, done.stderr
    value: dict[str, list[dict[str, str]]] = json.loads(done.stdout)
    return value
