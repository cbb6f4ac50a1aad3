"""Records of a run folder: what older versions wrote stays readable, and bytes stay the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labctl.store.records.plan_record import ExtensionRecord, PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.records.tolerant import as_far_as_whole, known_keys
from labctl.store.run_folder import RunFolder, RunLog
from tests.unit.example import EXAMPLE

ROOT = Path(__file__).parents[3]
VERSIONS = ROOT / "tests/unit/fixtures/versions"
PLANS = [EXAMPLE / "plan.json", *sorted(VERSIONS.glob("*/plan.json"))]
CELL = {"tuning": "pinned", "workload": "cpu"}


def trial(number: Any = 1, **others: Any) -> dict[str, Any]:
    return {"number": number, "block": 1, "boot": 1, "position": 1, "cell": CELL, **others}


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.parent.name)
def test_a_plan_is_written_as_it_was_read_byte_for_byte(path: Path, tmp_path: Path) -> None:
    record, unfit = as_far_as_whole(PlanRecord, json.loads(path.read_text()))
    assert record is not None
    assert unfit == []
    RunFolder(tmp_path).write_plan(record)
    assert (tmp_path / "plan.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"quick": 1}, ["'quick': expected true or false, got 1"]),
        ({"blocks": True}, ["'blocks': expected a whole number, got True"]),
        ({"seed": 2**63 + 1}, [f"'seed': expected a whole number, got {2**63 + 1}"]),
        (
            {"workloads": {"cpu": {"margin": True}}},
            ["'workloads.cpu.margin': expected a number, got True"],
        ),
        ({"conditions": "all"}, ["'conditions': expected a list, got 'all'"]),
        ({"tunings": {"x": 5}}, ["'tunings.x': expected an object, got 5"]),
        ({"trials": [5]}, ["'trials[0]': expected an object, got 5"]),
        ({"tunings": {"x": {}}}, ["'tunings.x' has no 'kind'"]),
        ({"tunings": {"x": {"kind": 5}}}, ["'tunings.x.kind': expected a text, got 5"]),
        ([], ["'the file': expected an object, got []"]),
    ],
)
def test_what_does_not_fit_is_left_out_and_named(data: Any, said: list[str]) -> None:
    before = copy.deepcopy(data)
    record, unfit = as_far_as_whole(PlanRecord, data)
    assert [text.startswith(start) for text, start in zip(unfit, said, strict=True)] == [True]
    assert record in (None, PlanRecord(workloads={"cpu": {}}), PlanRecord())
    assert data == before, "what was read stays as it was"


def test_items_keep_their_numbers_where_others_before_them_were_left_out() -> None:
    """The second and the third only show when the first have gone."""
    trials = [
        5,
        trial(other=1),
        trial(cell={"tuning": 5}),
        {"number": 3},
        trial(number="x"),
        trial(6),
    ]
    record, unfit = as_far_as_whole(PlanRecord, {"trials": trials})
    assert record is not None
    assert [one.number for one in record.trials] == [1, 1, 0, 6]
    assert sorted(unfit) == [
        "'trials[0]': expected an object, got 5",
        "'trials[2].cell.tuning': expected a text, got 5",
        "'trials[3]' has no 'cell'",
        "'trials[4].number': expected a whole number, got 'x'",
    ]


def test_an_extension_without_its_blocks_is_none() -> None:
    assert as_far_as_whole(ExtensionRecord, {"trials": []}) == (
        None,
        ["'the file' has no 'first_block'"],
    )


def test_null_is_what_is_not_there_and_what_nobody_knows_yet_stays() -> None:
    data = {"seed": None, "tunings": None, "trials": None, "later": {"a": [None]}}
    record, unfit = as_far_as_whole(PlanRecord, data)
    assert unfit == []
    assert record is not None
    assert (record.seed, record.tunings, record.trials) == (None, {}, ())
    assert record.to_json() == {"seed": None, "later": {"a": [None]}}


def test_every_key_of_a_record_is_known_those_inside_of_others_too() -> None:
    assert {"trials", "cell", "exercised_by", "looks"} <= known_keys(PlanRecord)


@pytest.mark.parametrize(
    "path", [path.with_name("run.json") for path in PLANS], ids=lambda p: p.parent.name
)
def test_a_run_of_any_version_is_read_whole_and_kept_as_it_is(path: Path, tmp_path: Path) -> None:
    data = json.loads(path.read_text())
    record, unfit = as_far_as_whole(RunRecord, data)
    assert record is not None
    assert unfit == []
    RunFolder(tmp_path).write_run(record)
    assert json.loads((tmp_path / "run.json").read_text()) == data


def test_what_no_run_json_holds_is_not_written(tmp_path: Path) -> None:
    log = RunLog(RunFolder(tmp_path), RunRecord(status="running"))
    with pytest.raises(ValueError, match="valid dictionary"):
        log.put(status="done", host="this one")
    assert log.record == RunRecord(status="running")
    log.write()
    assert json.loads((tmp_path / "run.json").read_text()) == {"schema": 1, "status": "running"}


@pytest.mark.parametrize(
    "write",
    [
        lambda folder, record: record.but(stauts="done"),
        lambda folder, record: RunLog(folder, record).put(stauts="done"),
        lambda folder, record: RunRecord.made({"stauts": "running"}),
        lambda folder, record: PlanRecord().but(stauts=()),
    ],
    ids=["but", "put", "made", "plan"],
)
def test_a_key_that_no_record_has_is_not_written(
    write: Callable[[RunFolder, RunRecord], Any], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="Record has no 'stauts'"):
        write(RunFolder(tmp_path), RunRecord(status="running"))


def test_what_another_labctl_wrote_stays_where_a_record_is_changed(tmp_path: Path) -> None:
    record, unfit = as_far_as_whole(RunRecord, {"status": "running", "later": {"a": 1}})
    assert record is not None
    assert unfit == []
    log = RunLog(RunFolder(tmp_path), record)
    log.put(status="done")
    log.write()
    written = json.loads((tmp_path / "run.json").read_text())
    assert written == {"schema": 1, "status": "done", "later": {"a": 1}}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"trials": {"planned": 1, "done": "x", "invalid": 0}}, "'trials.done': expected"),
        ({"extended": [{"at": 5, "command": "x"}]}, "'extended[0].at': expected a text, got 5"),
        ({"verifies": "r1"}, "'verifies': expected an object, got 'r1'"),
        ({"tunings": {"x": {"guest": {"sysfs": {"/sys/a": 5}}}}}, "'tunings.x.guest.sysfs./sys/a'"),
        ({"tunings": {"x": {"requires": {"command_line": "x"}}}}, "'tunings.x.requires.command"),
    ],
)
def test_what_a_run_says_amiss_is_left_out_and_named(data: dict[str, Any], said: str) -> None:
    record, unfit = as_far_as_whole(RunRecord, data)
    assert record is not None
    assert unfit[0].startswith(said)
