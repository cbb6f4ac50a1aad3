from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.collect.threads import foreign_cpu
from labctl.collect.threads.task_clock import KEY
from labctl.store.samples import Reading
from tests.unit.collect.trials import (
    RUNNER,
    TCG,
    Change,
    altered,
    reasons,
    recorded,
    same,
    trial,
    values,
)

OTHER = "host_cpu{thread=other}"
WINDOW_S = 2.0
S = 1_000_000_000

HOGS = (11, 12)
VCPU, EMULATOR, LABCTL = 21, 22, 31


def _row(tid: int, role: str, cpus: str | None, run_s: float) -> dict[str, Any]:
    allowed = f"Cpus_allowed_list:\t{cpus}\n" if cpus is not None else ""
    switches = "voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t7\n"
    return {
        "pid": tid,
        "tid": tid,
        "role": role,
        "index": 0,
        "comm": role,
        "schedstat": f"{round((1 + run_s) * S)} 0 1\n",
        "status": allowed + switches,
    }


def _clock(tid: int, role: str, on: dict[int, float], everywhere: float) -> dict[str, Any]:
    counted = {str(cpu): round((0.5 + run_s) * S) for cpu, run_s in on.items()}
    return {
        "pid": tid,
        "tid": tid,
        "role": role,
        "on": counted,
        "everywhere": round(everywhere * S),
    }


def _stat(*idle_s: float) -> str:
    """CPUs of 100 s, so much of it idle."""
    lines = [f"cpu{n} 0 0 0 {round(s * 100)} 0 0 0 0 0 0" for n, s in enumerate(idle_s)]
    return "\n".join(["cpu  0 0 0 0 0 0 0 0 0 0", *lines, ""])


def host(
    *,
    trial_cpus: str = "1",
    kind: str = "guest",
    busy: tuple[float, ...] = (2.0, 2.0),
    ran: dict[int, tuple[str, str | None, float]],
    clocks: dict[int, tuple[dict[int, float], float]] | None = None,
) -> dict[str, Any]:
    """A window of two seconds. `busy`: seconds of each CPU; `ran`: by thread its role, affinity
    and seconds; `clocks`: by thread its seconds on some CPUs, and everywhere."""

    def taken(end: bool) -> dict[str, Any]:
        idle = (10 + (WINDOW_S - one if end else 0) for one in busy)
        counted = None
        if clocks is not None:
            counted = [
                _clock(
                    tid,
                    ran[tid][0],
                    {cpu: run_s if end else 0.0 for cpu, run_s in on.items()},
                    0.5 + (everywhere if end else 0.0),
                )
                for tid, (on, everywhere) in clocks.items()
            ]
        return {
            "monotonic_ns": round((100 + (WINDOW_S if end else 0)) * S),
            "proc_stat": _stat(*idle),
            "threads": [
                _row(tid, role, cpus, run_s if end else 0.0)
                for tid, (role, cpus, run_s) in ran.items()
            ],
            "processes": {},
            **({KEY: counted} if counted is not None else {}),
        }

    return {
        "kind": kind,
        "clk_tck": 100,
        "trial_cpus": trial_cpus,
        "before": taken(False),
        "after": taken(True),
    }


# Two CPUs, both always busy. CPU 1: vCPU 0.9 s, hogs 0.3 s and somebody else 0.8 s of the two.
PINNED = {
    HOGS[0]: ("neighbour", "0-1", 1.4),
    HOGS[1]: ("neighbour", "0-1", 0.9),
    VCPU: ("vcpu", "1", 0.9),
}
PINNED_CLOCKS = {HOGS[0]: ({1: 0.2}, 1.4), HOGS[1]: ({1: 0.1}, 0.9)}


def _parse(folder: Path, host_json: Any, **files: Any) -> list[Reading]:
    return list(foreign_cpu.parse(trial(folder, host=host_json, **files)))


