"""Tools of the host that hang, die or print garbage, as real programs before the real ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOOLS = ("perf", "bpftrace", "trace-cmd", "tc", "virsh", "qemu-img", "qemu-system-x86_64", "mount")

WAYS = {
    "hangs": "exec sleep 300",
    "ignores its end": "trap '' TERM INT HUP; while :; do sleep 1; done",
    "dies": "kill -KILL $$",
    "prints garbage": "head -c 4096 /dev/urandom; head -c 4096 /dev/urandom >&2",
    "floods": "exec yes 'no such event'",
    "is of another version": "echo version 99.0; echo 'unknown option' >&2; exit 129",
}

PLAN = ("sweep", "pinning", "--quick", "--plan-only", "--accel=tcg")
CASES = [
    *((("doctor",), way) for way in WAYS),
    *((("collectors",), way) for way in WAYS if way not in ("hangs", "ignores its end")),
    *((PLAN, way) for way in ("hangs", "prints garbage")),
]
"""The collectors' probes are those of doctor, and wait as long for what hangs."""

LONGEST_S = 120
"""Of the probes each waits for some seconds."""


def children_of(folder: Path) -> list[str]:
    """Stand-ins that are still there: their scripts lie in the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(os.fsencode(f"{folder}/")) for word in words):
            found.append(path.parent.name)
    return found


@pytest.mark.faults
@pytest.mark.parametrize(
    ("command", "way"), CASES, ids=[f"{words[0]} {way}" for words, way in CASES]
)
def test_a_host_whose_tools_all_fail_is_told_so_in_time(
    tmp_path: Path, command: tuple[str, ...], way: str
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in TOOLS:
        (tools / name).write_text(f"#!/bin/sh\n{WAYS[way]}\n")
        (tools / name).chmod(0o755)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "labctl.cli.main", *command],
        env={
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "LABCTL_STATE_DIR": str(tmp_path / "state"),
            "LABCTL_RESULTS": str(tmp_path / "results"),
        },
        capture_output=True,
        text=True,
        timeout=3 * LONGEST_S,
        check=False,
    )
    assert done.returncode in (0, 1, 3), done.stderr
    assert "Traceback" not in done.stderr
    assert "a fault in labctl" not in done.stderr + done.stdout
    assert time.monotonic() - began < LONGEST_S
    assert children_of(tools) == []
