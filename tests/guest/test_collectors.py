"""`labctl collectors` with a real guest: every level measured, nothing left behind."""

import json

from labctl.base.levels import Level
from tests.guest.conftest import Sandbox


def test_each_level_is_measured_beside_nothing_on_both_sides(sandbox: Sandbox) -> None:
    done = sandbox.labctl(
        *("collectors", "--overhead", "--pairs", "2", "--seconds", "1"),
        *("--accel", "tcg", "--json", "--quiet"),
        seconds=600,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    works = {entry["name"]: entry["works"] for entry in document["collectors"]}
    assert works["threads"]
    assert works["calibrated"]
    costs = document["overhead"]["costs"]
    assert [(cost["side"], cost["level"]) for cost in costs] == [
        (side, level.value) for side in ("native", "guest") for level in Level
    ]
    for cost in costs:
        # Two short windows say nothing of the size; but each is one, and none is another's.
        assert len({*cost["with"], *cost["without"]}) == 4
        assert min(*cost["with"], *cost["without"]) > 0
        assert cost["low"] < cost["estimate"] < cost["high"]
        assert 0 < cost["labctl_cpu"] < 1
    assert not document["overhead"]["kept"]
    assert sandbox.leftovers() == []


def test_a_workload_of_fixed_pace_is_refused_before_anything_starts(sandbox: Sandbox) -> None:
    done = sandbox.labctl(
        *("collectors", "--overhead", "--study", "realtime", "--workload", "cyclictest"), seconds=60
    )
    assert done.returncode == 2
    assert "fixed pace" in done.stderr
    assert sandbox.qemu_pids() == []
