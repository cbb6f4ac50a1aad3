"""Neighbours that are guests, beside a guest and beside a native run, counted from outside: each a
guest of its own, whose work is a metric, and none outlives its trial."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from labctl.base.paths import guest_name, neighbour_seat
from tests.guest.conftest import Sandbox, sandboxed, wait_for

pytestmark = pytest.mark.alone

STUDY = Path(__file__).with_name("noisy_guests.yaml")
WORDS = ("sweep", str(STUDY), "--accel=tcg", "--quiet", "--seed=1")
NAMES = {guest_name(neighbour_seat(number)) for number in range(2)}
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass
class Guest:
    """A QEMU as its command line and /proc show it."""

    name: str
    uuid: str
    macs: tuple[str, ...]
    sockets: set[str] = field(default_factory=set)
    used: list[tuple[float, float]] = field(default_factory=list)
    """Time and CPU time so far, in seconds."""


@dataclass
class Seen:
    """What was seen from outside, while trials ran. `guests`: by QEMU's process; `at_once`: names
    that ran at the same moment."""

    guests: dict[int, Guest] = field(default_factory=dict)
    at_once: set[frozenset[str]] = field(default_factory=set)

    def look(self, sandbox: Sandbox) -> None:
        now = set()
        for pid in sandbox.guest_pids():
            if guest := self.guests.get(pid) or guest_of(pid):
                self.guests[pid] = guest
                # libvirt makes the sockets and hands them over: the kernel knows which are open.
                guest.sockets |= open_sockets(pid)
                guest.used.append((time.monotonic(), cpu_s(pid)))
                now.add(guest.name)
        self.at_once.add(frozenset(now))

    def neighbours(self) -> list[Guest]:
        return [guest for guest in self.guests.values() if guest.name in NAMES]


def guest_of(pid: int) -> Guest | None:
    """None for one whose command line isn't QEMU's yet, or that has ended."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    name, uuid = re.search(r"guest=([^,\0]+)", text), re.search(r"-uuid\0([^\0]+)", text)
    if name is None or uuid is None:
        return None
    macs = tuple(re.findall(r'"mac":"([^"]+)"', text))
    return Guest(name[1], uuid[1], macs)


def open_sockets(pid: int) -> set[str]:
    """Those that are open now: QEMU opens and closes files meanwhile."""
    inodes, found = set(), set()
    with suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                inodes.add(os.readlink(file))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and f"socket:[{fields[6]}]" in inodes:
            found.add(Path(fields[7]).name)
    return found


def cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:13])) * TICK_S


@dataclass
class Run:
    """A sweep that is over, and what was seen meanwhile."""

    sandbox: Sandbox
    seen: Seen
    leftovers: list[str]

    def trials(self) -> list[tuple[dict[str, Any], Path]]:
        (run,) = self.sandbox.runs()
        paths = sorted(run.glob("trials/*/trial.json"))
        records = [(json.loads(path.read_text()), path.parent) for path in paths]
        return [(record, folder) for record, folder in records if record["status"] == "done"]

    def values(self) -> dict[str, dict[str, float]]:
        """Each arm's samples."""
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for record, folder in self.trials():
            for row in json.loads((folder / "samples.json").read_text())["samples"]:
                labels = ",".join(f"{key}={value}" for key, value in row["labels"].items())
                name = f"{row['metric']}{{{labels}}}" if labels else row["metric"]
                found[record["cell"]["tuning"]][name] = row["value"]
        return found

    def rows(self) -> list[list[dict[str, Any]]]:
        """What neighbours left, by trial."""
        return [
            json.loads((folder / "neighbour.json").read_text())["neighbours"]
            for _, folder in self.trials()
        ]