def test_what_hogs_ran_elsewhere_hides_nobody_on_the_trials_cpus(tmp_path: Path) -> None:
    found = values(_parse(tmp_path, host(ran=PINNED, clocks=PINNED_CLOCKS)))
    assert found[OTHER] == pytest.approx(0.4)
    assert found["host_busy"] == pytest.approx(1.0)


def test_a_clock_on_the_cpus_outside_tells_the_same(tmp_path: Path) -> None:
    clocks = {HOGS[0]: ({0: 1.2}, 1.4), HOGS[1]: ({0: 0.8}, 0.9)}
    found = values(_parse(tmp_path, host(ran=PINNED, clocks=clocks)))
    assert found[OTHER] == pytest.approx(0.4)


def test_an_arm_that_roams_sees_the_same_disturbance(tmp_path: Path) -> None:
    # The same seconds, seen by an arm that may use both CPUs: it needs no clock.
    roams = {tid: (role, "0-1", run_s) for tid, (role, _, run_s) in PINNED.items()}
    found = values(_parse(tmp_path, host(trial_cpus="0-1", ran=roams, clocks={})))
    assert found[OTHER] == pytest.approx((4.0 - 3.2) / WINDOW_S)


def test_what_a_hypervisor_took_is_foreign_to_pinned_and_roaming_arms_alike(
    tmp_path: Path,
) -> None:
    # A task clock goes on while the host's own CPU is taken away: a quarter of the hogs' time.
    clocks = {HOGS[0]: ({1: 0.2 * 4 / 3}, 1.4 * 4 / 3), HOGS[1]: ({1: 0.1 * 4 / 3}, 0.9 * 4 / 3)}
    found = values(_parse(tmp_path, host(ran=PINNED, clocks=clocks)))
    assert found[OTHER] == pytest.approx(0.4)


def test_natively_the_workload_is_on_the_trials_cpus(tmp_path: Path) -> None:
    counts = json.loads(recorded(RUNNER))
    counts["rusage"].update(utime_s=0.8, stime_s=0.1)
    # Over the host's window, which is the longer one.
    counts["duration_s"] = 1.9
    hogs = {tid: PINNED[tid] for tid in HOGS}
    native = host(kind="native", ran=hogs, clocks=PINNED_CLOCKS)
    assert values(_parse(tmp_path, native, runner=counts))[OTHER] == pytest.approx(0.4)


def test_threads_that_may_not_use_the_trials_cpus_take_nothing_from_them(tmp_path: Path) -> None:
    ran = {VCPU: ("vcpu", "1", 1.2), 41: ("peer", "0", 1.9), LABCTL: ("labctl", "0", 0.1)}
    found = values(_parse(tmp_path, host(ran=ran, clocks={})))
    assert found[OTHER] == pytest.approx(0.4)


def test_cpus_that_are_not_there_matter_to_no_affinity(tmp_path: Path) -> None:
    ran = {VCPU: ("vcpu", "1", 1.2), LABCTL: ("labctl", "1-127", 0.1)}
    found = values(_parse(tmp_path, host(ran=ran, clocks={})))
    assert found[OTHER] == pytest.approx(0.35)


def test_a_hog_born_meanwhile_is_counted_with_its_parent(tmp_path: Path) -> None:
    data = host(ran=PINNED, clocks=PINNED_CLOCKS)
    # A quarter of the second hog's time was a child's: its clock holds both.
    data["after"]["threads"][1]["schedstat"] = f"{round(1.7 * S)} 0 1\n"
    born = {**_row(13, "neighbour", "0-1", 0.0), "schedstat": f"{round(0.2 * S)} 0 1\n"}
    data["after"]["threads"].append(born)
    assert values(_parse(tmp_path, data))[OTHER] == pytest.approx(0.4)


def test_an_affinity_that_changed_holds_for_neither_half(tmp_path: Path) -> None:
    data = host(ran=PINNED | {EMULATOR: ("emulator", "1", 0.2)}, clocks=PINNED_CLOCKS)
    row = data["after"]["threads"][-1]
    row["status"] = row["status"].replace("list:\t1", "list:\t0")
    assert "emulator threads were not bound" in reasons(_parse(tmp_path, data))[OTHER]


