"""What goes wrong on a real host: guests that never boot, full disks, tools that print garbage.
Each ends in a sentence, with the run resumable and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labctl.guest.images import Image
from tests.guest.conftest import (
    LATENCY,
    QUIET,
    Sandbox,
    booting_within,
    changed_study,
    native_pids,
    seed_for,
    tiny,
    wait_for,
)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A file system of its own for a folder."""
    folder.mkdir(exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={size}", "labctl-test"]
    subprocess.run(["mount", *options, str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    """A file that takes all the space there is left beside it."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_guest_that_never_boots_ends_the_run_with_its_console(
    sandbox: Sandbox, image: Image, tmp_path: Path
) -> None:
    study = changed_study(tmp_path, booting_within(10))
    # Its kernel's own messages are there in a second or two, however busy the host is.
    sandbox.shadow_image(image, command_line="root=/dev/nowhere console=ttyS0")
    done = sandbox.labctl("sweep", study, *QUIET, "--quiet")
    assert done.returncode == 4
    assert "the guest did not answer within 10 s" in done.stderr
    assert "Its console ends:" in done.stderr
    (run,) = sandbox.runs()
    assert json.loads((run / "run.json").read_text())["status"] == "failed"
    assert sandbox.leftovers() == []


def test_a_tool_that_is_killed_and_a_guest_that_dies_cost_their_own_trials_and_no_others(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    seed = seed_for("baseline", ["native", "baseline", "pinned+fifo"])
    study = changed_study(tmp_path, LATENCY)
    words = ("sweep", study, f"--seed={seed}", *QUIET, "--duration=2", "--quiet")
    process = sandbox.start(*words)

    def guest_in_a_trial() -> int | None:
        return next(iter(sandbox.guest_pids()), None) if sandbox.measured_trials() else None

    pid = wait_for(guest_in_a_trial, 600, "a measured trial in a guest", process)
    os.kill(pid, signal.SIGKILL)
    while process.poll() is None:
        for native in native_pids("cyclictest", process):
            with suppress(ProcessLookupError):
                os.kill(native, signal.SIGKILL)
        time.sleep(0.02)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    trials = sandbox.trials(sandbox.runs()[0])
    done = [t["cell"]["tuning"] for t in trials if t["status"] == "done"]
    assert sorted(done) == ["baseline", "pinned+fifo"]
    invalid = [t for t in trials if t["status"] == "invalid"]
    native = [t for t in invalid if t["cell"]["tuning"] == "native"]
    assert len(native) == 3
    reasons = {reason for trial in native for reason in trial["reasons"]}
    assert all("cyclictest" in reason for reason in reasons), reasons
    reasons = {trial["reasons"][0] for trial in invalid if trial not in native}
    ended = [reason for reason in reasons if "ended while labctl was talking to it" in reason]
    assert ended, reasons
    for reason in ended:
        sentence, *logs = reason.splitlines()
        assert sentence == "the guest: ended while labctl was talking to it"
        assert "QEMU's log can't be read." not in logs, reason
        assert any(line.startswith("Its console ") for line in logs), reason
    assert sandbox.leftovers() == []


def test_a_full_state_folder_is_refused_before_anything_starts(sandbox: Sandbox) -> None:
    state = Path(f"{sandbox.state}-small")
    try:
        with small_disk(state, "64m"):
            done = sandbox.labctl("--state-dir", str(state), *tiny())
            assert done.returncode == 3
            assert str(state) in done.stderr
            assert "free" in done.stderr
    finally:
        state.rmdir()
    assert sandbox.runs() == []
    assert sandbox.leftovers() == []


def test_a_disk_that_fills_up_ends_the_run_which_goes_on_when_there_is_space(
    sandbox: Sandbox,
) -> None:
    with small_disk(sandbox.results, "20m"):
        sweeping = sandbox.start(*tiny(), "--quiet")
        wait_for(sandbox.runs, 120, "the start of the run", of=sweeping)
        (run,) = sandbox.runs()
        wait_for(lambda: any(run.glob("trials/*/trial.json")), 300, "a trial", of=sweeping)
        fill(sandbox.results / "others-files")
        said, _ = sweeping.communicate(timeout=300)
        assert sweeping.returncode == 3, said
        assert "No space left on device" in said
        assert sandbox.leftovers() == []
        before = len([t for t in sandbox.trials(run) if t["status"] == "done"])
        assert 1 <= before < 3
        subprocess.run(["mount", "-o", "remount,size=50m", str(sandbox.results)], check=True)
        again = sandbox.labctl("sweep", "--resume", run.name, "--json")
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["trials"]["done"] == 3
