"""A command's own policy and cgroup, read from inside the machine that it runs on."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.guest.conftest import QUIET, TWO, Sandbox, changed_study, wait_for

ASKED = """\
description: says what it runs under
parameters:
  isolation: {choice: none, of: [none, all], description: whether it has a cgroup}
  seconds: {integer: 0, from: 0, to: 60, description: seconds that it stays}
trial: {kind: once}
sched: {policy: "{{ 'other' if isolation == 'none' else 'fifo' }}", priority: 3}
cgroup: {when: isolation == 'all', weight: 50, quota_percent: 80, memory_mib: 64, cpus: "0"}
command:
  - sh
  - -c
  - chrt -p $$; cat /proc/self/cgroup; grep Cpus_allowed_list /proc/self/status; sleep $0
  - "{{ seconds }}"
primary: elapsed
"""
CHANGES = {
    **TWO,
    "program: sysbench-cpu": "program: asked",
    "{max_prime: 2000}": "{}",
    "events_per_s": "elapsed",
    "conditions:": "factors: {isolation: {levels: [none, all]}}\nconditions:",
}


def test_both_sides_have_what_the_file_asks_for_and_leave_nothing(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    workload = tmp_path / "benchmarks/workloads/asked.yaml"
    workload.parent.mkdir(parents=True)
    workload.write_text(ASKED)
    words = ("sweep", changed_study(tmp_path, CHANGES), *QUIET, "--quiet")
    done = sandbox.labctl(*words, seconds=600, lab=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = sandbox.runs()
    trials = sandbox.trials(run)
    assert [trial["reasons"] for trial in trials if trial["status"] != "done"] == []
    assert len(trials) == 4
    for trial in trials:
        said = (run / f"trials/{trial['number']:04}/stdout.txt").read_text()
        is_limited = "isolation=all" in trial["cell"]["workload"]
        assert ("SCHED_FIFO" in said) is is_limited, said
        assert ("labctl-command-" in said) is is_limited, said
        if is_limited:
            assert said.splitlines()[-1].split()[1] == "0"
            told = json.loads((run / f"trials/{trial['number']:04}/runner.json").read_text())
            files = told["cgroup"]["files"].values()
            assert files
            assert all(one["set"] == one["found"] for one in files)
    assert sandbox.leftovers() == []


def test_the_group_of_a_killed_labctl_goes_with_the_next_command(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    path = tmp_path / "asked.yaml"
    path.write_text(ASKED)
    words = ("workload", "try", str(path), "--set", "isolation=all", "--set", "seconds=60")
    with sandbox.start(*words) as labctl:
        name = f"labctl-command-{labctl.pid}"
        try:
            wait_for(lambda: groups(name), 120, "its cgroup", labctl)
        finally:
            labctl.kill()
    assert sandbox.labctl("host", "restore").returncode == 0
    assert groups(name) == []
    assert sandbox.leftovers() == []


def groups(name: str) -> list[str]:
    # Not glob: it stumbles over what others take away meanwhile.
    walked = os.walk("/sys/fs/cgroup")
    return [f"{folder}/{name}" for folder, names, _ in walked if name in names]
