"""Conditions that a study declares, on real trials: what neighbours get is counted from outside,
what they did is a metric, and none outlives its trial."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from labctl.base.paths import NOBODY
from labctl.domain.pinning.pin_plan import default_vcpus, pin_plan
from labctl.host.topology import read_topology
from tests.guest.conftest import Sandbox, runs, sandboxed, wait_for

pytestmark = pytest.mark.alone

STUDY = Path(__file__).with_name("conditions.yaml")
CGROUPS = Path("/sys/fs/cgroup")
WORDS = ("sweep", str(STUDY), "--accel=tcg", "--quiet", "--seed=1")


@dataclass
class Seen:
    """What was seen of a neighbour's cgroups from outside, while trials ran."""

    samples: list[tuple[float, int]] = field(default_factory=list)
    """Time and CPU time so far, both in seconds and nanoseconds."""
    quotas: set[tuple[int, int]] = field(default_factory=set)
    users: set[int] = field(default_factory=set)
    cpus: set[str] = field(default_factory=set)


def below(pattern: str) -> list[Path]:
    """What is there of cgroups, which come and go while they are looked for."""
    try:
        return list(CGROUPS.glob(f"**/{pattern}"))
    except OSError:
        return []


def used_ns(group: str) -> int | None:
    for path in below(f"{group}/cpuacct.usage"):
        return _number(path)
    for path in below(f"{group}/cpu.stat"):
        found = _text(path)
        if found.startswith("usage_usec"):
            return int(found.split()[1]) * 1000
    return None


