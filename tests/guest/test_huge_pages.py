"""Huge pages and their mounts, of the real kernel, are given back even after SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labctl.run.resources.huge_pages import free_pages
from tests.guest.conftest import Sandbox

pytestmark = pytest.mark.alone

POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")

MORE = 32
"""So many pages are asked for beyond those that are free, and so much the pool has to grow."""

HOLDER = f"""
import sys, time
from labctl.base.paths import StatePaths
from labctl.host.settings.journal import Journal
from labctl.domain.readback import Pages
from labctl.run.resources.huge_pages import free_pages, huge_pages, hugetlbfs_mounted

places = StatePaths.default()
journal = Journal(places.journal)
with hugetlbfs_mounted(["2M"], places.hugetlbfs, journal) as mounts:
    asked = free_pages("2M", 0) + {MORE}
    with huge_pages([Pages("2M", 0, asked * 2 * 1024 * 1024)], journal):
        print(mounts[0], flush=True)
        time.sleep(60)
"""


@pytest.mark.skipif(free_pages("2M", 0) is None, reason="the kernel has no huge pages of 2 MiB")
def test_what_a_killed_labctl_took_is_given_back(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "state", tmp_path)  # no guest, so no image
    before = int(POOL.read_text())
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env=sandbox.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    mount = Path(holder.stdout.readline().strip())
    try:
        if mount == Path():
            _, said = holder.communicate()
            if "free huge pages" in said:
                pytest.skip(f"not on this host, at this time: {said.splitlines()[-1]}")
            raise AssertionError(said)
        assert os.path.ismount(mount)
        assert int(POOL.read_text()) == before + MORE
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        restored = sandbox.labctl("host", "restore")
    assert restored.returncode == 0, restored.stderr
    assert not os.path.ismount(mount)
    assert int(POOL.read_text()) == before
    assert sandbox.leftovers() == []
