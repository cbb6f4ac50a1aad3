"""What runs is what was proven: files by their hashes, threads before and after a trial."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from labctl.guest.images import Image
from tests.guest.conftest import Sandbox, changed_tree, native_pids, tiny, wait_for

LONG_ENOUGH = ("--duration=5", "--quiet")


@pytest.mark.parametrize("library", [False, True], ids=["program", "library"])
def test_a_byte_appended_to_the_tree_ends_the_run(
    sandbox: Sandbox, image: Image, library: bool
) -> None:
    with changed_tree(sandbox.shadow_image(image), image) as tree:
        path = tree / "usr/bin/cyclictest"
        if library:
            # Of what the study runs; the image's manifest has the programs alone.
            (path,) = tree.glob("usr/lib/*/libluajit-5.1.so.2.*")
        with path.open("ab") as file:
            file.write(b"\0")
        done = sandbox.labctl(*tiny(), "--quiet")
    assert done.returncode == 3, done.stderr
    assert path.name.partition(".so")[0] in done.stderr
    expected = (
        "differs between the two sides" if library else "is not the file that the image was built"
    )
    assert expected in done.stderr
    assert "labctl image build" in done.stderr
    (run,) = sandbox.runs()
    assert sandbox.trials(run) == []
    assert sandbox.leftovers() == []


def test_a_policy_that_is_changed_in_the_middle_of_a_trial_makes_it_invalid(
    sandbox: Sandbox,
) -> None:
    process = sandbox.start(*tiny("native"), *LONG_ENOUGH)
    changed = []
    for arm, threads, policy in (
        ("native", lambda: native_pids("sysbench", process), os.SCHED_BATCH),
        ("pinned+fifo", lambda: vcpus(sandbox), os.SCHED_OTHER),
    ):
        for tid in wait_for(measuring(sandbox, arm, threads), 600, f"a trial of {arm}", process):
            os.sched_setscheduler(tid, policy, os.sched_param(0))
            changed.append(arm)
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0, out
    (run,) = sandbox.runs()
    trials = sandbox.trials(run)
    invalid = {t["cell"]["tuning"]: t for t in trials if t["status"] == "invalid"}
    assert set(changed) == set(invalid) == {"native", "pinned+fifo"}
    for arm, start, end in (
        ("native", "the workload ('sysbench',", "expected policy SCHED_OTHER, got SCHED_BATCH"),
        ("pinned+fifo", "vCPU 0 (", "expected policy SCHED_FIFO at priority 1, got SCHED_OTHER"),
    ):
        # A busy host may have given it other reasons beside this one, and more than one thread may
        # have been changed.
        reasons = invalid[arm]["reasons"]
        assert any(
            reason.startswith(f"after the measured window {start}") and reason.endswith(f": {end}")
            for reason in reasons
        ), reasons
    # On a fresh machine it is as asked again.
    assert {t["cell"]["tuning"] for t in trials if t["status"] == "done"} == {
        "native",
        "baseline",
        "pinned+fifo",
    }
    for trial in trials:
        suffix = f".{trial['attempt']}" if trial["attempt"] > 1 else ""
        folder = run / "trials" / f"{trial['number']:04d}{suffix}"
        threads = json.loads((folder / "threads.json").read_text())
        assert all(threads[at] for at in ("asked", "before", "after"))
    assert sandbox.leftovers() == []


def measuring(
    sandbox: Sandbox, arm: str, threads: Callable[[], list[int]]
) -> Callable[[], list[int]]:
    """Finds threads of the trial of that arm that is being measured."""

    def found() -> list[int]:
        (run,) = sandbox.runs() or [None]
        if run is None:
            return []
        numbers = {
            trial["number"]
            for trial in json.loads((run / "plan.json").read_text())["trials"]
            if trial["cell"]["tuning"] == arm
        }
        measured = sandbox.measured_trials()
        return threads() if any(int(p.name[:4]) in numbers for p in measured) else []

    return found


def vcpus(sandbox: Sandbox) -> list[int]:
    return [
        int(path.parent.name)
        for pid in sandbox.qemu_pids()
        for path in Path(f"/proc/{pid}/task").glob("*/comm")
        if path.read_text().startswith("CPU ")
    ]
