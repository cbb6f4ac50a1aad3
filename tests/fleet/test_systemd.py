"""Where systemd runs the host: the timer that puts it back, and a unit that does after a reboot."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fleet.conftest import HERE, LABCTL
from tests.fleet.test_tune import KSM
from tests.guest.conftest import wait_for

RESTORE = "labctl-restore.service"


@dataclass(frozen=True)
class Systemd:
    """A systemd of its own, with its process and the folder that it shares with this machine."""

    process: int
    stand: Path

    def run(self, *words: str | Path) -> str:
        into = ["nsenter", f"--target={self.process}", "--mount", "--pid", "--uts", "--ipc"]
        done = subprocess.run(
            [*into, "--wd=/", "--", *map(str, words)], capture_output=True, text=True, check=False,
            env={**os.environ, "LABCTL_STATE_DIR": "/var/lib/fleet-test"}, timeout=60,
        )  # fmt: skip
        return done.stdout.strip() + done.stderr.strip()


@pytest.fixture
def systemd() -> Iterator[Systemd]:
    stand = Path(f"/var/tmp/rig-systemd-{os.getpid()}-{time.monotonic_ns() % 10**6}")
    stand.mkdir()
    argv = ["unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "--propagation=private"]
    outer = subprocess.Popen(
        [*argv, "--kill-child", str(HERE / "systemd.sh"), str(stand)],
        env={**os.environ, "RIG_CHECKOUT": str(HERE.parents[1])},
    )
    try:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        wait_for(lambda: children.read_text().split(), 10, "its process 1")
        made = Systemd(int(children.read_text().split()[0]), stand)
        wait_for(lambda: made.run("systemctl", "is-system-running") == "running", 60, "systemd")
        yield made
    finally:
        outer.kill()
        outer.wait()
        remove_cgroups(stand)
        shutil.rmtree(stand)


def remove_cgroups(stand: Path) -> None:
    """Remove the cgroup that all of it was in: its processes end with the namespace."""
    script = (
        f'mount -t cgroup2 none "{stand}/cgroups" && cd "{stand}/cgroups" && '
        f'for try in $(seq 50); do find "{stand.name}" -depth -type d -exec rmdir {{}} ";" '
        f'2>/dev/null; [ -d "{stand.name}" ] || exit 0; sleep 0.1; done; exit 1'
    )
    subprocess.run(["unshare", "--mount", "sh", "-c", script], check=True)


def test_its_timer_puts_the_host_back_unless_it_is_told_to_keep(systemd: Systemd) -> None:
    said = systemd.run(LABCTL, "host", "tune", "ksm-on", "--restore-after", "8s")
    assert systemd.run("cat", KSM) == "1", said
    assert "labctl-restore-" in systemd.run("systemctl", "list-timers", "--all", "--no-pager")
    wait_for(lambda: systemd.run("cat", KSM) == "0", 40, "the timer")

    systemd.run(LABCTL, "host", "tune", "ksm-on", "--restore-after", "1s")
    assert "kept" in systemd.run(LABCTL, "host", "keep")
    timers = ("systemctl", "list-units", "--all", "--no-pager", "labctl-restore-*")
    wait_for(lambda: "labctl-restore-" not in systemd.run(*timers), 40, "the timer's end")
    assert systemd.run("cat", KSM) == "1"


def is_gone(said: str) -> bool:
    """Return whether systemctl names no such unit: in the words of systemd 252, or of 257."""
    return "No such file" in said or said == "not-found"


def test_what_a_reboot_leaves_is_put_back_by_a_unit(systemd: Systemd) -> None:
    """It is started here as the next boot would."""
    systemd.run(LABCTL, "host", "tune", "ksm-on", "--restore-after", "10m")
    assert systemd.run("systemctl", "is-enabled", RESTORE) == "enabled"
    systemd.run("systemctl", "start", RESTORE)
    assert systemd.run("cat", KSM) == "0", systemd.run("systemctl", "status", RESTORE)
    assert is_gone(systemd.run("systemctl", "is-enabled", RESTORE))

    systemd.run(LABCTL, "host", "tune", "ksm-on", "--restore-after", "10m")
    systemd.run(LABCTL, "host", "keep")
    assert is_gone(systemd.run("systemctl", "is-enabled", RESTORE))
    assert systemd.run("cat", KSM) == "1"
