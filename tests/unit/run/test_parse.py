"""What a guest writes is read by parsers that count with its numbers."""

from __future__ import annotations

import json
import math
import shutil
import struct
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError
from labctl.base.units import Better, Unit
from labctl.run.trials import parse
from labctl.store.samples import Sample, sample_key
from labctl.store.trial import TrialFolder, TrialRecord, TrialStatus
from tests.unit.example import EXAMPLE
from tests.unit.workloads.trials import recorded


def _record(program: str) -> TrialRecord:
    return TrialRecord(
        number=1,
        attempt=1,
        block=1,
        boot=1,
        position=1,
        cell={},
        status=TrialStatus.DONE,
        parsed_with={"program": program, "kind": "guest", "accelerator": "tcg"},
    )


@pytest.mark.parametrize(
    ("program", "file", "name", "was", "now"),
    [
        ("hackbench", "stdout.txt", "hackbench-2.40-pipe-threads.txt", "with 1 ", "with %s "),
        ("oslat", "files/oslat.json", "oslat-2.40-native.json", '"max": ', '"max": %s'),
        ("sockperf", "files/sockperf.csv", "sockperf-3.7-ping-pong-tcg.csv", "\n7, ", "\n7%s, "),
    ],
)
@pytest.mark.parametrize("digits", [400, 5000])
def test_numbers_beyond_any_measure_make_a_trial_invalid_and_no_crash(
    tmp_path: Path, program: str, file: str, name: str, was: str, now: str, digits: int
) -> None:
    folder = TrialFolder(tmp_path)
    text = recorded(name)
    assert was in text
    folder.write_raw("stderr.txt", "")
    folder.write_raw(file, text.replace(was, now % ("9" * digits), 1))
    with pytest.raises(BrokenError, match=str(tmp_path)):
        parse.parse_trial(folder, _record(program))


@pytest.mark.parametrize("change", [{"program": "oslad"}, {"parameters": {"priority": 99}}])
def test_a_record_of_what_no_workload_is_makes_one_trial_invalid(
    tmp_path: Path, change: dict[str, object]
) -> None:
    record = _record("oslat")
    record.parsed_with.update(change)
    with pytest.raises(BrokenError, match=r"trial\.json: "):
        parse.parse_trial(TrialFolder(tmp_path), record)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_metric_that_is_no_number_names_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    made = Sample(
        metric="noise", value=value, unit=Unit.CPUS, better=Better.LOWER, source="files/oslat.json"
    )
    monkeypatch.setattr(parse, "_readings", lambda folder, record: [made])
    with pytest.raises(BrokenError, match=r"files/oslat\.json: noise would be (inf|nan)"):
        parse.parse_trial(TrialFolder(tmp_path), _record("oslat"))


@pytest.mark.parametrize(
    "error",
    [
        KeyError("vcpu"),
        TypeError("no list"),
        RecursionError(),
        MemoryError(),
        struct.error("short"),
    ],
)
def test_a_fault_in_a_parser_makes_one_trial_invalid_and_keeps_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def trips(folder: TrialFolder, record: TrialRecord) -> list[Sample]:
        raise error

    monkeypatch.setattr(parse, "_readings", trips)
    with pytest.raises(BrokenError, match="a fault in labctl, while parsing its files") as caught:
        parse.parse_trial(TrialFolder(tmp_path), _record("oslat"))
    assert str(tmp_path / "fault.txt") in caught.value.message
    assert type(error).__name__ in (tmp_path / "fault.txt").read_text()


_DEFINED_ANEW = "host_cpu{thread=other}"


@pytest.mark.parametrize("number", [f"{number:04}" for number in range(1, 161, 13)])
def test_what_an_older_labctl_parsed_is_parsed_to_the_same_numbers(
    tmp_path: Path, number: str
) -> None:
    folder = TrialFolder(shutil.copytree(EXAMPLE / "trials" / number, tmp_path / number))
    recorded = json.loads((folder.path / "samples.json").read_text())["samples"]
    now = parse.parse_trial(folder, folder.read_record())
    found = {one.key: one.to_json() for one in now if isinstance(one, Sample)}
    for one in recorded:
        key = sample_key(one["metric"], one["labels"])
        if key != _DEFINED_ANEW:
            assert found[key] == one
