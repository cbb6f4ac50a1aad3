"""The recorded run with VM exits, `results/example-kvm`: each count is added up again from what
bpftrace printed, and its page says what such a host's times are worth."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labctl.analysis.judge import judge
from labctl.report.page.report_page import page
from labctl.run.commands.verify import verify
from labctl.store.run_folder import LoadedRun, RunFolder
from labctl.store.run_places import find_run

RESULTS = Path(__file__).parents[3] / "results"
FIXTURES = Path(__file__).parents[1] / "fixtures"
ARMS = {"native", "baseline", "control", "handicap", "pinned"}
NAMES = {96: "interrupt", 100: "vintr", 114: "cpuid", 120: "hlt", 124: "msr", 1024: "npf"}
"""Of the kernel's arch/x86/include/uapi/asm/svm.h."""


@pytest.fixture(scope="module")
def folder() -> Iterator[RunFolder]:
    with find_run(RESULTS, str(RESULTS / "example-kvm.tar.xz")).unpacked() as unpacked:
        yield unpacked


@pytest.fixture(scope="module")
def short() -> Iterator[RunFolder]:
    """A run of one block in the emulated host of Debian 13, without the host's name."""
    with find_run(FIXTURES, str(FIXTURES / "kvm-debian-13.tar.xz")).unpacked() as unpacked:
        yield unpacked


@pytest.fixture(scope="module")
def run(folder: RunFolder) -> LoadedRun:
    return folder.load()


def _maps(trial: Path) -> dict[str, Any]:
    """The last print of each of bpftrace's maps."""
    lines = (trial / "trace/exits.bpftrace.jsonl").read_text().splitlines()
    maps: dict[str, Any] = {}
    for entry in map(json.loads, filter(str.strip, lines)):
        maps.update(entry["data"] if entry["type"] == "map" else {})
    return maps


def _samples(trial: Path) -> dict[str, float]:
    stored = json.loads((trial / "samples.json").read_text())["samples"]
    return {
        one["metric"] + "".join(f"{{{key}={name}}}" for key, name in one["labels"].items()): one[
            "value"
        ]
        for one in stored
    }


def test_every_arm_has_its_ten_blocks(run: LoadedRun) -> None:
    assert set(run.plan.tunings) == ARMS
    assert run.plan.blocks == 10
    assert run.run.status == "done"
    assert run.run.accelerator == "kvm"


def test_no_file_of_it_was_changed(folder: RunFolder) -> None:
    assert verify(folder).differences == ()


def test_a_host_of_debian_13_recorded_the_same(short: RunFolder) -> None:
    run = short.load()
    assert verify(short).differences == ()
    assert [trial.record.status for trial in run.trials] == ["done"] * 3
    host = run.run.host
    assert host["os"] == "Debian GNU/Linux 13 (trixie)"
    assert host["qemu"].startswith("10.0.")
    assert host["libvirt"].startswith("11.3.")
    assert host["perf"].startswith("6.12.")
    assert [text for text in judge(run).warnings if "host itself was emulated" in text]


@pytest.mark.parametrize(("recorded", "least"), [("folder", 40), ("short", 2)])
def test_exits_are_what_bpftrace_printed_and_their_total_is_their_sum(
    recorded: str, least: int, request: pytest.FixtureRequest
) -> None:
    folder: RunFolder = request.getfixturevalue(recorded)
    guests = 0
    for trial in sorted((folder.path / "trials").iterdir()):
        if json.loads((trial / "trial.json").read_text())["status"] != "done":
            continue  # repeated, and counted nowhere
        told = json.loads((trial / "trace/exits.json").read_text())
        samples = _samples(trial)
        if told["tool"] == "none":
            assert samples["exits"] == 0, "natively"
            continue
        guests += 1
        maps = _maps(trial)
        window = (int(maps["@closed"]) - int(maps["@opened"])) / 1e9
        by_name: dict[str, int] = {}
        for key, count in maps["@exits"].items():
            name = NAMES[int(key.split(",")[2])]
            by_name[name] = by_name.get(name, 0) + count
        found = {
            key.removeprefix("exits{reason=").rstrip("}"): round(value * window)
            for key, value in samples.items()
            if key.startswith("exits{reason=")
        }
        assert found == by_name, trial.name
        total = sum(by_name.values())
        assert samples["exits"] * window == pytest.approx(total)
        assert samples["exits{vcpu=0}"] == samples["exits"], "of one vCPU"
        assert samples["exits_per_op"] == pytest.approx(total / samples["operations"])
        before, after = (sum(told["total"][when].values()) for when in ("before", "after"))
        assert samples["exits_agreement"] == pytest.approx(total / (after - before))
        assert 0.98 <= samples["exits_agreement"] <= 1, trial.name
    assert guests >= least


def test_its_report_says_that_the_host_was_emulated(run: LoadedRun) -> None:
    [said] = [text for text in judge(run).warnings if "host itself was emulated" in text]
    assert "nothing about other hosts" in said


def test_its_answer_calls_the_host_emulated_and_not_its_guests(run: LoadedRun) -> None:
    answer = judge(run).decision
    assert "the host itself was emulated" in answer.sure
    assert "TCG" not in answer.sure
    [step] = answer.next
    assert "on a host with real CPUs" in step.text


def test_its_page_is_as_it_is_made_now(
    folder: RunFolder, run: LoadedRun, regenerate_golden: bool
) -> None:
    text = page(run, judge(run), folder.path)
    shown = RESULTS / "example-kvm.html"
    if regenerate_golden:
        shown.write_text(text)
    # The last digits of a sum are the CPU's that added up.
    now, then = (re.sub(r"\d+", "0", one).splitlines() for one in (text, shown.read_text()))
    assert now == then, "run pytest with --regenerate-golden and read the difference"
