"""Dead QEMUs that nobody waits for, in a process of their own: it becomes a subreaper."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import ctypes, os, sys, time
from pathlib import Path
from labctl.domain.orphans import adopt_orphans

def named(name):
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)  # PR_SET_NAME

def daemonize():  # as QEMU's os_daemonize does, and whoever started it waits for the first alone
    first = os.fork()
    if first == 0:
        named("qemu-system-x86")
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(60)
        os._exit(0)
    os.waitpid(first, 0)

def state(pid):
    try:
        return [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]]
    except (FileNotFoundError, ProcessLookupError):
        return []  # it was reaped meanwhile

def states():
    return sorted(found for task in Path("/proc/self/task").iterdir()
                  for pid in (task / "children").read_text().split() for found in state(pid))

def switches():
    tasks = [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]
    return sum(int(line.split()[1]) for task in tasks
               for line in (task / "status").read_text().splitlines() if "ctxt" in line)

adopt_orphans()
daemonize()
deadline = time.monotonic() + 30
while states() != ["S"] and time.monotonic() < deadline:
    time.sleep(0.05)
before = switches()
time.sleep(1)
print(*states(), switches() - before)
for task in Path("/proc/self/task").iterdir():
    for pid in (task / "children").read_text().split():
        os.kill(int(pid), 9)
"""


def test_what_a_probe_of_libvirts_leaves_is_reaped_and_wakes_nobody_afterwards() -> None:
    """A dead session leader was left alone, and looked at every 50 ms in measured windows."""
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    *alive, woken = ended.stdout.split()
    assert alive == ["S"]  # the daemon itself
    assert int(woken) < 5


_UNREAPED = """
import os, time
from pathlib import Path
from labctl.domain.orphans import adopt_orphans, reaping_paused

def switches():
    tasks = [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]
    return sum(int(line.split()[1]) for task in tasks
               for line in (task / "status").read_text().splitlines() if "ctxt" in line)

adopt_orphans()
if os.fork() == 0:
    os._exit(0)  # dead, and not the reaper's: whoever started it may wait for it
with reaping_paused():
    time.sleep(0.2)
    before = switches()
    time.sleep(1)
    print(switches() - before)
before = switches()
time.sleep(1)
print(switches() - before)
"""


def test_a_dead_child_that_is_not_reaped_wakes_nobody_while_a_window_is_measured() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _UNREAPED], capture_output=True, text=True, timeout=60, check=True
    )
    paused, looking = map(int, ended.stdout.split())
    assert paused < 3
    assert looking > 3
