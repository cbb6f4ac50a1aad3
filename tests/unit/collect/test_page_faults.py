from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.collect.collector import Edge, ThreadRef
from labctl.collect.threads import page_faults
from labctl.collect.threads.thread_snapshots import ThreadSnapshots
from tests.unit.collect.trials import TCG, Change, altered, reasons, same, trial, values

STAT = "4242 (CPU 0/KVM :) x) S 1 4242 4242 0 -1 4194624 {minor} 7 {major} 0 120 30 0 0 20 0 4 0 9"
MINOR, MAJOR = "page_faults{kind=minor,of=vcpu}", "page_faults{kind=major,of=vcpu}"


def looked_at(data: Any) -> None:
    """Snapshots of a labctl that looks at faults: 500 minor ones and 2 major ones per vCPU."""
    for taken, minor, major in ((data["before"], 1000, 1), (data["after"], 1500, 3)):
        for row in taken["threads"]:
            if row["role"] == "vcpu":
                row["stat"] = STAT.format(minor=minor, major=major)


def _parse(folder: Path, *changes: Change) -> list[Any]:
    def change(data: Any) -> None:
        for one in changes:
            one(data)

    return list(page_faults.parse(trial(folder, host=altered(TCG, change))))


def test_faults_are_counted_over_the_window(tmp_path: Path) -> None:
    data = altered(TCG, same)
    seconds = (data["after"]["monotonic_ns"] - data["before"]["monotonic_ns"]) / 1e9
    vcpus = sum(row["role"] == "vcpu" for row in data["after"]["threads"])
    found = values(_parse(tmp_path, looked_at))
    assert found == {
        MINOR: pytest.approx(vcpus * 500 / seconds),
        MAJOR: pytest.approx(vcpus * 2 / seconds),
    }


def test_snapshots_of_an_older_labctl_have_none(tmp_path: Path) -> None:
    assert "older labctl" in reasons(_parse(tmp_path))[MINOR]


def test_a_vcpu_that_came_or_went_leaves_it_unknown(tmp_path: Path) -> None:
    def goes(data: Any) -> None:
        data["after"]["threads"] = [t for t in data["after"]["threads"] if t["role"] != "vcpu"]

    assert "no vCPU thread" in reasons(_parse(tmp_path, looked_at, goes))[MAJOR]


def test_natively_there_are_none(tmp_path: Path) -> None:
    found = reasons(_parse(tmp_path, lambda data: data.update(kind="native")))
    assert found == dict.fromkeys((MINOR, MAJOR), "natively there is no vCPU thread.")


@pytest.mark.parametrize("stat", ["", "1 (x) S 1", STAT.format(minor="-1", major=0)])
def test_what_is_no_stat_is_an_error(stat: str) -> None:
    with pytest.raises(BrokenError, match="a thread's stat"):
        page_faults.faults(stat, "host.json")


def test_a_snapshot_keeps_each_threads_stat(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu 1 2 3 4 5 6 7 8\n")
    for tid in (1, 2):
        folder = tmp_path / "1" / "task" / str(tid)
        folder.mkdir(parents=True)
        for name in ("schedstat", "status", "comm"):
            (folder / name).write_text("x")
        (folder / "stat").write_text(STAT.format(minor=5, major=0))
    threads = [
        ThreadRef(pid=1, tid=tid, role=role, index=0) for tid, role in ((1, "vcpu"), (2, "vhost"))
    ]
    vcpu, vhost = ThreadSnapshots(lambda: threads, tmp_path)(Edge.OPENS)["threads"]
    assert page_faults.faults(vcpu["stat"], "") == {"minor": 5, "major": 0}
    assert page_faults.faults(vhost["stat"], "") == {"minor": 5, "major": 0}