def quota(group: str) -> tuple[int, int] | None:
    """The quota and the weight of the cpu cgroup: microseconds in each tenth of a second, and v2's
    weight."""
    for folder in below(group):
        if (folder / "cpu.cfs_quota_us").exists():
            shares = _number(folder / "cpu.shares")
            limit = _number(folder / "cpu.cfs_quota_us")
            return None if shares is None or limit is None else (limit, shares * 100 // 1024)
        if (folder / "cpu.max").exists() and (text := _text(folder / "cpu.max")):
            weight = _number(folder / "cpu.weight")
            limited = text.split()[0].isdigit()  # else "max"
            return (int(text.split()[0]), weight) if limited and weight is not None else None
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def look(seen: Seen, labctl: int) -> None:
    """Sample what is there now of the neighbour with a quota."""
    for group in {path.name for path in neighbour_groups(labctl)}:
        limits, used = quota(group), used_ns(group)
        if limits is not None and used is not None and limits[0] > 0:
            sample(seen, group, limits, used)


def sample(seen: Seen, group: str, limits: tuple[int, int], used: int) -> None:
    seen.quotas.add(limits)
    seen.samples.append((time.monotonic(), used))
    members = (_text(path).split() for path in below(f"{group}/cgroup.procs"))
    for pid in {pid for pids in members for pid in pids}:
        status = _text(Path("/proc", pid, "status"))
        if "stress-ng" in status.partition("\n")[0]:
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            seen.users.add(int(fields["Uid"].split()[0]))
            seen.cpus.add(fields["Cpus_allowed_list"])


@dataclass
class Run:
    """A sweep that is over, and what was seen of a neighbour meanwhile."""

    sandbox: Sandbox
    seen: Seen
    leftovers: list[str]

    def values(self, condition: str) -> list[dict[str, float]]:
        """The samples of each valid trial of a condition."""
        (run,) = self.sandbox.runs()
        found = []
        for path in sorted(run.glob("trials/*/trial.json")):
            record = json.loads(path.read_text())
            if record["status"] == "done" and record["cell"]["condition"] == condition:
                rows: list[dict[str, Any]] = json.loads(path.with_name("samples.json").read_text())[
                    "samples"
                ]
                found.append({_key(row): row["value"] for row in rows})
        return found


def _key(row: dict[str, Any]) -> str:
    labels = ",".join(f"{key}={value}" for key, value in row["labels"].items())
    return f"{row['metric']}{{{labels}}}" if labels else row["metric"]


@pytest.fixture(scope="module")
def run(image: object, kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with sandboxed(kept, tmp_path_factory.mktemp("results")) as sandbox:
        process, seen = sandbox.start(*WORDS), Seen()
        while process.poll() is None:
            look(seen, process.pid)
            time.sleep(0.05)
        out, _ = process.communicate()
        assert process.returncode == 0, out
        yield Run(sandbox, seen, sandbox.leftovers())


def test_a_neighbour_gets_what_its_cgroup_allows_and_no_more(run: Run) -> None:
    # The weight of three VMs, and half of the kernel's period of 100 ms.
    assert (50_000, 300) in run.seen.quotas
    limited = run.values("half")
    assert len(limited) == 2
    for values in limited:
        assert 0.3 < values["neighbour_cpu"] < 0.56
        assert values["neighbour_ops_per_s"] > 0


def test_the_quota_is_seen_from_outside_to_hold(run: Run) -> None:
    """Over every stretch of a second in which the neighbour worked."""
    shares = []
    for began, before in run.seen.samples:
        later = [(t, n) for t, n in run.seen.samples if 1.0 <= t - began < 1.2 and n > before]
        shares += [(used - before) / 1e9 / (ended - began) for ended, used in later[:1]]
    of_limited = [share for share in shares if share > 0.3]
    assert of_limited, "the neighbour was never seen at work"
    assert any(0.4 < share < 0.56 for share in of_limited)


def test_a_neighbour_runs_without_rights_and_where_the_pin_plan_puts_vcpus(run: Run) -> None:
    topology = read_topology()
    (vcpu,) = pin_plan(topology, default_vcpus(topology), 1).vcpus[:1]
    assert run.seen.users == {NOBODY}
    assert any(str(vcpu) in cpus for cpus in run.seen.cpus)


def test_each_of_several_workloads_is_told_apart_though_its_processes_come_and_go(
    run: Run,
) -> None:
    trials = run.values("messages")
    assert len(trials) == 2
    for values in trials:
        for name in ("hackbench", "cpu-hog"):
            assert values[f"neighbour_cpu{{workload={name}}}"] > 0.02
            assert values[f"neighbour_ops_per_s{{workload={name}}}"] > 0
        both = sum(values[f"neighbour_cpu{{workload={name}}}"] for name in ("hackbench", "cpu-hog"))
        assert values["host_cpu{thread=neighbour}"] == pytest.approx(both)
        # What came and went passes for no stranger: that would make more of the CPUs' time than
        # there is, since a hog keeps one of them busy. Others may be at work here.
        used = sum(value for key, value in values.items() if key.startswith("host_cpu{thread="))
        assert values["host_cpu{thread=other}"] < 0.3 or used < 1.02 * (os.cpu_count() or 1)


def test_servers_at_one_port_do_not_meet_and_answer_their_own_clients(run: Run) -> None:
    trials = run.values("served")
    assert len(trials) == 2
    assert all(values["neighbour_ops_per_s"] > 0 for values in trials)


def test_raw_files_alone_give_the_same_samples_again(run: Run) -> None:
    before = [run.values(name) for name in ("half", "messages", "served")]
    (folder,) = run.sandbox.runs()
    done = run.sandbox.labctl("run", "reparse", folder.name)
    assert done.returncode == 0, done.stderr
    assert [run.values(name) for name in ("half", "messages", "served")] == before


def test_nothing_of_it_is_left(run: Run) -> None:
    assert run.leftovers == []


def neighbour_groups(labctl: int) -> list[Path]:
    return below(f"labctl-neighbour-*-{labctl}")


def test_neighbours_of_a_run_that_is_killed_end_with_it_and_the_next_command_clears_up(
    sandbox: Sandbox,
) -> None:
    process = sandbox.start(*WORDS, "--duration=900", "--condition=messages")
    wait_for(sandbox.measured_trials, 600, "a measured trial", process)
    groups = wait_for(lambda: neighbour_groups(process.pid), 60, "a neighbour", process)
    pids = {int(pid) for path in groups for pid in _text(path / "cgroup.procs").split()}
    assert pids
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not any(map(runs, pids)), 20, "the end of the neighbours")
    done = sandbox.labctl("host", "restore")
    assert done.returncode == 0, done.stderr
    assert neighbour_groups(process.pid) == []
    left = [one for one in sandbox.leftovers() if "/running/" not in one]
    assert left == []
