"""`labctl sweep` as a user calls it, short of guests."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BusyError, HostError
from labctl.base.events import Note, Progress
from labctl.base.paths import StatePaths
from labctl.run.commands import sweep as module
from labctl.store.restores import shown
from labctl.store.run_folder import RunFolder
from tests.unit.analysis.alter import with_plan, with_run
from tests.unit.analysis.test_restored import both_ways
from tests.unit.cli.conftest import Labctl
from tests.unit.domain import hosts
from tests.unit.records import plan_from_file
from tests.unit.run.asked import plan_on
from tests.unit.synthetic import synthetic_run, write_run


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_on(monkeypatch, hosts.TWO_CPUS)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What `sweep` was asked for; it gives a run that was made up."""
    asked: list[Any] = []

    def sweep(request: Any, listener: Any, judging: Any) -> RunFolder:
        asked.append(request)
        listener(Note(text="KVM works here."))
        listener(Progress(done=0, planned=6, invalid=0, doing="block 1: native", left_s=None))
        return write_run(tmp_path / "results" / "made-up")

    monkeypatch.setattr(module, "sweep", sweep)
    return asked


def refuse(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def sweep(request: Any, listener: Any, judging: Any) -> RunFolder:
        raise error

    monkeypatch.setattr(module, "sweep", sweep)


def test_the_plan_alone_is_json_and_the_same_for_the_same_seed(labctl: Labctl) -> None:
    words = ("sweep", "pinning", "--quick", "--seed", "5", "--plan-only", "--json")
    first, second = labctl(*words), labctl(*words)
    assert first.code == 0
    plan = json.loads(first.out)
    assert (plan["study"], plan["seed"], plan["quick"]) == ("pinning", 5, True)
    assert second.out == first.out
    assert labctl(*words[:3], "--seed", "6", "--plan-only", "--json").out != first.out


def test_the_plan_is_shown_in_80_columns_with_what_it_takes_and_leaves_out(labctl: Labctl) -> None:
    said = labctl("sweep", "everything", "--quick", "--seed", "5", "--plan-only").out
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("everything, quick: ")
    assert any(line.startswith("Expected time: about ") for line in lines)
    assert "threshold" in said


def test_the_plan_says_up_to_which_noise_it_can_exclude_harm(
    labctl: Labctl, tmp_path: Path
) -> None:
    asked = ("sweep", "pinning", "--quick", "--seed", "5", "--plan-only")
    asked += ("--results", str(tmp_path))
    said = " ".join(labctl(*asked).out.split())
    assert "Losses that a recommendation must exclude" in said
    assert re.search(r"cyclictest 50 % [0-9.]+ % Spread: ", said)
    short = " ".join(labctl(*asked, "--blocks", "9").out.split())
    assert "This plan cannot give a recommendation, which needs ten blocks" in short


def test_the_plan_says_what_it_could_exclude_by_the_noise_of_an_earlier_run(
    labctl: Labctl, tmp_path: Path
) -> None:
    asked = ("sweep", "pinning", "--quick", "--seed", "5", "--plan-only")
    asked += ("--results", str(tmp_path))
    plan = json.loads(labctl(*asked, "--json").out)
    run = synthetic_run(workloads={"sysbench-cpu": plan["workloads"]["sysbench-cpu"]}, noise=0.2)
    run = with_run(run, started_at="2024-01-01T10:00:00", ended_at="2024-01-01T11:00:00")
    broken = write_run(tmp_path / "2024-02", run)
    (broken.path / "plan.json").write_text("{")
    write_run(tmp_path / "2024-01", with_plan(run, host_digest=plan["host_digest"]))
    write_run(tmp_path / "2024-03", with_plan(run, host_digest="another host's"))
    emulated = with_run(run, host={"cpu_model": "QEMU TCG CPU version 2.5+"})
    write_run(tmp_path / "2024-04", with_plan(emulated, host_digest=plan["host_digest"]))
    said = " ".join(labctl(*asked).out.split())
    assert "spread in 2024-01" in said
    assert "warm-ups, restores and boots are from run 2024-01" in said
    assert re.search(r"sysbench-cpu 5 % [0-9.]+ % \d+ % \(neighbour\) \d+ %", said)
    found = json.loads(labctl(*asked, "--json").out)
    assert found.pop("expected_time")["paced_by"] == "2024-01"
    by_workload = {item["workload"]: item for item in found.pop("foreseen")}
    assert by_workload["sysbench-cpu"]["earlier"]["run"] == "2024-01"
    assert by_workload["sysbench-cpu"]["earlier"]["excludes"] > 0.05
    assert by_workload["cyclictest"]["earlier"] is None
    assert plan_from_file(found).digest == plan["digest"], "the plan itself is as it was"


def test_the_plan_shows_its_spares_where_it_has_any(labctl: Labctl) -> None:
    asked = ("sweep", "pinning", "--quick", "--seed", "5", "--plan-only")
    said = "up to 3 spare blocks, each with its own boot, if a block loses a value"
    assert said in " ".join(labctl(*asked).out.split())
    one_boot = labctl(*asked, "--blocks-per-boot", "30").out
    assert "up to 3 spare blocks, from the same boot," in " ".join(one_boot.split())
    assert "spare" not in labctl(*asked, "--spare-blocks", "0").out


def test_the_plan_shows_what_is_collected_where_it_is_more_than_counters(labctl: Labctl) -> None:
    asked = ("sweep", "pinning", "--quick", "--seed", "5", "--plan-only")
    assert "\ncollects: trace\n" in labctl(*asked, "--collect", "trace").out
    assert "collects" not in labctl(*asked).out


def test_a_question_needs_no_study_and_its_command_repeats_it(labctl: Labctl) -> None:
    words = ("sweep", "--tuning", "pinned", "--workload", "redis-get", "--seed", "5")
    plan = json.loads(labctl(*words, "--plan-only", "--json").out)
    assert plan["study"] == "pinned-redis-get"
    assert [*plan["tunings"]][-2:] == ["native+pinned", "pinned"]
    quick = json.loads(labctl(*words, "--quick", "--plan-only", "--json").out)
    assert quick["stopping"]["looks"] == [10, 20, 30]
    own = ("--command", "true", "--once", "--tuning", "pinned", "--blocks", "3")
    plan = json.loads(labctl("sweep", *own, "--plan-only", "--json").out)
    assert (plan["blocks"], [*plan["workloads"]]) == (3, ["true"])


def test_a_question_says_what_is_missing(labctl: Labctl) -> None:
    said = labctl("sweep", "--tuning", "pinned")
    assert (said.code, said.out) == (2, "")
    assert "needs a workload" in said.err
    assert "no tuning to compare" in labctl("sweep", "--workload", "redis-get").err


def test_options_change_what_is_planned(labctl: Labctl) -> None:
    said = labctl(
        *(
            "sweep",
            "pinning",
            "--plan-only",
            "--json",
            "--blocks",
            "12",
            "--blocks-per-boot",
            "4",
            "--spare-blocks",
            "1",
            "--duration",
            "3",
        ),
        *("--tuning", "pinned", "--workload", "sysbench-cpu", "--condition", "quiet"),
        *("--memory", "512", "--vcpus", "2"),
    )
    plan = json.loads(said.out)
    assert (plan["blocks"], plan["boots"], plan["spare_blocks"]) == (12, 3, 1)
    assert plan["guest"]["memory_mib"] == 512
    assert plan["guest"]["vcpus"] == 2
    assert plan["conditions"] == ["quiet"]
    assert {w["duration_s"] for w in plan["workloads"].values()} == {3.0}


@pytest.mark.parametrize(
    ("words", "sentence", "remedy"),
    [
        (["nosuch"], "no study 'nosuch'", "pinning"),
        (["--tuning", "pined"], "no tuning 'pined'", "Did you mean 'pinned'?"),
        (["--workload", "fio"], "no workload 'fio'", "fio-randread"),
        (["--condition", "loud"], "no condition 'loud'", "neighbour, noisy-guests, quiet"),
        (["--vcpus", "3"], "cannot place 3 vCPUs: the host has CPUs 0-1", "--vcpus 2"),
        (["--vcpus", "0"], "--vcpus: expected a number", "from 1"),
        (["--blocks", "0"], "--blocks: expected a number", "from 1"),
        (["--spare-blocks", "-1"], "--spare-blocks: expected a number", "from 0"),
        (["--duration", "0"], "--duration: expected a number", "from 0.1"),
        (["--duration", "nan"], "invalid value for '--duration': expected a time such as", "10m"),
        (
            ["--duration", "10x"],
            "invalid value for '--duration': expected a time",
            "seconds",
        ),
        (["--memory", "2Q"], "invalid value for '--memory': expected a size such as 2G", "MiB"),
        (["--memory", "2GB"], "invalid value for '--memory': expected whole MiB", "1907.35"),
        (["--memory", "-4"], "--memory: expected a number", "from 256"),
        (["--until-width", "wide"], "--until-width: expected a percentage", "got 'wide'"),
        (["--wait-quiet", "soon"], "--wait-quiet: expected a time", "10m"),
        (["--until-width", "0"], "expected a width", "2 % is narrow"),
        (["--until-width", "2%", "--max-blocks", "9"], "a run until a width has at most 9", "10"),
        (["--max-blocks", "30"], "--max-blocks needs --until-width", "--blocks"),
        (["--looks", "10;15"], "--looks: expected numbers of blocks", "10,15,20"),
        (["--looks", "5,10"], "looks after 5, 10 blocks: they must be from 10", "judged"),
        (["--looks", "10,20,15"], "looks after 10, 20, 15 blocks: each must", "10, 15, 20"),
        (["--looks", "10"], "looks after 10 blocks: at least two", "fixed number"),
        (
            ["--looks", "10,15", "--until-width", "2%"],
            "--until-width and --looks exclude",
            "one of",
        ),
        (["--looks", "10,15", "--blocks", "15"], "--looks and --blocks exclude", "one of"),
        (["--extend", "r1"], "--extend needs --blocks, the number of blocks to add", "--blocks 5"),
        (
            ["--extend", "r1", "--blocks", "0"],
            "--extend needs --blocks, the number of blocks",
            "--blocks 5",
        ),
    ],
)
def test_bad_input_is_exit_code_2_and_starts_nothing(
    labctl: Labctl, tmp_path: Path, words: list[str], sentence: str, remedy: str
) -> None:
    results, state = tmp_path / "results", tmp_path / "state"
    study = () if words[0] in ("nosuch", "--extend") else ("pinning",)
    said = labctl("--state-dir", str(state), "sweep", *study, *words, "--results", str(results))
    assert said.code == 2
    assert said.err.startswith(f"labctl: {sentence}")
    assert remedy in said.err
    assert said.out == ""
    assert not results.exists()
    assert not state.exists()


def test_a_run_that_is_not_there_cannot_be_resumed(labctl: Labctl, tmp_path: Path) -> None:
    said = labctl("sweep", "--resume", "nosuch", "--results", str(tmp_path))
    assert said.code == 2
    assert "no run named 'nosuch'" in said.err


def test_a_host_that_is_in_use_is_exit_code_3(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, BusyError("this host is in use", hint="Wait until it is done."))
    said = labctl("sweep", "pinning")
    assert said.code == 3
    assert said.err == "labctl: this host is in use\n        Wait until it is done.\n"


def test_a_failure_in_the_middle_leaves_no_bar_behind(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, HostError("no space left"))
    said = labctl("sweep", "pinning")
    assert said.code == 3
    assert said.err == "labctl: no space left\n"


def test_a_sweep_ends_with_its_report_and_its_page(
    labctl: Labctl, requests: list[Any], tmp_path: Path
) -> None:
    said = labctl("sweep", "pinning", "--results", str(tmp_path / "results"))
    assert said.code == 0
    assert "Full report: labctl report made-up --full" in said.out
    assert "KVM works here." in said.err
    assert "0 of 6 trials" in said.err
    page = tmp_path / "results/made-up/report.html"
    assert page.is_file()
    assert f"HTML report: {page}" in said.out, "in one piece, to be copied"


def test_json_is_all_that_is_on_standard_output(labctl: Labctl, requests: list[Any]) -> None:
    assert json.loads(labctl("sweep", "pinning", "--json").out)["run"] == "made-up"


def test_quiet_says_nothing_but_the_report(labctl: Labctl, requests: list[Any]) -> None:
    said = labctl("sweep", "pinning", "--quiet", "--json")
    assert said.err == ""
    assert json.loads(said.out)["run"] == "made-up"


def test_what_the_user_says_reaches_the_run(
    labctl: Labctl, requests: list[Any], tmp_path: Path
) -> None:
    labctl(
        *("--state-dir", str(tmp_path / "state"), "sweep", "pinning"),
        *("--accel", "tcg", "--connect", "qemu:///system", "--fresh-boots", "--quick"),
    )
    (asked,) = requests
    assert asked.places.root == tmp_path / "state"
    assert (asked.resume, asked.accel, asked.connect) == (None, "tcg", "qemu:///system")
    assert asked.fresh_boots
    assert asked.quick
    assert asked.overrides.tunings is None


def test_a_resumed_run_refuses_what_would_change_its_plan(
    labctl: Labctl, requests: list[Any]
) -> None:
    said = labctl("sweep", "--resume", "r1", "--blocks", "20", "--quick")
    assert said.code == 2
    assert "'--blocks'" in said.err
    assert "'--quick'" in said.err
    assert requests == []


def test_a_resumed_run_may_be_told_how_to_reach_its_guests(
    labctl: Labctl, requests: list[Any]
) -> None:
    labctl("sweep", "--resume", "r1", "--accel", "tcg", "--json")
    assert requests[0].resume == "r1"


def test_an_extended_run_refuses_what_would_change_its_plan(
    labctl: Labctl, requests: list[Any]
) -> None:
    said = labctl("sweep", "--extend", "r1", "--blocks", "5", "--seed", "3", "--looks", "10,15")
    assert said.code == 2
    assert "'--seed'" in said.err
    assert "'--looks'" in said.err
    assert "'--blocks'" not in said.err
    both = labctl("sweep", "--extend", "r1", "--blocks", "5", "--resume", "r1")
    assert both.code == 2
    assert requests == []


def test_an_extension_is_so_many_blocks_of_that_run(labctl: Labctl, requests: list[Any]) -> None:
    labctl("sweep", "--extend", "r1", "--blocks", "5", "--json")
    assert (requests[0].extend, requests[0].overrides.blocks) == ("r1", 5)


@pytest.mark.parametrize(
    ("words", "rule", "blocks", "said"),
    [
        (
            ["--until-width", "2.5%"],
            {"width": 0.025, "most_blocks": 40},
            40,
            "it ends when every primary interval is within ±2.5 %",
        ),
        (
            ["--looks", "10,15"],
            {"looks": [10, 15], "drops": True, "native_width": 0.1},
            15,
            "it judges after 10, 15 blocks, and goes on with what is undecided",
        ),
    ],
)
def test_the_plan_shows_the_rule_by_which_the_run_may_end(
    labctl: Labctl, words: list[str], rule: dict[str, Any], blocks: int, said: str
) -> None:
    asked = ("sweep", "pinning", "--seed", "5", "--plan-only", *words)
    plan = json.loads(labctl(*asked, "--json").out)
    assert (plan["stopping"], plan["blocks"]) == (rule, blocks)
    shown = labctl(*asked).out
    assert said in shown
    assert "at most " in shown.splitlines()[1]


def test_a_time_makes_looks_that_end_within_it(labctl: Labctl) -> None:
    asked = ("sweep", "pinning", "--quick", "--plan-only", "--json", "--within")
    plan = json.loads(labctl(*asked, "15m").out)
    expected, (first, *_, last) = plan["expected_time"], plan["stopping"]["looks"]
    assert (first, plan["blocks"]) == (10, last)
    assert last > 10
    assert expected["first_look"] < expected["total"] <= 15 * 60
    longer = json.loads(labctl(*asked, "30m").out)
    assert longer["blocks"] > last


def test_too_little_time_and_two_rules_are_refused(labctl: Labctl) -> None:
    asked = ("sweep", "pinning", "--quick", "--plan-only", "--within")
    said = labctl(*asked, "2m")
    assert said.code == 2
    assert "ten blocks, the fewest for a verdict" in said.err
    assert "exclude each other" in labctl(*asked, "15m", "--blocks", "12").err


def test_what_a_run_has_shown_of_restored_guests_is_kept_for_later_ones(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LABCTL_STATE_DIR", str(tmp_path / "state"))
    made = both_ways({"pinned": 1.3, "pinned+booted": 1.3}, noise=0.005)
    tunings = {
        name: {**entry, "digest": name} for name, entry in made.plan.to_json()["tunings"].items()
    }
    made = with_plan(made, tunings=tunings)
    folder = write_run(tmp_path / "results" / "both-ways", made)
    monkeypatch.setattr(module, "sweep", lambda *_: folder)
    said = labctl("sweep", "restore-validity", "--quiet")
    assert said.code == 0, said.err
    file = StatePaths.default().restore_checks
    found = shown(file, folder.read_run(), folder.load().plan)
    assert [(entry["tuning"], entry["run"]) for entry in found] == [("pinned", "both-ways")]


def test_factors_are_shown_and_picked_before_anything_runs(labctl: Labctl, tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        "title: Depth?\ntunings: [vcpupin]\nconditions: [quiet]\n"
        "workloads:\n  disk: {program: fio-random}\n"
        "factors:\n  iodepth: {levels: [1, 4, 16]}\n"
        "  kernel: {levels: {new: {}, bare: {tuning: guest-mitigations-off}}}\n"
    )
    asked = ("sweep", str(study), "--plan-only", "--factor", "iodepth=1,16")
    shown = labctl(*asked)
    assert shown.code == 0, shown.err
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert "iodepth 1, 16 per block" in lines
    assert "kernel new, bare per boot (each level has its own boot)" in lines
    # Native, control and known loss have no tuning of a factor's.
    assert "14 cells in each block, over all arms" in lines
    plan = json.loads(labctl(*asked, "--json").out)
    assert len(plan["factorial"]["cells"]) == 14
    for words, said in (
        ("iodepth=2", "factor 'iodepth' has no level '2'"),
        ("iodepht=1", "no factor 'iodepht'"),
        ("iodepth", "--factor: expected NAME=LEVEL,LEVEL, got 'iodepth'"),
    ):
        refused = labctl("sweep", str(study), "--plan-only", "--factor", words)
        assert refused.code == 2
        assert said in refused.err
