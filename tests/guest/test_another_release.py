"""The other release of Debian that labctl is for, from nothing: a root of it, set-up, a sweep."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Others are at work beside it, which this study allows.
SWEEP = "make sweep STUDY=tests/guest/tiny.yaml ARGS='--condition quiet --collect trace'"
LIMIT_S = 1800


def other_release() -> str:
    return "bookworm" if "trixie" in Path("/etc/os-release").read_text() else "trixie"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the root gets a clone of the checkout")
@pytest.mark.skipif(os.geteuid() != 0, reason="a root is made by root")
def test_make_sweep_works_on_the_other_release_from_nothing() -> None:
    with subprocess.Popen(
        [ROOT / "tools/on_release.sh", other_release(), SWEEP],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            raise
    assert process.returncode == 0, said[-4000:]
    assert "(done): 1 block, 1 boot, 3 of 3 trials" in said