def test_a_difference_below_0_is_not_cut_off(tmp_path: Path) -> None:
    found = values(_parse(tmp_path, host(ran={VCPU: ("vcpu", "1", 1.2)}, busy=(0.0, 1.1))))
    assert found[OTHER] == pytest.approx(-0.05)


def test_where_the_kernel_refuses_clocks_it_is_unavailable_with_the_reason(
    tmp_path: Path,
) -> None:
    data = host(ran=PINNED, clocks=PINNED_CLOCKS)
    for taken in (data["before"], data["after"]):
        taken[KEY] = {"unavailable": "perf_event_open is refused (Permission denied)."}
    found = _parse(tmp_path, data)
    assert reasons(found)[OTHER] == (
        "neighbour threads were not bound to the trial's CPUs, and their CPU time there is "
        "unknown: perf_event_open is refused (Permission denied)."
    )
    assert "host_busy" in values(found)


def test_in_an_old_run_whose_hogs_roamed_it_is_unavailable(tmp_path: Path) -> None:
    old = {tid: (role, None, run_s) for tid, (role, _, run_s) in PINNED.items()}
    found = reasons(_parse(tmp_path, host(ran=old)))
    assert "an older labctl measured this, without counts by CPU" in found[OTHER]


def test_in_an_old_run_whose_arm_had_all_cpus_it_is_what_it_was(tmp_path: Path) -> None:
    old = {tid: (role, None, run_s) for tid, (role, _, run_s) in PINNED.items()}
    found = values(_parse(tmp_path, host(trial_cpus="0-1", ran=old)))
    assert found[OTHER] == pytest.approx((4.0 - 3.2) / WINDOW_S)


def test_what_labctl_itself_used_is_too_little_for_its_place_to_matter(tmp_path: Path) -> None:
    def used(seconds: float) -> list[Reading]:
        ran = {VCPU: ("vcpu", None, 1.2), LABCTL: ("labctl", None, seconds)}
        return _parse(tmp_path, host(ran=ran))

    # Nothing of it is taken off.
    assert values(used(0.015))[OTHER] == pytest.approx(0.4)
    assert OTHER in reasons(used(0.025))


def test_an_ended_thread_counts_where_it_might_run(tmp_path: Path) -> None:
    def ended(cpus: str) -> float:
        data = host(ran=PINNED | {EMULATOR: ("emulator", cpus, 0.0)}, clocks=PINNED_CLOCKS)
        data["after"]["threads"].pop()
        for taken, ticks in ((data["before"], 0), (data["after"], 20)):
            fields = ["S", *["0"] * 10, str(ticks), "0"]
            taken["processes"] = {str(EMULATOR): f"{EMULATOR} (qemu) {' '.join(fields)}"}
        return values(_parse(tmp_path, data))[OTHER]

    assert ended("1") == pytest.approx(0.3)
    assert ended("0") == pytest.approx(0.4)


def test_a_process_that_ended_whole_makes_it_unavailable(tmp_path: Path) -> None:
    data = host(ran=PINNED, clocks=PINNED_CLOCKS)
    data["after"]["threads"].pop(0)
    assert "ended during the trial" in reasons(_parse(tmp_path, data))[OTHER]


def _tcg(folder: Path, change: Change = same) -> float:
    return values(_parse(folder, altered(TCG, change)))[OTHER]


def _move(data: Any, field: int, ticks: int) -> None:
    """Take ticks of CPU 0's idle time, and give them to another field if it is one."""
    text = data["after"]["proc_stat"]
    line = next(line for line in text.splitlines() if line.startswith("cpu0"))
    fields = line.split()
    fields[4] = str(int(fields[4]) - ticks)
    if field:
        fields[field] = str(int(fields[field]) + ticks)
    data["after"]["proc_stat"] = text.replace(line, " ".join(fields))


