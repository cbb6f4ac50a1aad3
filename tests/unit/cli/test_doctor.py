"""`labctl doctor` as a command: exit codes, JSON, a study's needs, a run's verdicts; no change."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labctl.base.paths import StatePaths
from labctl.host import facts as facts_module
from labctl.host.accelerator import Accelerator
from labctl.host.doctor import CHECKS
from labctl.host.facts import host_facts
from labctl.run.collectors import trace_room
from labctl.run.commands.host_checks import CHECKS as STUDY_CHECKS
from labctl.run.planning import images
from labctl.store.run_folder import LoadedRun
from tests.unit.analysis.alter import with_run
from tests.unit.synthetic import WORKLOADS, synthetic_run, write_run

from .conftest import Labctl

TCG = Accelerator(name="tcg", reason="Guests are emulated (TCG), because this is a test.")
STUDY = """\
title: A study
description: What a test asks of the host.
roles: {native: native, baseline: baseline, control: control, handicap: handicap}
tunings: [native, baseline, control, handicap, pinned+fifo]
workloads:
  w:
    program: sysbench-cpu
    duration_s: 1
    primary: events_per_s
    margin_percent: 5
conditions: [quiet]
blocks: 10
blocks_per_boot: 1
guest: {image: debian-13, vcpus: auto, memory_mib: MIB}
limits: {attempts: 3, other_cpu: 0.1, warmup_cap_s: 30}
"""
SCHEDULING = {"vcpu_sched": {"policy": "fifo", "priority": 1}}
TUNINGS: dict[str, dict[str, Any]] = {
    "baseline": {"vcpu_sched": None, "disk": {"cache": None}},
    "pinned+fifo": {**SCHEDULING, "disk": {"cache": None}},
    "cache-none": {"vcpu_sched": None, "disk": {"cache": "none"}},
}


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StatePaths:
    """A state folder and a lab of the test's own; nothing is booted to know the accelerator."""
    monkeypatch.setenv("LABCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LABCTL_RESULTS", str(tmp_path / "results"))
    (tmp_path / "lab").mkdir()
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path / "lab"))
    monkeypatch.setattr(images, "accelerator_here", lambda *_: TCG)
    # Guests of other tests come and go.
    monkeypatch.setattr(facts_module, "running_machines", list)
    return StatePaths.default()


def study(tmp_path: Path, memory_mib: int) -> str:
    folder = tmp_path / "lab" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.yaml").write_text(STUDY.replace("MIB", str(memory_mib)))
    return "mine"


def test_what_blocks_makes_exit_code_1_and_stands_last(labctl: Labctl, tmp_path: Path) -> None:
    name = study(tmp_path, 2**24)
    said = labctl("doctor", "--for", name, "--json")
    found = json.loads(said.out)
    assert said.code == 1
    assert found["blocked"] is True
    [memory] = [f for f in found["findings"] if f["status"] == "block" and f["name"] == "memory"]
    assert memory["remedy"].startswith("labctl sweep STUDY --memory ")
    table = labctl("doctor", "--for", name)
    assert table.code == 1
    last = table.out[table.out.index("BLOCKS:") :]
    assert "memory" in last
    assert "FINE" not in last
    assert "WARNINGS" not in last


def test_what_is_fine_is_one_line_unless_all_is_asked_for(labctl: Labctl) -> None:
    short, full = (" ".join(labctl("doctor", *given).out.split()) for given in ((), ("-v",)))
    assert "FINE: " in short
    assert "(listed with --full)" in short
    assert "(listed with --full)" not in full
    assert len(full) > len(short)


def test_without_a_block_the_exit_code_is_0_whatever_is_warned_of(labctl: Labctl) -> None:
    said = labctl("doctor", "--json")
    found = json.loads(said.out)
    blocking = [f["name"] for f in found["findings"] if f["status"] == "block"]
    assert found["blocked"] is bool(blocking)
    assert said.code == (1 if blocking else 0)


def test_each_row_says_what_why_and_what_to_do(labctl: Labctl) -> None:
    found = json.loads(labctl("doctor", "--json").out)
    assert found["schema"] == 1
    for finding in found["findings"]:
        assert finding["found"], finding
        assert finding["why"].endswith("."), finding
        if finding["status"] in ("warn", "block"):
            assert finding["remedy"], finding
        else:
            assert finding["status"] in ("ok", "unknown")


def test_for_a_study_each_of_its_tunings_has_a_row(labctl: Labctl, tmp_path: Path) -> None:
    found = json.loads(labctl("doctor", "--for", study(tmp_path, 512), "--json").out)
    assert found["study"] == "mine"
    names = [tuning["name"] for tuning in found["tunings"]]
    assert sorted(names) == ["baseline", "control", "handicap", "native", "pinned+fifo"]


