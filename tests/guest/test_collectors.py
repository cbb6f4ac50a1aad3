"""`labctl collectors` with a real guest: every level measured, nothing left behind."""

import json

from labctl.base.tuning import Level
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
        assert len(cost["with"]) == len(cost["without"]) == 2
        assert min(*cost["with"], *cost["without"]) > 0
        # Two short windows say nothing of the size; and where both pairs differ by as much, as
        # rates of two decimals may, there is no interval.
        bounds = (cost["low"], cost["high"])
        assert bounds == (None, None) or bounds[0] < cost["estimate"] < bounds[1]
        assert 0 < cost["labctl_cpu"] < 1
    assert any(cost["low"] is not None for cost in costs)
    for side in ("native", "guest"):
        # Each window is one, and none is another's; but two may come to the same rate.
        own = [cost for cost in costs if cost["side"] == side]
        (bare,) = {tuple(cost["without"]) for cost in own}
        pairs = {bare, *(tuple(cost["with"]) for cost in own)}
        assert len(pairs) == 1 + len(own)
        assert len({rate for pair in pairs for rate in pair}) > len(pairs)
    assert not document["overhead"]["kept"]
    assert sandbox.leftovers() == []


def test_a_workload_of_fixed_pace_is_refused_before_anything_starts(sandbox: Sandbox) -> None:
    done = sandbox.labctl(
        *("collectors", "--overhead", "--study", "realtime", "--workload", "cyclictest"), seconds=60
    )
    assert done.returncode == 2
    assert "fixed pace" in done.stderr
    assert sandbox.qemu_pids() == []