def test_waiting_for_a_disk_is_idle_time(tmp_path: Path) -> None:
    assert _tcg(tmp_path, lambda data: _move(data, 5, 100)) == _tcg(tmp_path)


def test_what_is_busy_and_nobodys_is_foreign(tmp_path: Path) -> None:
    usual, more = _tcg(tmp_path), _tcg(tmp_path, lambda data: _move(data, 0, 100))
    assert usual > 0
    assert more - usual == pytest.approx(1 / WINDOW_S, rel=0.05)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(trial_cpus="7"),
        lambda d: d["after"].update({KEY: [{"tid": 1}]}),
        lambda d: d["after"].update({KEY: ["none"]}),
        lambda d: d["after"].update({KEY: 3}),
        lambda d: d["after"][KEY][0].update(on=3),
        lambda d: d["after"][KEY][0].update(everywhere="long"),
        lambda d: d["before"][KEY].pop(),
        lambda d: d["before"][KEY][0].update(on={}),
        lambda d: d["after"]["threads"][0].update(
            status=d["after"]["threads"][0]["status"].replace("0-1", "1-0")
        ),
    ],
)
def test_clocks_and_affinities_that_are_not_whole_are_an_error_that_names_the_file(
    tmp_path: Path, change: Change
) -> None:
    data = host(ran=PINNED, clocks=PINNED_CLOCKS)
    change(data)
    with pytest.raises(BrokenError, match=r"host\.json"):
        _parse(tmp_path, data)


def test_natively_a_missing_side_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BrokenError, match=r"runner\.json"):
        _parse(tmp_path, host(kind="native", ran={}, clocks={}))


def _beside(host_json: Any, cpus: str, used_s: float) -> Any:
    """The same with a cgroup's account of neighbours that may use these CPUs."""
    for when, cpu_s in (("before", 0.0), ("after", used_s)):
        row = {"workload": "hackbench", "cpus": cpus, "cpu_ns": round((3 + cpu_s) * S)}
        host_json[when]["neighbours"] = [row]
    return host_json


# A vCPU for 0.9 s, and a thread of a neighbour that began in the window.
BORN = {VCPU: ("vcpu", "1", 0.9), HOGS[0]: ("neighbour", "1", 0.1)}


def test_neighbours_that_come_and_go_are_known_by_their_cgroup(tmp_path: Path) -> None:
    host_json = _beside(host(ran=BORN), "1", 1.1)
    gone = _row(99, "neighbour", "1", 0.0)
    host_json["before"]["threads"].append(gone)
    assert values(_parse(tmp_path, host_json))[OTHER] == pytest.approx(0.0)


def test_neighbours_that_keep_off_the_trials_cpus_took_nothing_of_them(tmp_path: Path) -> None:
    host_json = _beside(host(ran=BORN), "0", 1.1)
    assert values(_parse(tmp_path, host_json))[OTHER] == pytest.approx(1.1 / WINDOW_S)


def test_the_share_of_roaming_neighbours_is_that_of_their_task_clocks(tmp_path: Path) -> None:
    ran = {**BORN, HOGS[0]: ("neighbour", "0-1", 0.1)}
    host_json = _beside(host(ran=ran, clocks={HOGS[0]: ({1: 0.5}, 2.0)}), "0-1", 2.0)
    # A quarter of two seconds beside the vCPU.
    assert values(_parse(tmp_path, host_json))[OTHER] == pytest.approx((2.0 - 0.9 - 0.5) / WINDOW_S)


@pytest.mark.parametrize("rows", [5, [{}], [{"workload": "x", "cpus": "?", "cpu_ns": 1}]])
def test_an_account_that_is_none_is_an_error_that_names_the_file(
    tmp_path: Path, rows: object
) -> None:
    host_json = host(ran=BORN)
    for when in ("before", "after"):
        host_json[when]["neighbours"] = rows
    with pytest.raises(BrokenError, match=r"host\.json"):
        _parse(tmp_path, host_json)