def test_a_condition_that_this_host_cannot_have_is_named_with_the_reason(
    labctl: Labctl, tmp_path: Path
) -> None:
    name = study(tmp_path, 512)
    path = tmp_path / "lab/benchmarks/mine.yaml"
    own = (
        "conditions: {quiet: , far: {description: far, "
        "neighbours: [{workload: cpu-hog, cpus: 16000}]}}"
    )
    path.write_text(path.read_text().replace("conditions: [quiet]", own))
    found = json.loads(labctl("doctor", "--for", name, "--json").out)["findings"]
    (one,) = [finding for finding in found if finding["name"] == "conditions"]
    assert one["status"] == "warn"
    assert one["found"].startswith("'far': its neighbours want CPUs 16000")


def test_of_a_study_that_traces_the_results_folder_must_have_room(
    labctl: Labctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = study(tmp_path, 512)

    def rooms(*words: str) -> list[dict[str, Any]]:
        said = labctl("doctor", "--for", asked, *words, "--json")
        return [f for f in json.loads(said.out)["findings"] if f["name"] == "trace-room"]

    assert rooms() == []
    for free_mib, status in ((10**6, "ok"), (4000, "warn"), (1100, "block")):
        monkeypatch.setattr(trace_room, "_free_mib", lambda folder, mib=free_mib: mib)
        (found,) = rooms("--collect", "trace")
        assert found["status"] == status
        assert found["value"]["trials"] == 50
        assert 256 < found["value"]["trial_bytes"] / 2**20 <= 2048 + 64
        assert found["value"]["folder"] == str(tmp_path / "results")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--collect", "trace"], "--collect needs a study"),
        (["--for", "pining"], "no study 'pining'"),
        (["--for", "pinning", "--since", "r1"], "'--for' and '--since' exclude"),
        (["--since", "r1"], "no run named 'r1'"),
    ],
)
def test_a_wrong_question_is_refused(labctl: Labctl, words: list[str], says: str) -> None:
    said = labctl("doctor", *words)
    assert said.code == 2
    assert says in said.err


class Watch:
    """What this process opens for writing and which programs it starts, as Python audits them."""

    def __init__(self) -> None:
        self.on = False
        self.written: list[str] = []
        self.started: list[list[str]] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            path = os.fsdecode(arguments[0])
            if arguments[2] & (os.O_WRONLY | os.O_RDWR) and "__pycache__" not in path:
                self.written.append(path)
        elif event in ("os.remove", "os.rename", "os.mkdir", "os.chmod", "os.truncate"):
            self.written.append(str(arguments[0]))
        elif event == "subprocess.Popen":
            self.started.append([os.fsdecode(word) for word in arguments[1]])


@pytest.fixture(scope="module")
def audit() -> Watch:
    return Watch()


@pytest.fixture
def watch(audit: Watch) -> Iterator[Watch]:
    audit.written, audit.started, audit.on = [], [], True
    yield audit
    audit.on = False


_READING = {
    *("bpftrace", "perf", "systemd-detect-virt", "qemu-system-x86_64", "virsh", "irqbalance")
}


def test_checks_read_and_change_nothing(labctl: Labctl, places: StatePaths, watch: Watch) -> None:
    labctl("doctor")
    watch.on = False
    assert [path for path in watch.written if path != "/dev/null"] == []
    assert watch.started, "or nobody watched"
    assert {argv[0] for argv in watch.started} <= _READING, watch.started
    assert not places.root.exists(), "no journal, no state folder"


def verdicts_of(run: dict[str, Any]) -> dict[str, bool]:
    return {verdict["tuning"]: verdict["void"] for verdict in run["verdicts"]}


def made(places: StatePaths, **host: Any) -> LoadedRun:
    """A run of this very host, but for these facts of it."""
    run = synthetic_run(
        tunings=("native", *TUNINGS, "control", "handicap"),
        workloads={"sysbench-cpu": WORKLOADS["sysbench-cpu"]},
        effects={"native": 12.0, "handicap": 0.95, "pinned+fifo": 1.6, "cache-none": 1.3},
        noise=0.01,
    )
    recorded = {**host_facts(places), **host}
    return with_run(run, host=recorded, tunings=TUNINGS, accelerator="tcg")


def since(labctl: Labctl, tmp_path: Path, run: LoadedRun) -> tuple[int, dict[str, Any]]:
    write_run(tmp_path / "results" / "r1", run)
    said = labctl("doctor", "--since", "r1", "--json")
    return said.code, json.loads(said.out)


def test_on_the_same_host_every_verdict_stands(
    labctl: Labctl, tmp_path: Path, places: StatePaths
) -> None:
    code, found = since(labctl, tmp_path, made(places))
    assert (code, found["changes"]) == (0, [])
    assert verdicts_of(found) == {"pinned+fifo": False, "cache-none": False}


