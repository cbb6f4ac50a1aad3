import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from labctl.base.errors import UsageError
from labctl.base.tuning import Kind, Level
from labctl.cli import main
from labctl.collect.collector import Here
from labctl.run.collectors import collecting
from labctl.run.commands import overhead
from labctl.run.commands.overhead import NOTHING, OverheadRequest, Overheads, Rates
from labctl.store.collecting_costs import known
from labctl.store.records.run_record import RunRecord

HERE = RunRecord(labctl="1", accelerator="tcg")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """perf and bpftrace take their time to be tried."""
    tried = {"host-trace": "tracing is not permitted.", "exits": None}
    known = tuple(
        replace(c, why_unavailable=partial(_said, tried[c.name])) if c.name in tried else c
        for c in collecting.COLLECTORS
    )
    monkeypatch.setattr(collecting, "COLLECTORS", known)


def _said(reason: str | None, _: Here) -> str | None:
    return reason


def _labctl(state: Path, *words: str) -> Result:
    return CliRunner().invoke(main.cli, ["--state-dir", str(state), "collectors", *words])


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[OverheadRequest]:
    """What was asked to be measured; every level costs a tenth natively and nothing in a guest."""
    asked: list[OverheadRequest] = []

    def measure(request: OverheadRequest, listener: Callable[..., None]) -> Overheads:
        asked.append(request)
        bare = tuple(1000.0 + block for block in range(request.pairs))
        native = {
            level: tuple(0.9 * rate + block % 2 for block, rate in enumerate(bare))
            for level in request.levels
        }
        guest = dict.fromkeys(request.levels, bare)
        sides = (
            Rates(
                side="native",
                by_arm={NOTHING: bare, **native},
                labctl_cpu=dict.fromkeys(request.levels, (0.001, 0.003)),
                problems={},
            ),
            Rates(
                side="guest",
                by_arm={NOTHING: bare, **guest},
                labctl_cpu=dict.fromkeys(request.levels, ()),
                problems={"trace": ("the guest has no tracefs.",)},
            ),
        )
        return Overheads(
            workload="sysbench-cpu",
            seconds=1.0,
            sides=tuple(rates for rates in sides if rates.side in request.sides),
            here=HERE,
        )

    monkeypatch.setattr(overhead, "measure_overheads", measure)
    return asked


def _document(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_every_collector_is_listed_with_its_level_and_works_or_says_why_not(
    tmp_path: Path,
) -> None:
    found = _document(_labctl(tmp_path, "--json"))["collectors"]
    assert {entry["level"] for entry in found} <= set(Level)
    assert {entry["name"] for entry in found} == {c.name for c in collecting.COLLECTORS}
    for entry in found:
        assert entry["works"] is (entry["reason"] is None)


def test_without_an_image_what_needs_one_says_so(tmp_path: Path) -> None:
    found = {c["name"]: c for c in _document(_labctl(tmp_path, "--json"))["collectors"]}
    assert "image build" in found["guest-trace"]["reason"]


def test_an_emulated_guest_has_no_exits_and_no_guest_events() -> None:
    at = Here(accelerator="tcg", tree=None)
    why = {known.name: known.why_unavailable for known in collecting.COLLECTORS}
    assert why["kvm-stats"](at) == "emulated: no VM exits."
    assert why["perf-stat (guest)"](at) is not None


def test_the_table_gives_the_reasons_below(tmp_path: Path) -> None:
    result = _labctl(tmp_path, "--accel", "tcg")
    assert result.exit_code == 0
    assert "kvm-stats: emulated: no VM exits." in result.stdout
    assert max(map(len, result.stdout.splitlines()[:10])) <= 80


def test_what_was_measured_is_shown_and_kept(
    tmp_path: Path, measured: list[OverheadRequest]
) -> None:
    document = _document(
        _labctl(tmp_path, "--overhead", "--level", "trace", "--pairs", "10", "--json")
    )
    assert measured[0].levels == (Level.TRACE,)
    native, guest = document["overhead"]["costs"]
    assert native["estimate"] == pytest.approx(0.0995, abs=1e-3)
    assert native["low"] < native["estimate"] < native["high"]
    assert len(native["with"]) == len(native["without"]) == 10
    assert guest["estimate"] == 0
    assert (native["labctl_cpu"], guest["labctl_cpu"]) == (0.002, None)
    assert guest["problems"] == ["the guest has no tracefs."]
    kept = known(tmp_path / "collecting-costs.json", HERE, "trace")
    assert [cost.side for cost in kept] == ["native", "guest"]


def test_one_side_alone_is_measured_and_the_other_is_not_forgotten(
    tmp_path: Path, measured: list[OverheadRequest]
) -> None:
    asked = ("--overhead", "--level", "counters", "--quiet")
    assert _labctl(tmp_path, *asked).exit_code == 0
    document = _document(_labctl(tmp_path, *asked, "--side", "guest", "--pairs", "11", "--json"))
    assert measured[1].sides == (Kind.GUEST,)
    assert [cost["side"] for cost in document["overhead"]["costs"]] == ["guest"]
    kept = known(tmp_path / "collecting-costs.json", HERE, "counters")
    assert {cost.side: cost.pairs for cost in kept} == {"native": 20, "guest": 11}


def test_fewer_than_ten_pairs_are_shown_and_not_kept(
    tmp_path: Path, measured: list[OverheadRequest]
) -> None:
    result = _labctl(tmp_path, "--overhead", "--pairs", "2", "--quiet")
    assert "0.20 % of a CPU" in result.stdout
    assert "Not kept for reports: 2 pairs; at least 10" in result.stdout
    assert "trace, guest: a collector recorded nothing: the guest has no tracefs." in result.stdout
    assert not (tmp_path / "collecting-costs.json").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--level", "trace"),
        ("--side", "guest"),
        ("--pairs", "9"),
        ("--seconds", "2"),
        ("--workload", "fio"),
        ("--seed", "2"),
    ],
)
def test_what_is_for_measuring_alone_names_the_option_that_measures(
    tmp_path: Path, words: tuple[str, str]
) -> None:
    result = _labctl(tmp_path, *words)
    assert result.exit_code != 0
    assert f"{words[0]} has no effect without --overhead" in str(result.exception)
    assert isinstance(result.exception, UsageError)


def test_one_pair_is_no_pair(tmp_path: Path) -> None:
    assert _labctl(tmp_path, "--overhead", "--pairs", "1").exit_code == 2