@pytest.fixture(scope="module")
def run(image: object, kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with sandboxed(kept, tmp_path_factory.mktemp("results")) as sandbox:
        process, seen = sandbox.start(*WORDS), Seen()
        while process.poll() is None:
            seen.look(sandbox)
            time.sleep(0.05)
        out, _ = process.communicate()
        assert process.returncode == 0, out
        yield Run(sandbox, seen, sandbox.leftovers())


def test_two_of_them_run_beside_the_guest_and_beside_the_native_run(run: Run) -> None:
    assert frozenset({*NAMES, guest_name(0)}) in run.seen.at_once
    assert frozenset(NAMES) in run.seen.at_once
    assert sorted(record["cell"]["tuning"] for record, _ in run.trials()) == ["baseline", "native"]
    assert len(run.seen.neighbours()) == 4


def test_each_is_a_guest_of_its_own_to_libvirt_and_to_qemu(run: Run) -> None:
    by_name: dict[str, set[tuple[Any, ...]]] = defaultdict(set)
    for guest in run.seen.guests.values():
        by_name[guest.name].add((guest.uuid, guest.macs, frozenset(guest.sockets)))
    assert {*NAMES, guest_name(0)} <= by_name.keys()
    # The same in each trial, and shared with no other guest.
    told = [by_name[name] for name in sorted({*NAMES, guest_name(0)})]
    assert [len(of_one) for of_one in told] == [1, 1, 1]
    for values in zip(*(next(iter(of_one)) for of_one in told), strict=True):
        assert len(set(values)) == 3
        assert all(values)


def test_each_had_a_cpu_to_compete_for_and_used_it(run: Run) -> None:
    for guest in run.seen.neighbours():
        began, before = guest.used[0]
        ended, after = max(guest.used, key=lambda used: used[1])
        assert after - before > 1.0, (guest.name, ended - began)


def test_what_they_used_is_theirs_and_no_strangers(run: Run) -> None:
    cpus = len(os.sched_getaffinity(0))
    for values in run.values().values():
        assert values["host_cpu{thread=neighbour}"] == pytest.approx(values["neighbour_cpu"])
        assert values["neighbour_cpu"] > 0.3
        # Counted twice, it would be more than there is, however busy others keep the host.
        of_all = [value for name, value in values.items() if name.startswith("host_cpu{thread=")]
        assert sum(of_all) < cpus * 1.05


def test_what_they_got_done_is_a_metric_that_raw_files_alone_give_again(run: Run) -> None:
    before = run.values()
    for values in before.values():
        assert values["neighbour_ops_per_s"] > 0
    (folder,) = run.sandbox.runs()
    done = run.sandbox.labctl("run", "reparse", folder.name)
    assert done.returncode == 0, done.stderr
    assert run.values() == before


def test_they_are_resumed_at_moments_of_their_own_and_the_same_in_each_arm(run: Run) -> None:
    waits = []
    for rows in run.rows():
        assert {row["guest"]["name"] for row in rows} == NAMES
        assert {row["status"] for row in rows} <= {0}
        assert len({row["guest"]["resumed_ns"] for row in rows}) == 2
        waits.append([row["guest"]["waited_s"] for row in rows])
    assert waits[0] == waits[1]
    assert len(set(waits[0])) == 2


def test_nothing_of_them_is_left(run: Run) -> None:
    assert run.leftovers == []


def noisy(sandbox: Sandbox) -> list[int]:
    """Processes of neighbours that run now."""
    guests = {pid: guest_of(pid) for pid in sandbox.guest_pids()}
    return [pid for pid, guest in guests.items() if guest and guest.name in NAMES]


def test_one_that_is_killed_costs_its_trial_which_is_repeated(sandbox: Sandbox) -> None:
    process = sandbox.start(*WORDS)
    wait_for(sandbox.measured_trials, 600, "a measured trial", process)
    (victim, _) = wait_for(
        lambda: pids if len(pids := noisy(sandbox)) == 2 else None, 60, "neighbours", process
    )
    os.kill(victim, signal.SIGKILL)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    trials = sandbox.trials(sandbox.runs()[0])
    assert [trial["status"] for trial in trials].count("done") == 2
    (lost,) = [trial for trial in trials if trial["status"] == "invalid"]
    assert "labctl-noisy-" in lost["reasons"][0]
    assert sandbox.leftovers() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_none_outlives_a_run_that_is_stopped_or_killed_and_the_command_after_it(
    sandbox: Sandbox, number: signal.Signals
) -> None:
    process = sandbox.start(*WORDS, "--duration=900")
    wait_for(sandbox.measured_trials, 600, "a measured trial", process)
    wait_for(lambda: len(noisy(sandbox)) == 2, 60, "two neighbours", process)
    process.send_signal(number)
    process.communicate(timeout=45)  # less than a runner would be waited for
    if number == signal.SIGKILL:
        assert len(noisy(sandbox)) == 2
        done = sandbox.labctl("host", "restore")
        assert done.returncode == 0, done.stderr
    assert noisy(sandbox) == []
    assert sandbox.leftovers() == []