@pytest.mark.parametrize("fact", ["kernel_release", "qemu", "libvirt", "cpu_model", "microcode"])
def test_what_every_figure_is_made_by_voids_every_verdict(
    labctl: Labctl, tmp_path: Path, places: StatePaths, fact: str
) -> None:
    code, found = since(labctl, tmp_path, made(places, **{fact: "another one"}))
    assert code == 1
    assert [change["fact"] for change in found["changes"]] == [fact]
    assert verdicts_of(found) == {"pinned+fifo": True, "cache-none": True}


@pytest.mark.parametrize(
    ("facts", "void"),
    [
        ({"sched_rt_runtime_us": "-1"}, "pinned+fifo"),
        ({"governor": "powersave"}, "pinned+fifo"),
        ({"state_folder": {"file_system": "xfs"}}, "cache-none"),
    ],
)
def test_a_setting_voids_the_verdicts_that_rest_on_it_alone(
    labctl: Labctl, tmp_path: Path, places: StatePaths, facts: dict[str, Any], void: str
) -> None:
    code, found = since(labctl, tmp_path, made(places, **facts))
    assert code == 1
    assert [tuning for tuning, gone in verdicts_of(found).items() if gone] == [void]
    [because] = [v["because"] for v in found["verdicts"] if v["void"]]
    assert because == list(facts)


def test_the_table_names_the_change_the_verdict_and_the_command_to_measure_again(
    labctl: Labctl, tmp_path: Path, places: StatePaths
) -> None:
    write_run(tmp_path / "results" / "r1", made(places, sched_rt_runtime_us="-1"))
    said = labctl("doctor", "--since", "r1")
    assert said.code == 1
    text = " ".join(said.out.split())
    assert "1 fact changed, 1 of 2 verdicts void" in text
    assert "improves (sysbench-cpu with a noisy neighbour, events/s): real-time throttling" in text
    assert "Do: labctl sweep pinning --quick" in text
    assert said.out.index("VOID") < said.out.index("STILL HOLDS")


def test_another_accelerator_voids_everything(
    labctl: Labctl, tmp_path: Path, places: StatePaths
) -> None:
    code, found = since(labctl, tmp_path, with_run(made(places), accelerator="kvm"))
    assert code == 1
    assert all(verdicts_of(found).values())


def test_what_the_run_never_recorded_voids_nothing_and_is_named(
    labctl: Labctl, tmp_path: Path, places: StatePaths
) -> None:
    code, found = since(labctl, tmp_path, made(places, microcode=None))
    assert code == 0
    assert "microcode" in found["not_recorded"]


def test_a_run_that_ended_before_it_knew_its_host_is_refused(
    labctl: Labctl, tmp_path: Path, places: StatePaths
) -> None:
    write_run(tmp_path / "results" / "r1", with_run(made(places), host=None))
    said = labctl("doctor", "--since", "r1")
    assert said.code == 2
    assert "recorded nothing about its host" in said.err


def test_every_check_of_a_study_has_a_name_of_its_own_and_a_reason() -> None:
    names = [*(one.name for one in CHECKS), *(one.name for one in STUDY_CHECKS)]
    assert len(names) == len(set(names))
    assert all(one.why.endswith(".") for one in STUDY_CHECKS)


def test_the_answer_stands_first_and_the_most_important_warnings_stand_once(
    labctl: Labctl, tmp_path: Path
) -> None:
    found = json.loads(labctl("doctor", "--json").out)
    lines = labctl("doctor").out.splitlines()
    warnings = {f["name"]: f["group"] for f in found["findings"] if f["status"] == "warn"}
    blocking = [f["name"] for f in found["findings"] if f["status"] == "block"]
    answer = f"Blocked by {', '.join(blocking)}" if blocking else "Nothing blocks"
    assert lines[0].startswith(f"{answer}; ")
    assert lines[0].endswith(("warning.", "warnings."))
    assert set(found["foremost"]) <= set(warnings)
    assert len(found["foremost"]) == min(3, len({*warnings.values()}))
    if warnings:
        at = lines.index("MOST IMPORTANT for 'pinning'")
        rest = next(n for n, line in enumerate(lines) if line.startswith("FINE"))
        for name in found["foremost"]:
            rows = [n for n, line in enumerate(lines) if f"{line} ".startswith(f"  {name} ")]
            assert len(rows) == 1
            assert at < rows[0] < rest

    blocked = labctl("doctor", "--for", study(tmp_path, 2**24)).out.splitlines()
    assert blocked[0].startswith("Blocked by ")
    assert "memory" in blocked[0]
