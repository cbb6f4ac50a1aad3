"""Settings of the host in a sweep: in force around their own trials, back after them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from labctl.base.kernel import DEVICE, NO_LIMIT_US, limit_us
from labctl.base.paths import StatePaths
from labctl.guest.images import Image
from labctl.host.settings.journal import Journal
from labctl.host.settings.tunables import FileValue
from labctl.run.guests.leftovers import leftover_cgroups
from labctl.store.samples import Sample, Unavailable
from labctl.store.trial import TrialFolder
from tests.guest.conftest import QUIET, Sandbox, changed_study, sandboxed, seed_for, wait_for

pytestmark = pytest.mark.alone

SWAPPINESS = FileValue("/proc/sys/vm/swappiness")
THP = FileValue("/sys/kernel/mm/transparent_hugepage/enabled")
KNOBS = "host-knobs.json"
NATIVE = """\
extends: native
description: No guest, and no transparent huge pages on the host, for a test.
host:
  thp: never
"""


HELD = """\
extends: baseline
description: The host's idle CPUs wake up within 20 microseconds, for a test.
host:
  cpu-dma-latency: 20
"""
HOLDER = """\
import sys
from labctl.base.kernel import limited
with limited(30):
    print("holding", flush=True)
    sys.stdin.read()
"""


def study_in(lab: Path) -> str:
    """A study of three settings of the host, one of which has a native side."""
    (lab / "domains").mkdir()
    (lab / "domains" / "native+thp-never.yaml").write_text(NATIVE)
    (lab / "domains" / "held.yaml").write_text(HELD)
    arms = ["native", "native+thp-never", "baseline", "swappiness-10", "thp-never"]
    if who_holds_the_latency() is None:
        arms.append("held")
    return changed_study(lab, {"[native, baseline, pinned+fifo]": f"[{', '.join(arms)}]"})


def who_holds_the_latency() -> str | None:
    """Why no trial can have a limit of its own here, if so."""
    try:
        found = limit_us()
    except OSError as error:
        return f"/{DEVICE}: {error.strerror}"
    return None if found == NO_LIMIT_US else f"somebody holds /{DEVICE} at {found} µs"


def need_other_values() -> None:
    for knob, value in ((SWAPPINESS, "10"), (THP, "never")):
        if knob.read() == value:
            pytest.skip(f"this host has {knob.name} at {value} already")


@contextmanager
def put_back() -> Iterator[tuple[str, str]]:
    """The settings as they are now, and so again afterwards, even if labctl fails."""
    before = SWAPPINESS.read(), THP.read()
    try:
        yield before
    finally:
        for knob, value in zip((SWAPPINESS, THP), before, strict=True):
            if knob.read() != value:
                knob.write(value)


@contextmanager
def watched() -> Iterator[set[tuple[str, str]]]:
    """Every pair of values that the two settings have had in the block."""
    seen: set[tuple[str, str]] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            seen.add((SWAPPINESS.read(), THP.read()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@dataclass(frozen=True)
class Swept:
    """A sweep of the study that is over: what the host had before, in it and after it.
    `unlimited`: why its latency could not be limited."""

    before: tuple[str, str]
    during: set[tuple[str, str]]
    after: tuple[str, str]
    unlimited: str | None
    latency_after_us: int | None
    trials: Mapping[str, TrialFolder]
    leftovers: list[str]


@pytest.fixture(scope="module")
def settings_swept(
    image: Image, kept: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Swept]:
    lab, unlimited = tmp_path_factory.mktemp("lab"), who_holds_the_latency()
    with put_back() as before, sandboxed(kept, tmp_path_factory.mktemp("results")) as sandbox:
        with watched() as seen:
            done = sandbox.labctl("sweep", study_in(lab), "--seed=1", *QUIET, "--json", lab=lab)
        assert done.returncode == 0, done.stderr
        [run] = sandbox.runs()
        folders = [TrialFolder(path) for path in (run / "trials").iterdir()]
        yield Swept(
            before=before,
            during=seen,
            after=(SWAPPINESS.read(), THP.read()),
            unlimited=unlimited,
            latency_after_us=limit_us() if unlimited is None else None,
            trials={folder.read_record().cell["tuning"]: folder for folder in folders},
            leftovers=sandbox.leftovers(),
        )


def test_settings_are_in_force_in_their_own_trials_only(settings_swept: Swept) -> None:
    need_other_values()
    swappiness, thp = settings_swept.before
    assert settings_swept.during == {settings_swept.before, ("10", thp), (swappiness, "never")}
    assert settings_swept.after == settings_swept.before
    evidence = {
        name: trial.read_json(KNOBS)
        for name, trial in settings_swept.trials.items()
        if trial.has(KNOBS)
    }
    assert evidence.keys() - {"held"} == {"native+thp-never", "swappiness-10", "thp-never"}
    assert evidence["swappiness-10"]["asked"] == {"swappiness": "10"}
    assert evidence["swappiness-10"]["changed"] == [
        {"name": SWAPPINESS.name, "before": swappiness, "now": "10"}
    ]
    for name in ("native+thp-never", "thp-never"):
        assert {"name": THP.name, "before": thp, "now": "never"} in evidence[name]["changed"]
    assert settings_swept.leftovers == []


def test_a_latency_limit_is_held_in_its_own_trials_only(settings_swept: Swept) -> None:
    if settings_swept.unlimited:
        pytest.skip(settings_swept.unlimited)
    assert settings_swept.latency_after_us == NO_LIMIT_US
    assert settings_swept.trials["held"].read_json(KNOBS)["held"] == [
        {"name": f"/{DEVICE}", "before": "no limit", "now": "20"}
    ]
    limits = {
        name: readings(trial)["cpu_latency_limit"] for name, trial in settings_swept.trials.items()
    }
    assert limits.pop("held") == 20e-6
    assert all("no process limited" in reason for reason in limits.values())


def test_a_guest_that_was_just_restored_touches_memory_first_and_less_of_it_as_it_gets_warm(
    settings_swept: Swept,
) -> None:
    baseline = settings_swept.trials["baseline"]
    windows = baseline.read_json("warmup.json")["windows"]
    faults = [window["faults"]["minor"] for window in windows]
    assert faults[0] > faults[-1], faults
    assert readings(baseline)["page_faults{kind=minor,of=vcpu}"] >= 0
    assert settings_swept.trials["native"].read_json("warmup.json")["windows"][0]["faults"] == {}


def readings(folder: TrialFolder) -> dict[str, Any]:
    """By key the value, or the reason why there is none."""
    found: dict[str, Any] = {}
    for reading in folder.read_readings():
        match reading:
            case Sample(key=key, value=value):
                found[key] = value
            case Unavailable(metric=metric, reason=reason):
                found[metric] = reason
    return found


def test_the_latency_limit_that_a_killed_process_held_is_gone_with_it() -> None:
    if held := who_holds_the_latency():
        pytest.skip(held)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        assert limit_us() == 30
        holder.kill()
        holder.wait(timeout=10)
        assert limit_us() == NO_LIMIT_US


def test_a_run_that_is_killed_inside_a_setting_is_undone_by_restore(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_other_values()
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path))
    study = study_in(tmp_path)
    seed = seed_for("swappiness-10", ("native", "baseline", "swappiness-10"))
    arguments = ("--tuning=swappiness-10", f"--seed={seed}", *QUIET, "--duration=900", "--quiet")
    with put_back() as as_it_was:
        process = sandbox.start("sweep", study, *arguments)

        journal = Journal(StatePaths(sandbox.state).journal)

        def a_guest_runs_with_the_setting() -> bool:
            # By the run itself: others on this host may set the same.
            changed = {entry.name for entry in journal.pending() if entry.done}
            return SWAPPINESS.name in changed and bool(sandbox.guest_pids())

        wait_for(
            a_guest_runs_with_the_setting, 600, "a guest on a host with another swappiness", process
        )
        process.send_signal(signal.SIGKILL)
        process.communicate()
        places = StatePaths(sandbox.state)
        assert SWAPPINESS.read() == "10"
        assert leftover_cgroups(places)
        status = sandbox.labctl("tuning", "list")
        assert "a killed labctl left" in status.stderr
        restored: subprocess.CompletedProcess[str] = sandbox.labctl("host", "restore")
        assert restored.returncode == 0, restored.stderr
        assert "Stopped the guest" in restored.stderr
        assert sandbox.qemu_pids() == []
        assert leftover_cgroups(places) == []
        assert (SWAPPINESS.read(), THP.read()) == as_it_was
    shutil.rmtree(sandbox.state / "work", ignore_errors=True)
