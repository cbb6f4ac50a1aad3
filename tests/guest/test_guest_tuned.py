"""tuned in real guests: each profile that a tuning asks for is in force there, as tuned says."""

from __future__ import annotations

import json

from labctl.run.guests.tuned import RAW
from labctl.study.tunings import load_tunings, tuning_names
from tests.guest.conftest import QUIET, TINY, Sandbox

TUNINGS = {name: t for name, t in load_tunings(tuning_names()).items() if t.guest.tuned}


def test_every_profile_is_in_force_in_its_guest(sandbox: Sandbox) -> None:
    assert {tuning.guest.tuned for tuning in TUNINGS.values()} == {
        "virtual-guest",
        "realtime-virtual-guest",
    }
    arms = [f"--tuning={name}" for name in TUNINGS]
    done = sandbox.labctl("sweep", str(TINY), *QUIET, "--vcpus=2", *arms, "--quiet")
    assert done.returncode == 0, done.stderr
    (run,) = sandbox.runs()
    for name, tuning in TUNINGS.items():
        trials = [t for t in sandbox.trials(run) if t["cell"]["tuning"] == name]
        # An attempt that others disturbed is repeated.
        assert trials[-1]["status"] == "done", trials
        (folder,) = run.glob(f"trials/{trials[0]['number']:04d}")
        found = json.loads((folder / RAW).read_text())["tuned"]
        assert found["profile"] == tuning.guest.tuned
        assert any("verify: passed: 'vm.swappiness'" in line for line in found["log"])
        isolating = [w for w in tuning.guest.command_line if w.startswith("isolcpus=")]
        assert found["isolated_cores"] == ("1" if isolating else "")
