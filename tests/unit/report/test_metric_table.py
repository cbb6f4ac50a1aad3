"""`labctl report RUN --metric`: what each arm has of a metric."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Labctl, labctl
from tests.unit.synthetic import synthetic_run, write_run

__all__ = ["labctl"]


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABCTL_RESULTS", str(tmp_path))
    write_run(tmp_path / "r1", synthetic_run(effects={"pinned": 2.0}, noise=0.001))
    return tmp_path


def rows(out: str) -> dict[str, list[str]]:
    return {words[0]: words[1:] for line in out.splitlines() if (words := line.split())}


def test_each_arm_stands_with_its_value(labctl: Labctl) -> None:
    said = labctl("report", "r1", "--metric", "events_per_s", "--workload", "sysbench-cpu")
    assert said.code == 0
    found = rows(said.out)
    values = {
        arm: float(found[arm][0].replace(",", "").removesuffix("/s"))
        for arm in ("baseline", "pinned")
    }
    assert values["pinned"] == pytest.approx(2 * values["baseline"], rel=0.02)
    assert "fio" not in said.out


def test_labels_may_be_left_out_and_stand_in_any_order(labctl: Labctl) -> None:
    whole = labctl("report", "r1", "--metric", "host_cpu{thread=emulator}")
    assert whole.code == 0, whole.err
    assert "host CPU (emulator)" in whole.out
    bare = labctl("report", "r1", "--metric", "host_cpu")
    assert "host CPU (emulator)" in bare.out
    assert "host CPU (vcpu)" in bare.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--metric", "evnts_per_s"), "Did you mean 'events_per_s'?"),
        (("--metric", "events_per_s", "--workload", "sysbench"), "Did you mean 'sysbench-cpu'?"),
        (("--workload", "sysbench"), "Did you mean 'sysbench-cpu'?"),
        (("--workload", "sysbench-cpu", "--json"), "leave the formats out"),
        (("--metric", "events_per_s", "--json"), "one table"),
    ],
)
def test_what_cannot_be_shown_is_refused(labctl: Labctl, words: tuple[str, ...], says: str) -> None:
    said = labctl("report", "r1", *words)
    assert said.code == 2
    assert says in said.err
